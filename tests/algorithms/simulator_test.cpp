// Simulated times against the closed forms of the α–β model.
#include "algorithms/record/simulator.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "tests/algorithms/shapes.h"

namespace peal::test {
using namespace record;

namespace {

constexpr double kAlpha = 3.0;
constexpr double kBeta = 0.25;

double lastUs(const Operation& operation, RecordedAlgorithm run, const NetworkModel& model) {
  const std::vector<double> times = simulate(recordProgram(operation, run), model);
  return *std::max_element(times.begin(), times.end());
}

double lastUs(AlgorithmId algorithm, int ranks, size_t total, size_t chunkCount, const NetworkModel& model) {
  const AlgorithmTraits promised = traitsOf(algorithm, ranks);
  const Blocks blocks{total, promised.cut == Cut::Whole ? 1 : ranks, nullptr};
  return lastUs({promised.collective, ranks, ranks / 2, blocks, chunkCount}, recordedAlgorithm(algorithm),
                model);
}

// One round of even blocks: steps · α, and what the busiest way in or out of a rank passes.
TEST(Simulator, GivesTheClosedForms) {
  for (const int ranks : {1, 2, 3, 4, 7, 8, 16, 31}) {
    const double n = ranks;
    const size_t total = 40 * static_cast<size_t>(ranks);
    const double s = static_cast<double>(total);
    const NetworkModel model{kAlpha, kBeta, 0, 2};
    const auto us = [&](AlgorithmId algorithm) { return lastUs(algorithm, ranks, total, total, model); };
    const double hop = kAlpha + kBeta * s / n;
    const double some = ranks > 1 ? 1 : 0;
    EXPECT_DOUBLE_EQ(us(AlgorithmId::RingAllReduce), 2 * (n - 1) * hop) << n;
    EXPECT_DOUBLE_EQ(us(AlgorithmId::RingReduceScatter), (n - 1) * hop) << n;
    EXPECT_DOUBLE_EQ(us(AlgorithmId::RingAllGather), (n - 1) * hop) << n;
    EXPECT_DOUBLE_EQ(us(AlgorithmId::RingBroadcast), (n - 1) * (kAlpha + kBeta * s)) << n;
    EXPECT_DOUBLE_EQ(us(AlgorithmId::RingReduce), (n - 1) * (kAlpha + kBeta * s)) << n;
    EXPECT_DOUBLE_EQ(us(AlgorithmId::OneShotAllReduce), some * kAlpha + (n - 1) * kBeta * s) << n;
    EXPECT_DOUBLE_EQ(us(AlgorithmId::TwoShotAllReduce), some * 2 * kAlpha + 2 * (n - 1) * kBeta * s / n) << n;
    EXPECT_DOUBLE_EQ(us(AlgorithmId::DirectReduceScatter), some * kAlpha + (n - 1) * kBeta * s / n) << n;
    EXPECT_DOUBLE_EQ(us(AlgorithmId::DirectAllGather), some * kAlpha + (n - 1) * kBeta * s / n) << n;
    EXPECT_DOUBLE_EQ(us(AlgorithmId::DirectBroadcast), some * kAlpha + (n - 1) * kBeta * s) << n;
    EXPECT_DOUBLE_EQ(us(AlgorithmId::DirectReduce), some * kAlpha + (n - 1) * kBeta * s) << n;
  }
}

// A chain of N - 1 hops passes R chunks in N - 2 + R chunk times, if there are slots for those on their way.
TEST(Simulator, PipelinesRoundsThroughAChain) {
  const size_t chunk = 16, total = 16 * 10;
  for (const int ranks : {2, 3, 8}) {
    const double passUs = kBeta * static_cast<double>(chunk);
    const double want = (ranks - 1) * (kAlpha + passUs) + 9 * passUs;
    EXPECT_DOUBLE_EQ(lastUs(AlgorithmId::RingBroadcast, ranks, total, chunk, {kAlpha, kBeta, 0, 4}), want);
    EXPECT_DOUBLE_EQ(lastUs(AlgorithmId::RingReduce, ranks, total, chunk, {kAlpha, kBeta, 0, 4}), want);
    // One slot: a chunk leaves when the one before has arrived.
    EXPECT_DOUBLE_EQ(lastUs(AlgorithmId::RingBroadcast, 2, total, chunk, {kAlpha, kBeta, 0, 1}),
                     10 * (kAlpha + passUs));
  }
}

TEST(Simulator, AddsTheTimeOfReducing) {
  const NetworkModel model{kAlpha, kBeta, 0.5, 2};
  const size_t total = 40;  // in 4 blocks of 10
  EXPECT_DOUBLE_EQ(lastUs(AlgorithmId::RingReduceScatter, 4, total, total, model), 3 * (kAlpha + 2.5 + 5));
  EXPECT_DOUBLE_EQ(lastUs(AlgorithmId::OneShotAllReduce, 4, total, total, model), kAlpha + 3 * 10 + 3 * 20);
}

// Two levels: what the network passes, hidden behind each other over rounds, decides.
TEST(Simulator, SharesTheWayOfANode) {
  const Placement placement(Placement::byNode({2, 2}));
  const auto us = [&](AlgorithmId algorithm, size_t chunkCount, int ahead) {
    const AlgorithmTraits promised = traitsOf(algorithm, *placement, ahead);
    NetworkModel model{0.25, 0.0, 0.0, promised.slots};
    model.between = {kAlpha, kBeta};
    const Operation operation{promised.collective, 4,          0,    Blocks{640, 4, nullptr},
                              chunkCount,          *placement, ahead};
    const Program program = recordProgram(operation, recordedAlgorithm(algorithm), promised.stages);
    const std::vector<double> times = simulate(program, model);
    return *std::max_element(times.begin(), times.end());
  };
  // One round: inside, to the owner, and inside again; over the network each node passes half of the array to
  // be summed and half that is final, one rank's while the other's is on its way: so α counts once.
  const double passesUs = 640 * kBeta;
  EXPECT_DOUBLE_EQ(us(AlgorithmId::HierarchicalAllReduce, 160, 0), 2 * 0.25 + kAlpha + passesUs);
  // Ten rounds one after the other pay for that ten times, ahead only once or so.
  EXPECT_GE(us(AlgorithmId::HierarchicalAllReduce, 16, 0), 10 * kAlpha + passesUs);
  EXPECT_LE(us(AlgorithmId::HierarchicalAllReduce, 16, 1), 3 * (0.25 + kAlpha) + passesUs + 2 * 16 * kBeta);
  // Flat, the same array goes over the network as often as there are ranks in a node.
  EXPECT_GE(us(AlgorithmId::TwoShotAllReduce, 160, 0), 2 * passesUs);
}

// Why direct algorithms begin with the next rank: if all go from rank 0 to the last, one way in at a time is
// the bottleneck.
TEST(Simulator, ShowsWhatStaggeringGains) {
  const RecordedAlgorithm fromZero = [](RecordingPort& port, const RecordedCall& call) {
    const Round round{call.blocks, call.begin, call.chunkCount};
    for (int peer = 0; peer < port.size(); ++peer) {
      if (peer != port.rank()) {
        port.send(peer, round.chunk(peer));
      }
    }
    port.recvReduceAll(round.chunk(port.rank()));
  };
  const NetworkModel model{kAlpha, kBeta, 0, 2};
  const Operation operation{CollectiveKind::ReduceScatter, 8, 0, Blocks{320, 8, nullptr}, 320};
  const double staggered = lastUs(operation, recordedAlgorithm(AlgorithmId::DirectReduceScatter), model);
  EXPECT_DOUBLE_EQ(staggered, kAlpha + 7 * kBeta * 40);
  // Everybody's last message goes to rank 7 at the same time, and they pass its way in one by one.
  EXPECT_DOUBLE_EQ(lastUs(operation, fromZero, model), kAlpha + 6 * kBeta * 40 + 7 * kBeta * 40);
}

}  // namespace
}  // namespace peal::test
