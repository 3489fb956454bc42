// In which order launches run: those of one communicator one after the other, whatever their streams; those
// of different communicators that one thread uses on one device in the order of its calls. Made of CUDA
// events only; the host keeps no place in any queue, so captured launches are ordered in the same way.
//
// Why the second: kernels wait for their peers. If two communicators' kernels could start in any order, each
// might hold the multiprocessors that the other's peer needs. Ranks of one communicator on one device never
// wait for each other: they run together.
//
// A Mark is the end of the newest launch of one rank, outside of captures or in one of them. A Chain is what
// one thread launched on one device, likewise. Inside a capture only marks of that capture are waited for.
#pragma once
#include <cuda_runtime.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "lib/base/result.h"
#include "lib/memory/cuda.h"

namespace peal::cuda {

// A stream at the moment of a call.
struct StreamState {
  cudaStream_t stream = nullptr;
  unsigned long long capture = 0;  // its id; 0: not capturing
  cudaGraph_t graph = nullptr;     // being captured
};

class Mark {
 public:
  static Result<std::shared_ptr<Mark>> make(int device);
  // What is issued to the stream from now on comes after what the mark was last recorded behind. Nothing, if
  // it never was or its owner is gone.
  Result<void> awaitOn(cudaStream_t stream);
  Result<void> recordOn(cudaStream_t stream);
  Result<bool> happened();
  // Its communicator is gone, or its graph.
  void end();
  bool ended() const { return ended_.load(std::memory_order_acquire); }  // pairs with end()'s store

 private:
  std::mutex mutex_;  // guards event_ and recorded_: a thread's chain may outlive the communicator
  Event event_;
  bool recorded_ = false;
  std::atomic<bool> ended_{false};
};

// A graph under capture that holds launches of one rank, until it and its instances are destroyed.
struct CapturedGraph {
  unsigned long long capture = 0;
  std::shared_ptr<Mark> mark;
  std::atomic<bool> destroyed{false};  // stored (release) by the graph's user object; loaded (acquire) here
};

// The order of one rank's launches.
class LaunchOrder {
 public:
  // `communicator` tells communicators apart.
  static Result<std::unique_ptr<LaunchOrder>> make(int device, uint64_t communicator);
  ~LaunchOrder();
  LaunchOrder(const LaunchOrder&) = delete;
  LaunchOrder& operator=(const LaunchOrder&) = delete;

  // Around a launch on that stream. If the launch fails, after() is not called.
  Result<void> before(const StreamState& state);
  Result<void> after(const StreamState& state);

  // Whether all launches outside of captures have ended.
  Result<bool> idle() { return mark_->happened(); }
  int liveGraphs() const;

 private:
  LaunchOrder(int device, uint64_t communicator) : device_(device), communicator_(communicator) {}
  Result<std::shared_ptr<Mark>> markFor(const StreamState& state);

  const int device_;
  const uint64_t communicator_;
  std::shared_ptr<Mark> mark_;  // of launches outside of captures
  mutable std::mutex mutex_;    // guards graphs_: liveGraphs() may come from any thread
  std::vector<std::shared_ptr<CapturedGraph>> graphs_;
};

}  // namespace peal::cuda
