// Several ranks' kernels on the simulator, in one process and on one thread, so that every run can be
// repeated: windows, boards, counters and buffers straight from the simulator's memory, without the CUDA
// runtime and without the executor. Used by the kernels' tests and by their mutants.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "algorithms/grouping.h"
#include "lib/executor/cuda/kernels.h"
#include "lib/executor/cuda/view.h"
#include "tests/cudasim/core/buffer.h"
#include "tests/cudasim/core/run.h"

namespace peal::cuda::test {

struct RanksOptions {
  int ranks = 2, channels = 1, slots = 2;
  uint32_t slotBytes = 640, lowSlotBytes = 1152;
  uint32_t threads = 64;
  uint64_t timeoutMs = 10000;
  uint64_t messagesBefore = 0;  // as if so many had passed on every link
  std::vector<int> nodes{};     // of each rank the number of its node; empty: all are on one
};

// The ranks of one communicator. Counters persist from run to run, as between launches.
class KernelRanks {
 public:
  explicit KernelRanks(const RanksOptions& options);

  const RanksOptions& options() const { return options_; }
  int size() const { return options_.ranks; }
  const BoxShape& shape() const { return shape_.box; }
  // As algorithms that know nodes see it: on one node every rank is one of its own.
  Grouping grouping() const { return grouping_.nodes > 1 ? grouping_ : Grouping::apart(size()); }
  CommView view(int rank) const;
  HostBoard& board(int rank) { return *boards_[static_cast<size_t>(rank)].host<HostBoard>(); }
  const FaultRecord& fault(int rank) { return board(rank).fault; }

  // One grid for each rank, all together. kernels[rank]: what every thread of the rank calls; empty: the rank
  // launches nothing.
  cudasim::RunResult run(const std::vector<std::function<void()>>& kernels);
  // As after a run in which everybody did its part: what a trap or a fault reported, or empty.
  std::string complaint(const cudasim::RunResult& result);

 private:
  RanksOptions options_;
  WindowShape shape_;
  std::vector<int> table_;  // of grouping_
  Grouping grouping_;
  std::vector<cudasim::DeviceBuffer> windows_, channels_, boards_, tables_;
};

// An array of a rank. It ends where the allocation ends, so that a kernel that goes beyond is caught; in
// front of it lie bytes that must not change.
class Array {
 public:
  Array(int rank, size_t bytes, size_t misalignment = 0);
  std::byte* device() const { return buffer_.device(front_); }
  std::byte* host() const { return buffer_.host(front_); }
  size_t bytes() const { return buffer_.bytes() - front_; }
  bool frontIntact() const;

 private:
  size_t front_;
  cudasim::DeviceBuffer buffer_;
};

std::string describe(const FaultRecord& fault);
const char* protocolName(Protocol protocol);

}  // namespace peal::cuda::test
