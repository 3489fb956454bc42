// Every algorithm, for every number of ranks from 1 to 128, against the checker; and that the conditions
// which the headers state are needed.
#include <gtest/gtest.h>

#include "algorithms/record/checker.h"
#include "tests/algorithms/shapes.h"

namespace peal::test {
using namespace record;

namespace {

// Which plays, by ranks: all of them where they are cheap.
Plays playsFor(int ranks) { return ranks <= 9 ? Plays::Full : Plays::Sampled; }

class EveryAlgorithm : public testing::TestWithParam<AlgorithmId> {};

TEST_P(EveryAlgorithm, IsRightForOneTo128Ranks) {
  const AlgorithmId algorithm = GetParam();
  uint64_t seed = 1;
  for (int ranks = 1; ranks <= kMaxRecordedRanks; ++ranks) {
    const AlgorithmTraits promised = traitsOf(algorithm, ranks);
    int number = 0;
    for (const auto& shape : Shapes(promised.cut, ranks)) {
      if (ranks > 64 && ++number % 2 != ranks % 2) {
        continue;  // the work grows with the cube of ranks: half of the shapes, in turn
      }
      for (const int root : rootsOf(algorithm, ranks)) {
        const Operation operation{promised.collective, ranks, root, shape.blocks, shape.chunkCount};
        const auto faults = check(algorithm, operation, recordedAlgorithm(algorithm),
                                  plays(promised, ranks, playsFor(ranks), ++seed));
        ASSERT_TRUE(faults.empty()) << faults.size() << " faults, the first: " << faults[0].text;
      }
    }
  }
}

// The fewest slots of cost.h are the fewest: with one less every such algorithm deadlocks.
TEST_P(EveryAlgorithm, DeadlocksWithFewerSlotsThanStated) {
  const AlgorithmId algorithm = GetParam();
  for (int ranks = 1; ranks <= 16; ++ranks) {
    const AlgorithmTraits promised = traitsOf(algorithm, ranks);
    const int slots = promised.slots - 1;
    ASSERT_LE(slots, 1) << "at " << ranks << " ranks";
    if (slots == 0) {
      continue;
    }
    const Operation operation{promised.collective, ranks, 0, Blocks{40, ranks, nullptr}, 40};
    const Program program = recordProgram(operation, recordedAlgorithm(algorithm));
    const auto fault = Player(program).play({.slots = slots});
    ASSERT_TRUE(fault.has_value()) << promised.name << " at " << ranks << " ranks needs one slot only";
    EXPECT_EQ(fault->check, Check::Deadlock) << fault->text;
  }
}

// Where cost.h asks for bytes in place, references do deadlock.
TEST_P(EveryAlgorithm, DeadlocksWithReferencesInPlaceOnlyWhereStated) {
  const AlgorithmId algorithm = GetParam();
  for (int ranks = 2; ranks <= 16; ++ranks) {
    const AlgorithmTraits promised = traitsOf(algorithm, ranks);
    const int blockCount = promised.cut == Cut::Whole ? 1 : ranks;
    const Operation operation{promised.collective, ranks, 0, Blocks{40, blockCount, nullptr}, 40};
    const Program program = recordProgram(operation, recordedAlgorithm(algorithm));
    const auto fault = Player(program).play(
        {.slots = promised.slots, .buffers = Buffers::InPlace, .sends = Sends::References});
    const bool deadlock = fault.has_value() && fault->check == Check::Deadlock;
    EXPECT_EQ(deadlock, promised.inPlaceSend == InPlaceSend::BytesOnly) << promised.name << ", " << ranks;
  }
}

std::string nameOf(const testing::TestParamInfo<AlgorithmId>& info) { return traitsOf(info.param, 1).name; }

INSTANTIATE_TEST_SUITE_P(Algorithms, EveryAlgorithm, testing::ValuesIn(kFlatAlgorithms), nameOf);

}  // namespace
}  // namespace peal::test
