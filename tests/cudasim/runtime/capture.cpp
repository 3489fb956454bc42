#include "tests/cudasim/runtime/capture.h"

#include <algorithm>

#include "tests/cudasim/runtime/api.h"

namespace peal::cudasim {
namespace {

thread_local cudaStreamCaptureMode threadMode = cudaStreamCaptureModeGlobal;
uint64_t lastSequenceId = 0;  // guarded by the runtime's mutex

// The captures in progress, each once.
std::vector<std::shared_ptr<CaptureSequence>> sequences(Lock& lock) {
  std::vector<std::shared_ptr<CaptureSequence>> found;
  for (const StreamRef& stream : runtime().engine.userStreams(lock)) {
    if (stream->capture && std::find(found.begin(), found.end(), stream->capture) == found.end()) {
      found.push_back(stream->capture);
    }
  }
  return found;
}

cudaError_t refuseLegacy(Lock& lock, int device, bool invalidates) {
  cudaError_t error = cudaSuccess;
  for (const StreamRef& stream : runtime().engine.userStreams(lock)) {
    if (stream->device == device && stream->isBlocking() && stream->capture) {
      if (invalidates) {
        invalidate(lock, *stream->capture);
      }
      error = cudaErrorStreamCaptureImplicit;
    }
  }
  return error;
}

// Whether every node of the graph comes before one of `last`, or is one.
bool allJoined(const Graph& graph, const std::vector<size_t>& last) {
  std::vector<bool> seen(graph.nodes.size());
  std::vector<size_t> open = last;
  while (!open.empty()) {
    const size_t node = open.back();
    open.pop_back();
    if (!seen[node]) {
      seen[node] = true;
      open.insert(open.end(), graph.nodes[node].dependsOn.begin(), graph.nodes[node].dependsOn.end());
    }
  }
  return std::find(seen.begin(), seen.end(), false) == seen.end();
}

}  // namespace

void leaveCapture(Lock& lock, Stream& stream) {
  if (stream.capture && stream.capture->origin == stream.handle && !stream.capture->isOver) {
    stream.capture->isOver = stream.capture->isInvalid = true;
    runtime().graphs.destroyGraph(lock, stream.capture->graph);
  }
  stream.capture = nullptr;
  stream.captureTail.clear();
}

void invalidate(Lock&, CaptureSequence& sequence) { sequence.isInvalid = true; }

bool invalidateForUnsafeCall(Lock& lock) {
  if (threadMode == cudaStreamCaptureModeRelaxed) {
    return false;
  }
  bool forbidden = false;
  for (const auto& sequence : sequences(lock)) {
    const bool isOwn = sequence->thread == std::this_thread::get_id();
    const bool forbids =
        isOwn ? sequence->mode != cudaStreamCaptureModeRelaxed
              : threadMode == cudaStreamCaptureModeGlobal && sequence->mode == cudaStreamCaptureModeGlobal;
    if (forbids) {
      invalidate(lock, *sequence);
      forbidden = true;
    }
  }
  return forbidden;
}

cudaError_t refuseUse(Lock& lock, const StreamRef& stream) {
  if (stream->isLegacy) {
    return refuseLegacy(lock, stream->device, true);
  }
  return stream->capture && stream->capture->isInvalid ? cudaErrorStreamCaptureInvalidated : cudaSuccess;
}

cudaError_t refuseWait(Lock& lock, const StreamRef& stream) {
  const cudaError_t error = refuseUse(lock, stream);
  if (error == cudaSuccess && stream->capture) {
    invalidate(lock, *stream->capture);
    return cudaErrorStreamCaptureUnsupported;
  }
  return error;
}

cudaError_t refuseDeviceWait(Lock& lock, int device) {
  cudaError_t error = cudaSuccess;
  for (const StreamRef& stream : runtime().engine.userStreams(lock)) {
    if (stream->device == device && stream->capture) {
      invalidate(lock, *stream->capture);
      error = cudaErrorStreamCaptureUnsupported;
    }
  }
  return error;
}

cudaError_t issue(Lock& lock, const StreamRef& stream, Work work, CompletionRef* done) {
  if (const cudaError_t error = refuseUse(lock, stream); error != cudaSuccess) {
    return error;
  }
  auto shared = std::make_shared<const Work>(std::move(work));
  if (!stream->capture) {
    const CompletionRef ended = runtime().engine.enqueue(lock, stream, std::move(shared));
    if (done != nullptr) {
      *done = ended;
    }
    return cudaSuccess;
  }
  stream->captureTail = {stream->capture->graph->add(std::move(shared), stream->captureTail)};
  return cudaSuccess;
}

}  // namespace peal::cudasim

using namespace peal::cudasim;

