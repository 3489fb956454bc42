// The kernel of the algorithms that know nodes, hierarchical ones and trees, on simulated ranks: even and
// uneven nodes, by node and round robin, and trees on one node; all types and operations; the fewest slots,
// and stages that run ahead. Bit for bit the sums in the order that the algorithms state.
#include <gtest/gtest.h>

#include <algorithm>
#include <iterator>
#include <random>
#include <string>
#include <vector>

#include "lib/reduce/reduce.h"
#include "tests/cuda/draws.h"
#include "tests/cuda/kernel_collectives.h"
#include "tests/cuda/kernel_modes.h"

namespace peal::cuda::test {
namespace {

struct LevelText {
  int kind;
  Algorithm algorithm;
};
constexpr LevelText kLevelTexts[] = {
    {pealStatAllReduce, Algorithm::Hierarchical}, {pealStatReduceScatter, Algorithm::Hierarchical},
    {pealStatAllGather, Algorithm::Hierarchical}, {pealStatBroadcast, Algorithm::Hierarchical},
    {pealStatReduce, Algorithm::Hierarchical},    {pealStatAllReduce, Algorithm::Tree},
    {pealStatBroadcast, Algorithm::Tree},         {pealStatReduce, Algorithm::Tree},
    {pealStatBarrier, Algorithm::Tree},
};

bool addsUp(int kind) {
  return kind == pealStatAllReduce || kind == pealStatReduceScatter || kind == pealStatReduce;
}

// How far stages may run ahead with so many slots (hierarchical.h).
int mostAhead(const LevelText& text, int slots) {
  if (text.algorithm == Algorithm::Tree) {
    return 0;
  }
  return text.kind == pealStatAllReduce ? (slots - 1) / 2 : slots - 1;
}

size_t below(std::mt19937_64& random, size_t limit) { return random() % limit; }

CollectiveCase drawn(const LevelText& text, const KernelRanks& ranks, std::mt19937_64& random) {
  static constexpr size_t kMisalignments[] = {0, 0, 0, 8, 4, 1};
  const auto size = static_cast<size_t>(ranks.size());
  CollectiveCase test;
  test.kind = text.kind;
  test.algorithm = text.algorithm;
  test.type = below(random, 2) == 0 ? pealFloat32 : static_cast<pealDataType_t>(below(random, pealNumTypes));
  if (addsUp(text.kind)) {
    test.op = static_cast<pealRedOp_t>(below(random, pealNumOps));
    test.preMultiply = test.op == pealSum && below(random, 3) == 0;
  }
  test.root = static_cast<int>(below(random, size));
  test.inPlace = below(random, 2) == 0;
  test.references = below(random, 2) == 0;
  test.misalignment = kMisalignments[below(random, std::size(kMisalignments))];
  test.seed = random();
  const int ahead = mostAhead(text, ranks.options().slots);
  test.ahead = static_cast<int>(below(random, static_cast<size_t>(ahead) + 1));
  if (text.kind == pealStatBarrier) {
    return test;
  }
  const size_t chunk = ranks.shape().payloadBytes(Protocol::Simple) / elementBytes(test.type);
  const bool perRank = text.kind == pealStatAllReduce && text.algorithm == Algorithm::Hierarchical;
  const size_t round = chunk * (perRank ? size : 1);
  const size_t counts[] = {0, 1, round, round + 1, 3 * round + 13};
  test.count = counts[below(random, std::size(counts))];
  if ((text.kind == pealStatReduceScatter || text.kind == pealStatAllGather) && below(random, 3) == 0) {
    test.starts.push_back(0);
    for (size_t rank = 0; rank < size; ++rank) {
      test.starts.push_back(test.starts.back() + (below(random, 4) == 0 ? 0 : below(random, 2 * chunk)));
    }
  }
  return test;
}

class Levels : public testing::TestWithParam<std::vector<int>> {};

TEST_P(Levels, GiveTheBitsOfTheirOrder) {
  const std::vector<int>& nodes = GetParam();
  const bool severalNodes = *std::max_element(nodes.begin(), nodes.end()) > 0;
  int world = 0;
  for (const int slots : {1, 3}) {
    for (const int channels : {1, 2}) {
      RanksOptions options{
          .ranks = static_cast<int>(nodes.size()), .channels = channels, .slots = slots, .nodes = nodes};
      options.slotBytes = slots == 3 ? 4480 : 640;  // large enough for references, or not
      KernelRanks ranks(options);
      std::mt19937_64 random(static_cast<uint64_t>(100 * options.ranks + world));
      for (const LevelText& text : kLevelTexts) {
        if (text.algorithm == Algorithm::Hierarchical && !severalNodes) {
          continue;
        }
        for (int i = 0; i < kTestDraws; ++i) {
          const CollectiveCase test = drawn(text, ranks, random);
          const auto mode = static_cast<Mode>(world++ % kModes);
          const InMode inMode(mode, static_cast<int64_t>(random() >> 32));
          const std::string wrong = runCase(ranks, test);
          ASSERT_TRUE(wrong.empty()) << describe(test) << ": " << wrong << " (" << slots << " slots, "
                                     << channels << " channels, mode " << kModeNames[static_cast<int>(mode)]
                                     << ")";
        }
      }
    }
  }
}
INSTANTIATE_TEST_SUITE_P(Nodes, Levels,
                         testing::Values(std::vector<int>{0, 0, 1, 1}, std::vector<int>{0, 0, 1},
                                         std::vector<int>{0, 1, 0, 1, 1, 2}, std::vector<int>{0, 1, 2},
                                         std::vector<int>{0, 0, 0, 0, 0, 1, 1, 1},
                                         std::vector<int>{0, 0, 0, 0, 0}, std::vector<int>{0}),
                         [](const auto& row) {
                           std::string name = "On";
                           for (const int node : row.param) {
                             name += std::to_string(node);
                           }
                           return name;
                         });

// Every type and operation, pre-multiplied too.
TEST(LevelTypes, ReduceAlike) {
  KernelRanks ranks({.ranks = 3, .channels = 1, .slots = 1, .nodes = {0, 0, 1}});
  for (int type = 0; type < pealNumTypes; ++type) {
    for (int op = 0; op <= pealNumOps; ++op) {  // the last: a pre-multiplied sum
      for (const Algorithm algorithm : {Algorithm::Hierarchical, Algorithm::Tree}) {
        CollectiveCase test;
        test.algorithm = algorithm;
        test.type = static_cast<pealDataType_t>(type);
        test.preMultiply = op == pealNumOps;
        test.op = test.preMultiply ? pealSum : static_cast<pealRedOp_t>(op);
        test.count = 101;
        test.seed = static_cast<uint64_t>(type * 100 + op);
        const std::string wrong = runCase(ranks, test);
        EXPECT_TRUE(wrong.empty()) << describe(test) << ": " << wrong;
      }
    }
  }
}

// A term that does not come ends the operation, for every thread.
TEST(LevelFaults, AMissingTermMeetsTheDeadline) {
  KernelRanks ranks({.ranks = 3, .slots = 1, .timeoutMs = 20, .nodes = {0, 0, 1}});
  CollectiveCase test;
  test.algorithm = Algorithm::Hierarchical;
  test.count = 300;
  const Buffers buffers = buffersFor(ranks, test);
  std::vector<std::function<void()>> kernels(3);
  for (int rank = 0; rank < 2; ++rank) {
    kernels[static_cast<size_t>(rank)] = kernelFor(test, argsFor(ranks, test, buffers, rank));
  }
  const cudasim::RunResult result = ranks.run(kernels);
  ASSERT_TRUE(result.ok()) << result.text;
  const FaultRecord& first =
      ranks.fault(0).kind == static_cast<uint64_t>(FaultKind::Deadline) ? ranks.fault(0) : ranks.fault(1);
  EXPECT_EQ(first.kind, static_cast<uint64_t>(FaultKind::Deadline));
  EXPECT_EQ(first.peerRank, 2);
}

}  // namespace
}  // namespace peal::cuda::test
