// Stream capture: what turns operations into nodes of a graph, which streams take part, and what a capture
// forbids. Rules and error codes as in CUDA's "Stream Management" and "Graphs" documentation.
#pragma once
#include <cuda_runtime.h>

#include <memory>
#include <thread>

#include "tests/cudasim/runtime/engine.h"
#include "tests/cudasim/runtime/graphs.h"

namespace peal::cudasim {

// From cudaStreamBeginCapture to cudaStreamEndCapture: the origin stream and those that joined through
// events.
struct CaptureSequence {
  uint64_t id = 0;
  cudaStreamCaptureMode mode = cudaStreamCaptureModeGlobal;
  std::thread::id thread;  // that began it
  cudaStream_t origin = nullptr;
  GraphRef graph;
  bool isInvalid = false;
  bool isOver = false;
};

// Puts the work into the stream, or into the graph that the stream is being captured into.
cudaError_t issue(Lock& lock, const StreamRef& stream, Work work, CompletionRef* done = nullptr);
// Why nothing can be issued: the legacy stream while a blocking stream of its device is captured (which this
// invalidates), or an invalid capture.
cudaError_t refuseUse(Lock& lock, const StreamRef& stream);
// Why the host cannot wait for the stream or look at it: as above, and any capture (which this invalidates).
cudaError_t refuseWait(Lock& lock, const StreamRef& stream);
// The same for all of a device.
cudaError_t refuseDeviceWait(Lock& lock, int device);

void invalidate(Lock& lock, CaptureSequence& sequence);
// The stream is not captured any more; a capture that began with it has failed unless it is over.
void leaveCapture(Lock& lock, Stream& stream);
// Whether a capture forbids potentially unsafe calls to this thread now; if so it is invalid from here on.
bool invalidateForUnsafeCall(Lock& lock);

}  // namespace peal::cudasim
