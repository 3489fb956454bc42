// Predicted times against the simulator, which plays the recorded algorithms over links of the same cost.
#include "lib/tuner/predict.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "algorithms/record/simulator.h"
#include "lib/topology/described.h"
#include "lib/tuner/links_file.h"
#include "peal/peal.h"
#include "tests/algorithms/shapes.h"

namespace peal::test {
using namespace record;

namespace {

// 1 Gbit/s between nodes; the simulator knows no gap.
const LinkTable kWithoutGap{{1, 0, 1.0 / 4000}, {40, 0, 1.0 / 125}};

double simulatedUs(AlgorithmId algorithm, const Choice& choice, const Grouping& nodes, size_t bytes,
                   const LinkTable& links = kWithoutGap) {
  const AlgorithmTraits promised = traitsOf(algorithm, nodes, choice.ahead);
  const Blocks blocks{bytes, promised.cut == Cut::Whole ? 1 : nodes.ranks, nullptr};
  NetworkModel model{links.inside.latencyUs, links.inside.usPerByte, 0, 4};
  model.between = {links.between.latencyUs, links.between.usPerByte};
  const Operation operation{promised.collective, nodes.ranks, 0,           blocks,
                            choice.chunkBytes,   nodes,       choice.ahead};
  const Program program = recordProgram(operation, recordedAlgorithm(algorithm), promised.stages);
  const std::vector<double> times = simulate(program, model);
  return *std::max_element(times.begin(), times.end());
}

class Predicted : public testing::TestWithParam<AlgorithmId> {};

// The prediction must rank algorithms, not replace the simulator: within a factor of two everywhere.
TEST_P(Predicted, IsNearTheSimulatedTime) {
  const AlgorithmId algorithm = GetParam();
  double worst = 1;
  for (const std::vector<int>& sizes : {std::vector<int>{1, 1}, {2, 2}, {4, 4}, {2, 2, 2}, {3, 1}}) {
    for (const auto& labels : {Placement::byNode(sizes), Placement::roundRobin(sizes)}) {
      const Placement placement(labels);
      for (const size_t bytes : {size_t{64}, size_t{8192}, size_t{262144}, size_t{4} << 20}) {
        for (const int ahead : {0, 1}) {
          const Choice choice{.chunkBytes = 65536, .ahead = ahead};
          const double predicted = Prediction(algorithm, *placement, bytes).us(choice, kWithoutGap);
          const double simulated = simulatedUs(algorithm, choice, *placement, bytes);
          ASSERT_GT(simulated, 0);
          const double ratio = predicted / simulated;
          worst = std::max({worst, ratio, 1 / ratio});
          EXPECT_LT(ratio, 2.0) << bytes << " bytes, " << placement->nodes << " nodes, ahead " << ahead
                                << ": " << predicted << " us predicted, " << simulated << " simulated";
          EXPECT_GT(ratio, 0.5) << bytes << " bytes, " << placement->nodes << " nodes, ahead " << ahead
                                << ": " << predicted << " us predicted, " << simulated << " simulated";
        }
      }
    }
  }
  RecordProperty("worst_factor", std::to_string(worst));
}

// The simulator of time on a described cluster: what the file says of its links decides what is quicker.
TEST(Described, TopologiesGiveTheSimulatorItsLinks) {
  const auto linksOf = [](const std::string& between) {
    const Result<Topology> topology = parseTopology(
        R"({"format": "peal-topology-1", "insideNode": {"gigabytesPerSecond": 8, "latencyUs": 2})" + between +
            R"(, "nodes": [{"name": "a", "count": 2, "ranks": 4,
                            "nics": [{"interface": "eth0", "speedMbps": 1000},
                                     {"interface": "eth1", "speedMbps": 1000},
                                     {"interface": "mgmt", "speedMbps": 1000, "idle": "for management"}]}]})",
        "test");
    EXPECT_TRUE(topology) << topology.error().message;
    return describedLinks(*topology, kWithoutGap);
  };
  const LinkTable byNics = linksOf("");
  EXPECT_DOUBLE_EQ(byNics.inside.usPerByte, 1.0 / 8000);
  EXPECT_DOUBLE_EQ(byNics.inside.latencyUs, 2);
  EXPECT_DOUBLE_EQ(byNics.between.usPerByte, 1.0 / 250);  // two NICs of 1 Gbit/s
  EXPECT_DOUBLE_EQ(byNics.between.latencyUs, kWithoutGap.between.latencyUs);
  const LinkTable fast = linksOf(R"(, "betweenNodes": {"gigabytesPerSecond": 2, "latencyUs": 3})");
  EXPECT_DOUBLE_EQ(fast.between.usPerByte, 1.0 / 8000);  // of each of four ranks
  EXPECT_DOUBLE_EQ(fast.between.latencyUs, 3);

  const Placement placement(Placement::byNode({4, 4}));
  const Choice choice{.chunkBytes = 65536, .ahead = 1};
  constexpr size_t kBytes = 4 << 20;
  const auto us = [&](AlgorithmId algorithm, const LinkTable& links) {
    return simulatedUs(algorithm, choice, *placement, kBytes, links);
  };
  // Between slow nodes each element crosses once each way instead of 7/4 times; between fast ones that gains
  // less.
  const double slowGain =
      us(AlgorithmId::RingAllReduce, byNics) / us(AlgorithmId::HierarchicalAllReduce, byNics);
  const double fastGain = us(AlgorithmId::RingAllReduce, fast) / us(AlgorithmId::HierarchicalAllReduce, fast);
  EXPECT_GT(slowGain, 1.3);
  EXPECT_LT(fastGain, slowGain);
  EXPECT_GT(us(AlgorithmId::HierarchicalAllReduce, byNics), kBytes * byNics.between.usPerByte);
  EXPECT_LT(us(AlgorithmId::HierarchicalAllReduce, fast), us(AlgorithmId::HierarchicalAllReduce, byNics));
}

std::string nameOf(const testing::TestParamInfo<AlgorithmId>& info) { return traitsOf(info.param, 1).name; }

INSTANTIATE_TEST_SUITE_P(
    Algorithms, Predicted,
    testing::Values(AlgorithmId::HierarchicalAllReduce, AlgorithmId::HierarchicalReduceScatter,
                    AlgorithmId::HierarchicalAllGather, AlgorithmId::HierarchicalBroadcast,
                    AlgorithmId::HierarchicalReduce, AlgorithmId::DoublingAllReduce,
                    AlgorithmId::TreeBroadcast, AlgorithmId::TreeReduce, AlgorithmId::OneShotAllReduce,
                    AlgorithmId::TwoShotAllReduce, AlgorithmId::DirectReduceScatter,
                    AlgorithmId::DirectAllGather, AlgorithmId::DirectBroadcast, AlgorithmId::DirectReduce,
                    AlgorithmId::RingAllReduce, AlgorithmId::RingReduceScatter, AlgorithmId::RingAllGather,
                    AlgorithmId::RingBroadcast, AlgorithmId::RingReduce,
                    AlgorithmId::HierarchicalRingAllReduce, AlgorithmId::HierarchicalRingReduceScatter,
                    AlgorithmId::HierarchicalRingAllGather),
    nameOf);

}  // namespace
}  // namespace peal::test
