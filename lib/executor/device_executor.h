// A communicator's collectives on a GPU, as lib/comm/ sees them. No CUDA type appears here:
// lib/executor/cuda/ implements it, and a library built without CUDA has lib/executor/device_absent.cpp
// instead.
//
// Calls do not wait for the GPU unless they say so. One thread at a time issues; stop() and fault() may be
// called from any thread.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lib/base/clock.h"
#include "lib/base/result.h"
#include "lib/executor/host/operation.h"
#include "transports/device_memory.h"
#include "transports/transport.h"

namespace peal {

struct DeviceOptions {
  int device = 0;
  int rank = 0;
  int size = 1;
  uint64_t communicator =
      0;             // the same number on all ranks of a communicator, different for every communicator
  std::string name;  // for messages
  int64_t timeoutMs = 0;
  bool deterministic = false;
};

class DeviceExecutor {
 public:
  virtual ~DeviceExecutor() = default;
  virtual int device() const = 0;
  // Checks what the API cannot know: where the buffers are, the stream's device, the capture state.
  // stream: a cudaStream_t, nullptr for the default stream.
  virtual Result<void> issue(const Collective& call, const void* deferredScalar, void* stream) = 0;
  virtual Result<void> issue(const std::vector<PointToPoint>& calls, void* stream) = 0;
  // A fault that a kernel reported or that the transport noticed; looks only, never waits.
  virtual std::optional<Fault> fault() = 0;
  // Makes running and later kernels leave, here and on the peers.
  virtual void stop(int culpritRank, const std::string& reason) = 0;
  // Waits until everything issued has run (or left).
  virtual Result<void> drain(Deadline deadline) = 0;
  // Graphs that hold operations of this communicator and have not been destroyed.
  virtual int liveGraphs() const = 0;
  virtual Result<uint64_t> registerBuffer(const void* data, size_t bytes) = 0;
  virtual Result<void> deregisterBuffer(uint64_t id, Deadline deadline) = 0;
  virtual pealCommStats_t stats() = 0;
};

// Collective over the exchange. `device` -1 is not legal here.
Result<std::unique_ptr<DeviceExecutor>> makeDeviceExecutor(Exchange& exchange,
                                                           std::unique_ptr<DeviceMemory> memory,
                                                           const DeviceOptions& options);
// Size of the window (transports/device_memory.h) that an executor with these options needs.
size_t deviceWindowBytes(const DeviceOptions& options);

// Number of usable devices; an error's sentence says why there is none.
Result<int> deviceCount();
// Memory of a device, freed by freeDevice.
Result<void*> allocateDevice(int device, size_t bytes);
Result<void> freeDevice(void* data);
// Whether this address is GPU memory (of any device of this process).
bool isDeviceMemory(const void* data);

}  // namespace peal
