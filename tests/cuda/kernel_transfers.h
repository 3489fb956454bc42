// Groups of sends and receives on the simulated ranks of kernel_ranks.h.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "tests/cuda/kernel_ranks.h"

namespace peal::cuda::test {

// A message from rank to rank. Each rank posts its sends and receives in the order of the list, or backwards
// where its number is odd and `mixed` is set: only the order within a pair matters.
struct Transfer {
  int from, to;
  size_t bytes;
};
struct Group {
  std::vector<Transfer> transfers;
  bool mixed = false;
  bool references = false;
  size_t misalignment = 0;
  uint64_t seed = 1;
};

struct TransferBuffers {
  std::vector<Array> sent, received;  // of each transfer
};
TransferBuffers buffersFor(const Group& group);
// What a rank launches; nothing to do: a count of 0.
PointToPointArgs argsFor(const KernelRanks& ranks, const Group& group, const TransferBuffers& buffers,
                         int rank);

// Runs it on all ranks; empty if everything arrived.
std::string runGroup(KernelRanks& ranks, const Group& group);

}  // namespace peal::cuda::test
