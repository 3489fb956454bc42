// The executor of one rank on a GPU: puts kernels on streams, keeps what they need, and reads what they
// report.
//
// Owns the rank's counters (ChannelState), its board, its view of the boxes, the DeviceMemory that those of
// this node's ranks lie in, and the proxy that has those of the others. Made by makeDeviceExecutor,
// collectively; used by lib/comm/ as lib/executor/device_executor.h says. Makes no thread itself, and waits
// for no kernel but in drain() and at its end.
//
// The end, in this order: kernels have ended (or never will: retired.h); the proxy waits until peers have
// taken what was sent, and leaves the network; then what kernels used, the proxy's boxes before the board
// that its faults go to, the device memory last, since it waits for peers in a thread of its own
// (lingering.h).
#pragma once
#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "lib/executor/cuda/agreement.h"
#include "lib/executor/cuda/order.h"
#include "lib/executor/cuda/proxy.h"
#include "lib/executor/cuda/view.h"
#include "lib/executor/device_executor.h"
#include "lib/memory/cuda.h"
#include "transports/device_memory.h"

namespace peal::cuda {

// What kernels use, in the order in which it is made. Lives as long as any kernel may run, which with CUDA
// graphs may be longer than the communicator (retired.h).
struct Resources {
  ~Resources();
  int device = 0;
  std::unique_ptr<DeviceMemory> memory;
  DeviceBuffer channels;  // ChannelState of each
  // Where this node's ranks write in each other's windows: all windows have the shape of the largest node's.
  WindowShape window;
  std::vector<int> localOf;  // of each rank its inbox in a window of its node; -1: it is on another node
  std::vector<int> groups;   // the table of `nodes`
  Grouping nodes;
  DeviceBuffer nodeTable;           // the same for kernels; nothing where there is only one node
  PinnedBuffer board;               // HostBoard
  std::unique_ptr<Proxy> proxy;     // to ranks on other nodes; nullptr: there are none
  std::vector<StreamHolder> sides;  // for launches between fork() and join(); the first for setting up, too
  Event forked, joined;
  std::unique_ptr<LaunchOrder> order;  // destroyed first

  HostBoard& host() const { return *reinterpret_cast<HostBoard*>(board.data()); }
  // Makes kernels leave at their first wait. From any thread.
  void raiseStop() const;
  // Makes kernels leave, those that start later at their start, as if `culpritRank` had failed; waits until
  // none reads peers' buffers any more. From any thread.
  Result<void> endKernels(int culpritRank, Deadline deadline);
  // After a deadline: what the peer is seen in. nullopt also where its window cannot be read.
  std::optional<DigestWords> seen(const FaultRecord& record) const;
  // Leaves the network, if there is one.
  void leaveNetwork() const;

 private:
  Result<void> tryToEndKernels(int culpritRank, Deadline deadline);
  Result<void> refuseLaunches(int culpritRank, cudaStream_t stream, Deadline deadline) const;
  Result<uint64_t> readingBlocks(cudaStream_t stream, Deadline deadline) const;
  std::mutex endMutex_;  // guards ended_, and the board's last line
  bool ended_ = false;   // no kernel reads peers' buffers, and none will
};

class CudaExecutor final : public DeviceExecutor {
 public:
  CudaExecutor(const DeviceOptions& options, const Agreement& agreement,
               std::unique_ptr<Resources> resources);
  ~CudaExecutor() override;
  CudaExecutor(const CudaExecutor&) = delete;
  CudaExecutor& operator=(const CudaExecutor&) = delete;

  int device() const override { return options_.device; }
  const DeviceFacts& facts() const override { return facts_; }
  Result<void> fork(void* stream) override;
  Result<void> join(void* stream) override;
  Result<void> issue(const Collective& call, const void* deferredScalar, void* stream) override;
  Result<void> issue(const std::vector<PointToPoint>& calls, void* stream) override;
  Result<void> issue(const Collective& call, const pealAdamw_t& state, void* stream) override;
  std::optional<Fault> fault() override;
  void stop(int culpritRank, const std::string& reason) override;
  Result<void> drain(Deadline deadline) override;
  int liveGraphs() const override { return resources_->order->liveGraphs(); }
  Result<uint64_t> registerBuffer(const void* data, size_t bytes) override;
  Result<void> deregisterBuffer(uint64_t id, Deadline deadline) override;
  pealCommStats_t stats() override;

 private:
  // A side stream for a fork of this stream.
  Result<cudaStream_t> sideFor(const StreamState& user);
  // Where a call really goes: the user's stream, or its side stream between fork() and join().
  Result<StreamState> streamFor(void* stream) const;
  Result<void> check(const Collective& call, const void* deferredScalar) const;
  Result<void> check(const std::vector<PointToPoint>& calls) const;
  Result<void> awaitKernels(Deadline deadline);
  Result<void> flushProxy(Deadline deadline);
  void leaveInNeed(const Error& error);
  void endGraphs(Deadline deadline);
  template <class Kernel, class Args>
  Result<void> launch(const StreamState& state, Kernel kernel, int channels, int threads, Args& args);

  const DeviceOptions options_;
  const int threads_;
  std::unique_ptr<Resources> resources_;
  CommView view_{};
  DeviceFacts facts_;
  struct Forked {
    void* stream;
    cudaStream_t side;
  };
  std::vector<Forked> forked_;  // streams between fork() and join()
  bool unmarked_ = false;       // a kernel was launched whose end no mark tells; the call failed
  std::atomic<bool> stopped_{false};
  std::mutex seenMutex_;   // guards the page of Resources::seen
  std::mutex statsMutex_;  // guards stats_
  pealCommStats_t stats_{};
};

}  // namespace peal::cuda
