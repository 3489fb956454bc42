// A communicator's collectives on a GPU, as lib/comm/ sees them. No CUDA type appears here:
// lib/executor/cuda/ implements it, and a library built without CUDA has lib/executor/device_absent.cpp
// instead.
//
// Calls do not wait for the GPU unless they say so. One thread at a time issues; stop(), fault() and
// liveGraphs() may be called from any thread.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "algorithms/grouping.h"
#include "lib/base/clock.h"
#include "lib/base/gpu_path.h"
#include "lib/base/result.h"
#include "lib/executor/host/operation.h"
#include "peal/adamw.h"
#include "transports/transport.h"

namespace peal {

struct DeviceOptions {
  int device = 0;
  int rank = 0;
  int size = 1;
  // The same number on all ranks of a communicator, different for every communicator of the process.
  uint64_t communicator = 0;
  std::string name;  // for messages
  int64_t timeoutMs = 0;
};

// How a communicator's ranks reach each other beside the memory of their GPUs.
struct DeviceLinks {
  // Of the ranks of this node, for the device memory alone; it speaks of them by the communicator's numbers.
  // nullptr for a rank that is alone on its node.
  std::unique_ptr<Endpoint> control{};
  const Grouping* nodes = nullptr;  // nullptr: all ranks are on one node
  // Collective over all ranks, and called if there are several nodes: an endpoint with links to the ranks of
  // the others.
  std::function<Result<std::unique_ptr<Endpoint>>(size_t slotBytes, int slots)> connectNetwork{};
};

// What the tuner needs to know; the same on every rank.
struct DeviceFacts {
  int channels = 1;                    // the most that one operation may use
  size_t slotBytes = 0;                // payload of a message, by protocol
  size_t llBytes = 0;                  // likewise
  size_t ll128Bytes = 0;               // likewise
  GpuPath path = GpuPath::HostMemory;  // between ranks of a node
  bool simpleOnly = false;             // some ranks are on other nodes
};

class DeviceExecutor {
 public:
  virtual ~DeviceExecutor() = default;
  virtual int device() const = 0;
  virtual const DeviceFacts& facts() const = 0;

  // A launch in three parts, so that ranks of one thread can be launched together (lib/comm/group.cpp):
  // fork() for every rank, then issue() for every rank, then join(). Without fork() and join() the operations
  // run on the user's stream itself; between them on a stream of this executor's own, so that ranks which
  // share the user's stream do not wait for each other. stream: a cudaStream_t, nullptr for the default
  // stream.
  virtual Result<void> fork(void* stream) = 0;
  virtual Result<void> join(void* stream) = 0;
  // Checks what the API cannot know: where the buffers are, the stream's device, the capture state.
  // deferredScalar: where kernels read a pre-multiplied sum's scalar when they run, or nullptr.
  virtual Result<void> issue(const Collective& call, const void* deferredScalar, void* stream) = 0;
  virtual Result<void> issue(const std::vector<PointToPoint>& calls, void* stream) = 0;
  // An all-reduce by ring, two-shot or hierarchical, with one block per rank (starts) of bf16, that keeps and
  // sends AdamW's weights instead of sums (peal/adamw.h).
  virtual Result<void> issue(const Collective& call, const pealAdamw_t& state, void* stream) = 0;

  // A fault that a kernel reported or that the transport noticed; looks only, never waits.
  virtual std::optional<Fault> fault() = 0;
  // Makes running and later kernels leave, here and on the peers.
  virtual void stop(int culpritRank, const std::string& reason) = 0;
  // Waits until everything issued outside of graphs has run (or left), and ranks on other nodes have taken
  // what was sent to them. Nothing is issued afterwards.
  virtual Result<void> drain(Deadline deadline) = 0;
  // Graphs that hold operations of this communicator and have not been destroyed.
  virtual int liveGraphs() const = 0;
  virtual Result<uint64_t> registerBuffer(const void* data, size_t bytes) = 0;
  virtual Result<void> deregisterBuffer(uint64_t id, Deadline deadline) = 0;
  // Calls that were issued, replays of graphs not counted.
  virtual pealCommStats_t stats() = 0;
};

// Collective over the exchange: agrees on channels and slots, connects the ranks' GPU memory
// (transports/device_memory.h), starts the proxy to those on other nodes, and makes the executor; an error on
// one rank is one on all.
Result<std::unique_ptr<DeviceExecutor>> makeDeviceExecutor(Exchange& exchange, DeviceLinks links,
                                                           const DeviceOptions& options, Deadline deadline);

// What this process can tell of GPUs, for people who ask what was found and why.
struct DeviceSupport {
  bool built = false;         // the library was built with CUDA
  std::string architectures;  // that it holds kernels for; "" if it was built without CUDA
  int count = 0;              // usable devices
  std::string reason;         // which devices, or why there is none
};
DeviceSupport probeDevices();

// Whether a communicator can be on this device; the error's sentence says why not.
Result<void> checkDevice(int device);
// The calling thread's current device, and how many there are: at least one, or an error.
Result<int> currentDevice();
Result<int> countDevices();
// Memory of a device, freed by freeDevice.
Result<void*> allocateDevice(int device, size_t bytes);
Result<void> freeDevice(void* data);
// Whether allocateDevice gave this address and it has not been freed.
bool isDeviceAllocation(const void* data);

// One AdamW update of a flat shard (peal/adamw.h) in memory of `device`, arguments checked, on a CUDA stream.
Result<void> launchAdamw(int device, const pealAdamw_t& state, const void* gradient, void* weight,
                         void* stream);

}  // namespace peal
