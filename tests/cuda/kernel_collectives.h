// Collectives on the simulated ranks of kernel_ranks.h, compared bit for bit with a plain loop over the ranks
// that sums in the order in which the algorithm does.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "algorithms/choice.h"
#include "peal/peal.h"
#include "tests/cuda/kernel_ranks.h"

namespace peal::cuda::test {

struct CollectiveCase {
  int kind = pealStatAllReduce;
  Algorithm algorithm = Algorithm::Ring;
  Protocol protocol = Protocol::Simple;
  pealDataType_t type = pealFloat32;
  pealRedOp_t op = pealSum;
  bool preMultiply = false;
  size_t count = 0;            // as the API counts: per rank where the collective is scattered
  std::vector<size_t> starts;  // v-forms
  int root = 0;
  bool inPlace = false;
  bool references = false;  // peers may read the buffers
  size_t misalignment = 0;  // of all buffers, in bytes
  size_t chunkCount = 0;    // 0: as much as a message holds
  int ahead = 0;            // rounds that earlier stages run ahead
  uint64_t seed = 1;        // of the data
};

// Runs it on all ranks; empty if all is as it should be, else what is not.
std::string runCase(KernelRanks& ranks, const CollectiveCase& test);
std::string describe(const CollectiveCase& test);

// The pieces, for tests that change one rank's arguments. inputs, outputs: arrays of each rank.
struct Buffers {
  std::vector<Array> in, out;  // in place: `in` is empty
};
Buffers buffersFor(const KernelRanks& ranks, const CollectiveCase& test);
CollectiveArgs argsFor(const KernelRanks& ranks, const CollectiveCase& test, const Buffers& buffers,
                       int rank);
std::function<void()> kernelFor(const CollectiveCase& test, const CollectiveArgs& args);

}  // namespace peal::cuda::test
