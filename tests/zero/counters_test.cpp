// The engine on real ranks: what it counts and what it allocates equal the formulas, the planner, and what
// the communicator counted.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <map>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "tests/zero/arenas.h"
#include "tests/zero/before.h"
#include "tests/zero/breadth.h"
#include "tests/zero/ranks.h"

namespace peal::zero::test {
namespace {

pealZeroOptions_t countedOptions(int stage, size_t bucketBytes, int microBatches = 1) {
  pealZeroOptions_t options = defaultOptions();
  options.stage = stage;
  options.bucketBytes = bucketBytes;
  options.microBatches = microBatches;
  return options;
}

// Sums over the ranks of what the engine counted, per step.
std::map<int, uint64_t> countedElements(int ranks, const pealZeroOptions_t& options, const Shape& shape,
                                        const std::vector<int>& kept,
                                        std::vector<uint64_t>* calls = nullptr) {
  constexpr uint64_t kSteps = 3;
  std::vector<pealZeroCounters_t> counted(static_cast<size_t>(ranks));
  onRanks(ranks, [&](int rank, pealComm_t comm) {
    Trainer trainer(comm, rank, options, shape, kept);
    for (uint64_t i = 0; i < kSteps; ++i) {
      trainer.step();
    }
    counted[static_cast<size_t>(rank)] = trainer.engine().counters();
  });
  std::map<int, uint64_t> sums;
  for (const int counter : {pealZeroAllReduce, pealZeroReduceScatter, pealZeroAllGather, pealZeroControl}) {
    for (const pealZeroCounters_t& rank : counted) {
      EXPECT_EQ(rank.steps, kSteps);
      EXPECT_EQ(rank.calls[counter], counted[0].calls[counter]);
      EXPECT_EQ(rank.elementsSent[counter] * (counter == pealZeroControl ? 8 : 2), rank.bytesSent[counter]);
      sums[counter] += rank.elementsSent[counter];
    }
    EXPECT_EQ(sums[counter] % kSteps, 0u);
    sums[counter] /= kSteps;
    if (calls != nullptr) {
      calls->push_back(counted[0].calls[counter] / kSteps);
    }
  }
  return sums;
}

TEST(Counters, EqualTheFormulas) {
  const Shape shape = unevenShape();
  uint64_t psi = 0;
  for (const ModelParameter& parameter : shape) {
    psi += parameter.elements;
  }
  for (const int ranks : rankCounts({1, 2, 3, 4, 5, 7})) {
    const auto others = static_cast<uint64_t>(ranks - 1);
    for (const uint64_t m : {1, 3}) {
      for (const size_t bucketBytes : {size_t{2}, size_t{150}, size_t{1} << 20}) {
        for (int stage = 0; stage <= 3; ++stage) {
          SCOPED_TRACE(fmt::format("{} ranks, stage {}, {} micro-batches, buckets of {} bytes", ranks, stage,
                                   m, bucketBytes));
          const pealZeroOptions_t options = countedOptions(stage, bucketBytes, static_cast<int>(m));
          const auto sums = countedElements(ranks, options, shape, {});
          const uint64_t reductions = stage <= 1 ? 1 : m;
          EXPECT_EQ(sums.at(pealZeroAllReduce), stage == 0 ? 2 * others * psi : 0);
          EXPECT_EQ(sums.at(pealZeroReduceScatter), stage == 0 ? 0 : reductions * others * psi);
          EXPECT_EQ(sums.at(pealZeroAllGather), stage == 0   ? 0
                                                : stage <= 2 ? others * psi
                                                             : 2 * m * others * psi);
          // The planner says the same, as a mean over ranks.
          pealZeroPlanInput_t input = defaultPlanInput();
          input.parameters = psi;
          input.ranks = ranks;
          input.microBatches = static_cast<int64_t>(m);
          const pealZeroPlanStage_t row = plan(input).stages[stage];
          const uint64_t all =
              sums.at(pealZeroAllReduce) + sums.at(pealZeroReduceScatter) + sums.at(pealZeroAllGather);
          EXPECT_NEAR(row.bytesSent * ranks, static_cast<double>(2 * all), 1e-6);
          EXPECT_EQ(row.elements, static_cast<double>(psi) * static_cast<double>(stage <= 1   ? 2
                                                                                 : stage == 2 ? m + 1
                                                                                              : 3 * m));
        }
      }
    }
  }
}

TEST(Counters, CallsAtStage3AndWithoutReshard) {
  const Shape shape = unevenShape();  // five units
  for (const int prefetch : {0, 1}) {
    pealZeroOptions_t options = countedOptions(3, 1 << 20, 2);
    options.prefetchDepth = prefetch;
    std::vector<uint64_t> calls;
    countedElements(2, options, shape, {}, &calls);
    EXPECT_EQ(calls[1], 2u * 5u);       // reduce-scatters
    EXPECT_EQ(calls[2], 2u * 2u * 5u);  // all-gathers
    calls.clear();
    countedElements(2, options, shape, {2, 4}, &calls);
    EXPECT_EQ(calls[1], 2u * 5u);
    EXPECT_EQ(calls[2], 2u * (2u * 5u - 2u));
    calls.clear();
    const auto sums = countedElements(2, options, shape, {0, 1, 2, 3, 4}, &calls);
    EXPECT_EQ(calls[2], 2u * 5u);
    EXPECT_EQ(sums.at(pealZeroAllGather) + sums.at(pealZeroReduceScatter), 2u * 2u * 489u);  // 2m psi
  }
}

struct CountedWay {
  std::string name;
  pealZeroOptions_t options;
  Shape shape;
  bool announces = false;
};

// Buckets whose all-reduce the tuner would make in one shot, and such that it would not; groups; fused steps.
std::vector<CountedWay> countedWays(int ranks) {
  std::vector<CountedWay> ways;
  const Shape large{{40'000, 0},
                    {7, 1}};  // 80 KB of bf16: above one shot's limit at any number of ranks here
  for (const auto& [name, shape] :
       {std::pair<std::string, Shape>{"small", unevenShape()}, {"large", large}}) {
    for (int stage = 0; stage <= 3; ++stage) {
      ways.push_back({fmt::format("stage {}, {}", stage, name), countedOptions(stage, 100, 2), shape});
      if (ranks % 2 == 0 && stage > 0) {
        ways.push_back(
            {fmt::format("stage {} in groups, {}", stage, name), countedOptions(stage, 100, 2), shape});
        ways.back().options.shardGroup = ranks / 2;
      }
    }
    ways.push_back({"stage 0 in fp32, " + name, countedOptions(0, 100), shape});
    ways.back().options.reduceType = pealZeroReduceFp32;
    for (const int stage : {1, 2}) {
      ways.push_back(
          {fmt::format("stage {}, fused, {}", stage, name), countedOptions(stage, 100), shape, true});
      ways.back().options.skipNonFinite = 0;
    }
  }
  return ways;
}

uint64_t totalOf(const uint64_t* bytes, int count) {
  return std::accumulate(bytes, bytes + count, uint64_t{0});
}

// What the communicators themselves counted at their links, rank by rank, is what the engine says it sent.
TEST(Counters, AgreeWithTheCommunicators) {
  for (const int ranks : rankCounts({2, 3, 4, 5})) {
    for (const CountedWay& way : countedWays(ranks)) {
      onRanks(ranks, [&](int rank, pealComm_t comm) {
        const std::string what = fmt::format("rank {} of {}, {}", rank, ranks, way.name);
        Trainer trainer(comm, rank, way.options, way.shape);
        trainer.announces = way.announces;
        const Engine& engine = trainer.engine();
        const pealZeroCounters_t first = engine.counters();
        const pealCommStats_t before = sentByLinks(engine.handle());
        uint64_t fused = 0;
        for (int step = 0; step < 2; ++step) {
          fused += trainer.step().fusedBuckets;
        }
        const pealCommStats_t after = sentByLinks(engine.handle());
        const pealZeroCounters_t counted = engine.counters();
        EXPECT_EQ(fused > 0, way.announces) << what;
        EXPECT_EQ(
            totalOf(after.bytesSent, pealNumStats) - totalOf(before.bytesSent, pealNumStats),
            totalOf(counted.bytesSent, pealZeroNumCounters) - totalOf(first.bytesSent, pealZeroNumCounters))
            << what;
        if (fused > 0 || way.options.shardGroup != 0) {
          return;  // the communicators have other names for these
        }
        const auto sent = [&](int counter) { return counted.bytesSent[counter] - first.bytesSent[counter]; };
        const auto linked = [&](int stat) { return after.bytesSent[stat] - before.bytesSent[stat]; };
        EXPECT_EQ(linked(pealStatAllReduce), sent(pealZeroAllReduce) + sent(pealZeroControl)) << what;
        EXPECT_EQ(linked(pealStatReduceScatter), sent(pealZeroReduceScatter)) << what;
        EXPECT_EQ(linked(pealStatAllGather), sent(pealZeroAllGather)) << what;
        for (const auto& [stat, counter] : {std::pair<int, int>{pealStatReduceScatter, pealZeroReduceScatter},
                                            std::pair<int, int>{pealStatAllGather, pealZeroAllGather}}) {
          EXPECT_EQ(after.calls[stat] - before.calls[stat], counted.calls[counter]) << what;
        }
      });
    }
  }
}

TEST(Memory, EveryArenaEqualsThePlanner) {
  const Shape shape = unevenShape();
  for (const int ranks : rankCounts({1, 2, 3, 7})) {
    for (int stage = 0; stage <= 3; ++stage) {
      for (const int microBatches : {1, 2}) {
        onRanks(ranks, [&](int rank, pealComm_t comm) {
          Trainer trainer(comm, rank, countedOptions(stage, 100, microBatches), shape);
          auto [states, bytes] = plannedArenas(trainer.engine(), stage);
          pealZeroPlanInput_t input = defaultPlanInput();
          input.parameters = trainer.elements();
          input.ranks = ranks;
          input.rank = rank;
          EXPECT_EQ(states, plan(input).stages[stage].modelStates);
          const uint64_t psi = trainer.elements();
          const uint64_t own = psi / static_cast<uint64_t>(ranks) +
                               (static_cast<uint64_t>(rank) < psi % static_cast<uint64_t>(ranks) ? 1 : 0);
          EXPECT_EQ(bytes["weights"], 2 * (stage == 3 ? own : psi));
          EXPECT_EQ(bytes["gradients"], 2 * (stage >= 2 ? own : psi));
          EXPECT_EQ(bytes["master"] + bytes["moment1"] + bytes["moment2"], 12 * (stage == 0 ? psi : own));
          EXPECT_EQ(bytes.count("accumulation"), microBatches > 1 ? 1u : 0u);
          EXPECT_EQ(bytes.count("unit buffers"), stage == 3 ? 1u : 0u);
        });
      }
    }
  }
}

}  // namespace
}  // namespace peal::zero::test