namespace {

cudaError_t begin(Lock& lock, const StreamRef& stream, cudaStreamCaptureMode mode) {
  if (stream->isLegacy) {
    return cudaErrorStreamCaptureUnsupported;
  }
  if (stream->capture) {
    return cudaErrorIllegalState;
  }
  auto sequence = std::make_shared<CaptureSequence>();
  sequence->id = ++lastSequenceId;
  sequence->mode = mode;
  sequence->thread = std::this_thread::get_id();
  sequence->origin = stream->handle;
  sequence->graph = runtime().graphs.makeGraph(lock);
  stream->capture = sequence;
  stream->captureTail.clear();
  return cudaSuccess;
}

// Why this stream and thread cannot end the capture; the capture goes on.
cudaError_t refuseEnd(const Stream& stream) {
  if (!stream.capture) {
    return cudaErrorIllegalState;
  }
  if (stream.capture->origin != stream.handle) {
    return cudaErrorStreamCaptureUnmatched;
  }
  const bool anyThread = stream.capture->mode == cudaStreamCaptureModeRelaxed;
  return anyThread || stream.capture->thread == std::this_thread::get_id()
             ? cudaSuccess
             : cudaErrorStreamCaptureWrongThread;
}

cudaError_t end(Lock& lock, const StreamRef& stream, cudaGraph_t* pGraph) {
  const auto sequence = stream->capture;
  sequence->isOver = true;
  cudaError_t error = cudaSuccess;
  if (sequence->isInvalid) {
    error = cudaErrorStreamCaptureInvalidated;
  } else if (!allJoined(*sequence->graph, stream->captureTail)) {
    error = cudaErrorStreamCaptureUnjoined;
  }
  for (const StreamRef& member : runtime().engine.userStreams(lock)) {
    if (member->capture == sequence) {
      leaveCapture(lock, *member);
    }
  }
  if (error != cudaSuccess) {
    runtime().graphs.destroyGraph(lock, sequence->graph);
  }
  *pGraph = error == cudaSuccess ? sequence->graph->handle : nullptr;
  return error;
}

// A capturing stream waits for an event of a capture, or a stream joins that capture by waiting.
cudaError_t waitForCaptured(Lock& lock, const StreamRef& stream, const Event& event) {
  if (event.capture->isOver) {
    return cudaErrorCapturedEvent;
  }
  if (stream->isLegacy) {
    invalidate(lock, *event.capture);
    return cudaErrorStreamCaptureImplicit;
  }
  if (event.capture->isInvalid) {
    return cudaErrorStreamCaptureInvalidated;
  }
  if (stream->capture && stream->capture != event.capture) {
    invalidate(lock, *stream->capture);
    invalidate(lock, *event.capture);
    return cudaErrorStreamCaptureMerge;
  }
  stream->capture = event.capture;
  for (const size_t node : event.captureNodes) {
    if (std::find(stream->captureTail.begin(), stream->captureTail.end(), node) ==
        stream->captureTail.end()) {
      stream->captureTail.push_back(node);
    }
  }
  return cudaSuccess;
}

cudaError_t waitEvent(Lock& lock, const StreamRef& stream, const EventRef& event, unsigned flags) {
  if (event->capture && flags == cudaEventWaitDefault) {
    return waitForCaptured(lock, stream, *event);
  }
  const CompletionRef pending = event->pending();
  if (stream->capture && flags == cudaEventWaitDefault) {
    if (!pending) {
      return cudaSuccess;  // never recorded
    }
    invalidate(lock, *stream->capture);
    return cudaErrorStreamCaptureIsolation;
  }
  Work work;
  work.type = cudaGraphNodeTypeWaitEvent;
  work.device = stream->device;
  if (stream->capture) {
    work.event = event->handle;
    return issue(lock, stream, std::move(work));
  }
  if (pending) {
    runtime().engine.enqueue(lock, stream, std::make_shared<const Work>(std::move(work)), {pending});
  }
  return cudaSuccess;
}

}  // namespace

cudaError_t cudaStreamBeginCapture(cudaStream_t handle, cudaStreamCaptureMode mode) {
  return call({"cudaStreamBeginCapture", cudaErrorUnknown}, [&](Lock& lock) {
    const StreamRef stream = runtime().engine.find(lock, handle, currentDevice());
    if (!stream) {
      return cudaErrorInvalidResourceHandle;
    }
    if (mode < cudaStreamCaptureModeGlobal || mode > cudaStreamCaptureModeRelaxed) {
      return cudaErrorInvalidValue;
    }
    return begin(lock, stream, mode);
  });
}

cudaError_t cudaStreamEndCapture(cudaStream_t handle, cudaGraph_t* pGraph) {
  const Function function{
      .name = "cudaStreamEndCapture", .usualError = cudaErrorStreamCaptureInvalidated, .releases = true};
  return call(function, [&](Lock& lock) {
    const StreamRef stream = runtime().engine.find(lock, handle, currentDevice());
    if (!stream || pGraph == nullptr) {
      return stream ? cudaErrorInvalidValue : cudaErrorInvalidResourceHandle;
    }
    const cudaError_t error = refuseEnd(*stream);
    return error != cudaSuccess ? error : end(lock, stream, pGraph);
  });
}

