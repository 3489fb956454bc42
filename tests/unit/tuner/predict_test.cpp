// Predicted times against the simulator, which plays the recorded algorithms over links of the same cost.
#include "lib/tuner/predict.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "algorithms/record/simulator.h"
#include "peal/peal.h"
#include "tests/algorithms/shapes.h"

namespace peal::test {
using namespace record;

namespace {

// 1 Gbit/s between nodes; the simulator knows no gap.
const LinkTable kWithoutGap{{1, 0, 1.0 / 4000}, {40, 0, 1.0 / 125}};

double simulatedUs(AlgorithmId algorithm, const Choice& choice, const Grouping& nodes, size_t bytes) {
  const AlgorithmTraits promised = traitsOf(algorithm, nodes, choice.ahead);
  const Blocks blocks{bytes, promised.cut == Cut::Whole ? 1 : nodes.ranks, nullptr};
  NetworkModel model{kWithoutGap.inside.latencyUs, kWithoutGap.inside.usPerByte, 0, 4};
  model.between = {kWithoutGap.between.latencyUs, kWithoutGap.between.usPerByte};
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
                    AlgorithmId::RingBroadcast, AlgorithmId::RingReduce),
    nameOf);

}  // namespace
}  // namespace peal::test
