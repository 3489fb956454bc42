// The algorithms that know nodes, for many numbers of nodes and of ranks on each, even and uneven, by node
// and round robin, flat included, against the checker; and that they need the slots that cost.h states.
#include <gtest/gtest.h>

#include <numeric>

#include "algorithms/record/checker.h"
#include "tests/algorithms/shapes.h"

namespace peal::test {
using namespace record;

namespace {

class OnNodes : public testing::TestWithParam<AlgorithmId> {
 protected:
  // Every shape and some roots. Full plays where they are cheap.
  void expectRight(const std::vector<int>& labels, int ahead) {
    const AlgorithmId algorithm = GetParam();
    const Placement placement(labels);
    const int ranks = placement->ranks;
    const AlgorithmTraits promised = traitsOf(algorithm, *placement, ahead);
    const Plays amount = ranks <= 6 && !HasFailure() ? Plays::Full : Plays::Sampled;
    int number = 0, checks = 0;
    for (const auto& shape : Shapes(promised.cut, ranks)) {
      ++number;
      // The work grows with the cube of ranks: a half or a third of the shapes, in turn, or some of the
      // roots.
      const int every = ranks > 24 ? 3 : ranks > 6 && !hasRoot(algorithm) ? 2 : 1;
      if (number % every != ranks % every) {
        continue;
      }
      for (const int root : rootsOf(algorithm, ranks)) {
        if (hasRoot(algorithm) && ranks > 6 && (root + number) % 4 != 0 && root != ranks - 1) {
          continue;
        }
        const Operation operation{promised.collective, ranks,      root, shape.blocks,
                                  shape.chunkCount,    *placement, ahead};
        const auto faults = check(algorithm, operation, recordedAlgorithm(algorithm),
                                  plays(promised, ranks, amount, ++seed_));
        ASSERT_TRUE(faults.empty()) << faults.size() << " faults, the first: " << faults[0].text;
        ++checks;
      }
    }
    ASSERT_GT(checks, 0);
  }

  void expectRightBothWays(const std::vector<int>& sizes, int ahead) {
    ASSERT_NO_FATAL_FAILURE(expectRight(Placement::byNode(sizes), ahead));
    ASSERT_NO_FATAL_FAILURE(expectRight(Placement::roundRobin(sizes), ahead));
  }