cudaError_t cudaStreamWaitEvent(cudaStream_t handle, cudaEvent_t eventHandle, unsigned int flags) {
  return call({"cudaStreamWaitEvent", cudaErrorUnknown}, [&](Lock& lock) {
    const StreamRef stream = runtime().engine.find(lock, handle, currentDevice());
    const EventRef event = runtime().events.find(eventHandle);
    if (!stream || !event) {
      return cudaErrorInvalidResourceHandle;
    }
    if (flags != cudaEventWaitDefault && flags != cudaEventWaitExternal) {
      return cudaErrorInvalidValue;
    }
    const cudaError_t error = refuseUse(lock, stream);
    return error != cudaSuccess ? error : waitEvent(lock, stream, event, flags);
  });
}

cudaError_t cudaStreamIsCapturing(cudaStream_t handle, cudaStreamCaptureStatus* pCaptureStatus) {
  return call({"cudaStreamIsCapturing", cudaErrorUnknown}, [&](Lock& lock) {
    const StreamRef stream = runtime().engine.find(lock, handle, currentDevice());
    if (!stream || pCaptureStatus == nullptr) {
      return stream ? cudaErrorInvalidValue : cudaErrorInvalidResourceHandle;
    }
    *pCaptureStatus = stream->capture ? stream->capture->isInvalid ? cudaStreamCaptureStatusInvalidated
                                                                   : cudaStreamCaptureStatusActive
                                      : cudaStreamCaptureStatusNone;
    return stream->isLegacy ? refuseLegacy(lock, stream->device, false) : cudaSuccess;
  });
}

cudaError_t cudaStreamGetCaptureInfo(cudaStream_t handle, cudaStreamCaptureStatus* captureStatus_out,
                                     unsigned long long* id_out, cudaGraph_t* graph_out,
                                     const cudaGraphNode_t** dependencies_out,
                                     const cudaGraphEdgeData** edgeData_out, size_t* numDependencies_out) {
  return call({"cudaStreamGetCaptureInfo", cudaErrorUnknown}, [&](Lock& lock) {
    const StreamRef stream = runtime().engine.find(lock, handle, currentDevice());
    if (!stream || captureStatus_out == nullptr) {
      return stream ? cudaErrorInvalidValue : cudaErrorInvalidResourceHandle;
    }
    if (stream->isLegacy) {
      *captureStatus_out = cudaStreamCaptureStatusNone;
      return refuseLegacy(lock, stream->device, false);
    }
    const auto& sequence = stream->capture;
    const bool isActive = sequence && !sequence->isInvalid;
    *captureStatus_out = isActive   ? cudaStreamCaptureStatusActive
                         : sequence ? cudaStreamCaptureStatusInvalidated
                                    : cudaStreamCaptureStatusNone;
    if (!isActive) {
      return cudaSuccess;  // nothing else is written
    }
    stream->tailHandles.clear();
    for (const size_t node : stream->captureTail) {
      stream->tailHandles.push_back(sequence->graph->nodes[node].handle);
    }
    stream->tailEdges.assign(stream->tailHandles.size(), cudaGraphEdgeData{});
    const auto give = [](auto* to, auto value) {
      if (to != nullptr) {
        *to = value;
      }
    };
    give(id_out, static_cast<unsigned long long>(sequence->id));
    give(graph_out, sequence->graph->handle);
    give(dependencies_out, static_cast<const cudaGraphNode_t*>(stream->tailHandles.data()));
    give(edgeData_out, static_cast<const cudaGraphEdgeData*>(stream->tailEdges.data()));
    give(numDependencies_out, stream->tailHandles.size());
    return cudaSuccess;
  });
}

cudaError_t cudaStreamUpdateCaptureDependencies(cudaStream_t handle, cudaGraphNode_t* dependencies,
                                                const cudaGraphEdgeData*, size_t numDependencies,
                                                unsigned int flags) {
  return call({"cudaStreamUpdateCaptureDependencies", cudaErrorUnknown}, [&](Lock& lock) {
    const StreamRef stream = runtime().engine.find(lock, handle, currentDevice());
    if (!stream) {
      return cudaErrorInvalidResourceHandle;
    }
    if (!stream->capture) {
      return cudaErrorIllegalState;
    }
    if (const cudaError_t error = refuseUse(lock, stream); error != cudaSuccess) {
      return error;
    }
    std::vector<size_t> tail =
        flags == cudaStreamAddCaptureDependencies ? stream->captureTail : std::vector<size_t>{};
    for (size_t i = 0; i < numDependencies; i++) {
      const std::optional<size_t> node = stream->capture->graph->find(dependencies[i]);
      if (!node) {
        return cudaErrorInvalidValue;
      }
      tail.push_back(*node);
    }
    stream->captureTail = std::move(tail);
    return cudaSuccess;
  });
}

cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
  const Function function{
      .name = "cudaThreadExchangeStreamCaptureMode", .usualError = cudaErrorUnknown, .releases = true};
  return call(function, [&](Lock&) {
    if (mode == nullptr || *mode < cudaStreamCaptureModeGlobal || *mode > cudaStreamCaptureModeRelaxed) {
      return cudaErrorInvalidValue;
    }
    std::swap(*mode, threadMode);
    return cudaSuccess;
  });
}