 private:
  uint64_t seed_ = 1;
};

TEST_P(OnNodes, IsRightForEvenNodes) {
  for (int nodes = 1; nodes <= 9; ++nodes) {
    for (int size = 1; nodes * size <= 24 && size <= 8; ++size) {
      const std::vector<int> sizes(static_cast<size_t>(nodes), size);
      ASSERT_NO_FATAL_FAILURE(expectRightBothWays(sizes, (nodes + size) % 2)) << nodes << " x " << size;
    }
  }
}

TEST_P(OnNodes, IsRightForUnevenNodes) {
  const std::vector<std::vector<int>> all = {{3, 1},          {1, 3},       {2, 1},    {1, 4},    {2, 5},
                                             {3, 2, 1},       {1, 2, 3},    {1, 1, 2}, {4, 1, 1}, {2, 3, 2},
                                             {1, 2, 1, 3, 1}, {5, 2, 3, 1}, {7, 3},    {3, 8}};
  for (const std::vector<int>& sizes : all) {
    for (const int ahead : {0, 1}) {
      ASSERT_NO_FATAL_FAILURE(expectRightBothWays(sizes, ahead));
    }
  }
  // No pattern at all.
  ASSERT_NO_FATAL_FAILURE(expectRight({4, 4, 0, 2, 0, 4, 2, 1, 0}, 1));
}

TEST_P(OnNodes, IsRightForManyRanks) {
  const std::vector<std::vector<int>> all = {{8, 8, 8, 8},
                                             std::vector<int>(16, 4),
                                             std::vector<int>(11, 3),
                                             {16, 16, 1, 16},
                                             {64, 64},
                                             std::vector<int>(16, 8),
                                             {30, 50, 48}};
  for (const std::vector<int>& sizes : all) {
    const int ranks = std::accumulate(sizes.begin(), sizes.end(), 0);
    ASSERT_LE(ranks, kMaxRecordedRanks);
    ASSERT_NO_FATAL_FAILURE(expectRight(Placement::byNode(sizes), ranks % 2));
    if (ranks <= 64) {
      ASSERT_NO_FATAL_FAILURE(expectRight(Placement::roundRobin(sizes), 1));
    }
  }
}

// Every rank a node of its own: the whole range, as for flat algorithms.
TEST_P(OnNodes, IsRightFlat) {
  for (int ranks = 1; ranks <= kMaxRecordedRanks; ranks += ranks < 36 ? 1 : 23) {
    const std::vector<int> sizes(static_cast<size_t>(ranks), 1);
    ASSERT_NO_FATAL_FAILURE(expectRight(Placement::byNode(sizes), ranks % 2)) << ranks;
  }
}

// Running far ahead needs the slots that cost.h counts, and no more.
TEST_P(OnNodes, DeadlocksWithFewerSlotsThanStated) {
  const AlgorithmId algorithm = GetParam();
  for (const std::vector<int>& sizes : {std::vector<int>{2, 2}, {1, 1}, {2, 2, 2}, {3, 1}}) {
    for (const int ahead : {0, 1, 2, 3}) {
      const Placement placement(Placement::byNode(sizes));
      const int ranks = placement->ranks;
      const AlgorithmTraits promised = traitsOf(algorithm, *placement, ahead);
      const Blocks blocks{40, promised.cut == Cut::Whole ? 1 : ranks, nullptr};
      const Operation operation{promised.collective, ranks, 0, blocks, 1, *placement, ahead};
      const Program program = recordProgram(operation, recordedAlgorithm(algorithm), promised.stages);
      const auto fault = Player(program).play({.slots = promised.slots});
      ASSERT_FALSE(fault.has_value()) << promised.name << ", ahead " << ahead << ": " << fault->text;
      if (promised.slots > 1) {
        const auto fewer = Player(program).play({.slots = promised.slots - 1});
        ASSERT_TRUE(fewer.has_value()) << promised.name << ", ahead " << ahead << " needs fewer slots";
        EXPECT_EQ(fewer->check, Check::Deadlock) << fewer->text;
      }
    }
  }
}

// On even nodes what crosses nodes goes from a rank to the one with its local rank on another: by rail.
void expectRails(AlgorithmId algorithm, const Grouping& nodes) {
  const AlgorithmTraits promised = traitsOf(algorithm, nodes, 1);
  const Blocks blocks{static_cast<size_t>(nodes.ranks) * 8, nodes.ranks, nullptr};
  const Operation operation{promised.collective, nodes.ranks, 0, blocks, 4, nodes, 1};
  const Program program = recordProgram(operation, recordedAlgorithm(algorithm), promised.stages);
  int crossings = 0;
  for (int rank = 0; rank < nodes.ranks; ++rank) {
    for (const Step& step : program.ranks[static_cast<size_t>(rank)]) {
      for (const int peer : {step.from, step.to}) {
        if (peer >= 0 && !nodes.sameNode(peer, rank)) {
          ++crossings;
          EXPECT_EQ(nodes.local(peer), nodes.local(rank))
              << promised.name << " of " << nodes.ranks << ", rank " << rank << ": " << text(step);
        }
      }
    }
  }
  EXPECT_GT(crossings, 0) << promised.name;
}

TEST(OnEvenNodes, MessagesBetweenNodesStayOnTheirRail) {
  for (const AlgorithmId algorithm :
       {AlgorithmId::HierarchicalAllReduce, AlgorithmId::HierarchicalReduceScatter,
        AlgorithmId::HierarchicalAllGather, AlgorithmId::HierarchicalRingAllReduce,
        AlgorithmId::HierarchicalRingReduceScatter, AlgorithmId::HierarchicalRingAllGather}) {
    for (const std::vector<int>& sizes : {std::vector<int>{2, 2}, {4, 4, 4}, {3, 3, 3, 3, 3}}) {
      expectRails(algorithm, *Placement(Placement::byNode(sizes)));
      expectRails(algorithm, *Placement(Placement::roundRobin(sizes)));
    }
  }
}

std::string nameOf(const testing::TestParamInfo<AlgorithmId>& info) { return traitsOf(info.param, 1).name; }

INSTANTIATE_TEST_SUITE_P(Algorithms, OnNodes, testing::ValuesIn(kNodeAlgorithms), nameOf);

}  // namespace
}  // namespace peal::test
