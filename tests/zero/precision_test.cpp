// Gradients that are summed and kept in fp32 (reduceType): the same bits at every stage, nothing rounded on
// the way, and twice the bytes.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <filesystem>
#include <limits>
#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "lib/reduce/reduce.h"
#include "tests/zero/arenas.h"
#include "tests/zero/ranks.h"

namespace peal::zero::test {
namespace {

pealZeroOptions_t wideOptions(int stage, int group = 0, size_t bucketBytes = 300, int microBatches = 1) {
  pealZeroOptions_t options = defaultOptions();
  options.stage = stage;
  options.shardGroup = group;
  options.bucketBytes = bucketBytes;
  options.microBatches = microBatches;
  options.clipNorm = 0.5;
  options.reduceType = pealZeroReduceFp32;
  return options;
}

struct WideRun {
  std::vector<float> master, moment1, moment2, weight;
  std::vector<double> norms;
  std::vector<pealZeroCounters_t> counters;  // of each rank
  bool operator==(const WideRun& other) const {
    return master == other.master && moment1 == other.moment1 && moment2 == other.moment2 &&
           weight == other.weight && norms == other.norms;
  }
};

WideRun trainWide(int ranks, const pealZeroOptions_t& options, int steps = 3) {
  WideRun run;
  run.counters.resize(static_cast<size_t>(ranks));
  onRanks(ranks, [&](int rank, pealComm_t comm) {
    Trainer trainer(comm, rank, options, unevenShape());
    std::vector<double> norms;
    for (int i = 0; i < steps; ++i) {
      norms.push_back(trainer.step().gradientNorm);
      trainer.engine().checkReplicas();
    }
    run.counters[static_cast<size_t>(rank)] = trainer.engine().counters();
    const std::vector<float> master = trainer.read(pealZeroMaster);
    const std::vector<float> moment1 = trainer.read(pealZeroMoment1);
    const std::vector<float> moment2 = trainer.read(pealZeroMoment2);
    const std::vector<float> weight = trainer.read(pealZeroWeight);
    if (rank == 0) {
      run.master = master;
      run.moment1 = moment1;
      run.moment2 = moment2;
      run.weight = weight;
      run.norms = norms;
    }
  });
  return run;
}

TEST(ReduceFp32, GivesTheSameBitsAtEveryStageAndInGroups) {
  for (const auto& [ranks, groups] :
       {std::pair<int, std::vector<int>>{1, {0}}, {2, {0, 1}}, {3, {0}}, {4, {0, 2}}}) {
    const WideRun expected = trainWide(ranks, wideOptions(0, 0, 1 << 20));
    pealZeroOptions_t rounded = wideOptions(0);
    rounded.reduceType = pealZeroReduceBf16;
    EXPECT_FALSE(trainWide(ranks, rounded) == expected);
    for (int stage = 0; stage <= 3; ++stage) {
      for (const int group : groups) {
        for (const size_t bucketBytes : {size_t{4}, size_t{700}}) {
          EXPECT_TRUE(trainWide(ranks, wideOptions(stage, stage == 0 ? 0 : group, bucketBytes)) == expected)
              << ranks << " ranks in groups of " << group << ", stage " << stage << ", buckets of "
              << bucketBytes;
        }
      }
    }
  }
}

TEST(ReduceFp32, GivesTheSameBitsWithMicroBatches) {
  constexpr int kRanks = 4;
  const WideRun before = trainWide(kRanks, wideOptions(0, 0, 1 << 20, 3));
  EXPECT_TRUE(trainWide(kRanks, wideOptions(1, 0, 300, 3)) == before);
  const WideRun after = trainWide(kRanks, wideOptions(2, 0, 300, 3));
  EXPECT_TRUE(trainWide(kRanks, wideOptions(3, 0, 300, 3)) == after);
  for (size_t i = 0; i < before.moment1.size(); ++i) {
    EXPECT_NEAR(before.moment1[i], after.moment1[i], 1e-5 + 1.3e-6 * std::abs(after.moment1[i]));
  }
  for (int stage = 0; stage <= 3; ++stage) {
    pealZeroOptions_t options = wideOptions(stage, stage == 0 ? 0 : 2, 300, 3);
    options.reduceEachMicroBatch = 1;
    EXPECT_TRUE(trainWide(kRanks, options) == after) << stage;
  }
}

// Against the sum in fp64: what is left is the rounding of N - 1 fp32 additions, not of a bf16 sum.
TEST(ReduceFp32, RoundsNothingToBf16) {
  constexpr int kRanks = 4;
  pealZeroOptions_t options = wideOptions(2);
  options.clipNorm = 0;
  const WideRun run = trainWide(kRanks, options, 1);
  const Shape shape = unevenShape();
  double squares = 0, tokens = 0;
  for (int rank = 0; rank < kRanks; ++rank) {
    tokens += 16 + 5 * rank;
  }
  size_t at = 0;
  for (size_t p = 0; p < shape.size(); ++p) {
    for (uint64_t i = 0; i < shape[p].elements; ++i, ++at) {
      double sum = 0;
      float exact = 0;
      for (int rank = 0; rank < kRanks; ++rank) {
        const float value = syntheticValue(p, i, rank, 0, 0, widen(roundToBf16(initialValue(p, i))));
        sum += value;
        exact += value;
      }
      squares += static_cast<double>(exact) * exact;
      const double mean = sum / tokens;
      EXPECT_NEAR(run.moment1[at], (1 - options.beta1) * mean, 1e-9 + 1e-6 * std::abs(mean));
    }
  }
  EXPECT_NEAR(run.norms[0] / (std::sqrt(squares) / tokens), 1, 1e-13);
}

TEST(ReduceFp32, SendsTwiceTheBytesOfGradientsAndNoMoreOfWeights) {
  uint64_t psi = 0;
  for (const ModelParameter& parameter : unevenShape()) {
    psi += parameter.elements;
  }
  for (const auto& [ranks, group] : {std::pair<int, int>{3, 0}, {4, 2}}) {
    for (const int m : {1, 3}) {
      for (int stage = group == 0 ? 0 : 3; stage <= 3; ++stage) {
        SCOPED_TRACE(
            fmt::format("{} ranks in groups of {}, {} micro-batches, stage {}", ranks, group, m, stage));
        const WideRun run = trainWide(ranks, wideOptions(stage, group, 300, m), 2);
        uint64_t reduced = 0, gathered = 0, between = 0;
        for (const pealZeroCounters_t& counters : run.counters) {
          for (const int counter : {pealZeroAllReduce, pealZeroReduceScatter, pealZeroReplicas}) {
            EXPECT_EQ(counters.bytesSent[counter], 4 * counters.elementsSent[counter]);
          }
          EXPECT_EQ(counters.bytesSent[pealZeroAllGather], 2 * counters.elementsSent[pealZeroAllGather]);
          reduced += counters.bytesSent[pealZeroAllReduce] + counters.bytesSent[pealZeroReduceScatter];
          gathered += counters.bytesSent[pealZeroAllGather];
          between += counters.bytesSent[pealZeroReplicas];
        }
        pealZeroPlanInput_t input = defaultPlanInput();
        input.parameters = psi;
        input.gradientBytes = 4;
        input.ranks = ranks;
        input.group = group;
        input.microBatches = m;
        const pealZeroPlan_t planned = plan(input);
        const double total = 2.0 * ranks;  // steps and ranks
        if (group == 0) {
          EXPECT_NEAR(planned.stages[stage].reduceBytesSent * total, static_cast<double>(reduced), 1e-6);
          EXPECT_NEAR(planned.stages[stage].gatherBytesSent * total, static_cast<double>(gathered), 1e-6);
        } else {
          const pealZeroPlanStage_t& row = planned.stages[pealZeroPlanHsdp];
          EXPECT_NEAR(row.groupBytesSent * total, static_cast<double>(reduced + gathered), 1e-6);
          EXPECT_NEAR(row.bytesSent * total, static_cast<double>(between), 1e-6);
        }
      }
    }
  }
}

TEST(ReduceFp32, ArenasEqualThePlanner) {
  for (const auto& [ranks, group] : {std::pair<int, int>{3, 0}, {4, 2}}) {
    for (int stage = group == 0 ? 0 : 1; stage <= 3; ++stage) {
      onRanks(ranks, [&](int rank, pealComm_t comm) {
        Trainer trainer(comm, rank, wideOptions(stage, group, 300, 2), unevenShape());
        auto [states, bytes] = plannedArenas(trainer.engine(), stage);
        pealZeroPlanInput_t input = defaultPlanInput();
        input.parameters = trainer.elements();
        input.gradientBytes = 4;
        input.ranks = group == 0 ? ranks : group;
        input.rank = rank % static_cast<int>(input.ranks);
        const pealZeroPlanStage_t row = plan(input).stages[stage];
        EXPECT_EQ(states, row.modelStates);
        EXPECT_EQ(bytes["gradients"], 4 * (stage <= 1 ? trainer.elements() : row.shardElements));
      });
    }
  }
}

TEST(ReduceFp32, OneBadGradientOnOneRankSkipsTheStepOnAll) {
  for (int stage = 0; stage <= 3; ++stage) {
    onRanks(3, [&](int rank, pealComm_t comm) {
      Trainer trainer(comm, rank, wideOptions(stage), unevenShape());
      trainer.withheld = {0};
      trainer.step();
      const std::vector<float> master = trainer.read(pealZeroMaster);
      trainer.tamperFp32 = [&](size_t parameter, int, float* gradient) {
        if (rank == 1 && parameter == 5) {
          gradient[77] = std::numeric_limits<float>::infinity();
        }
      };
      EXPECT_EQ(trainer.step().skipped, 1);
      EXPECT_EQ(trainer.read(pealZeroMaster), master);
      trainer.tamperFp32 = {};
      EXPECT_EQ(trainer.step().missingGradients, 1u);
      EXPECT_NE(trainer.read(pealZeroMaster), master);
    });
  }
}

TEST(ReduceFp32, GradientsOfTheOtherTypeAreRefused) {
  for (const pealZeroReduceType_t type : {pealZeroReduceBf16, pealZeroReduceFp32}) {
    onRanks(1, [&](int, pealComm_t comm) {
      pealZeroOptions_t options = wideOptions(1);
      options.reduceType = type;
      Engine engine(comm, options);
      const float initial = 1;
      engine.setInitial(engine.addParameter("p", 1, 0, pealZeroDecay), &initial);
      engine.seal();
      engine.enter(0, pealZeroBackward);
      uint16_t* narrow = nullptr;
      float* wide = nullptr;
      const bool isWide = type == pealZeroReduceFp32;
      EXPECT_EQ(pealZeroGradient(engine.handle(), 0, &narrow), isWide ? pealInvalidUsage : pealSuccess);
      EXPECT_EQ(pealZeroGradientFp32(engine.handle(), 0, &wide), isWide ? pealSuccess : pealInvalidUsage);
      EXPECT_EQ(narrow == nullptr, isWide);
      EXPECT_EQ(wide != nullptr, isWide);
    });
  }
}

pealZeroOptions_t fp32Options(int stage, int group = 0, size_t bucketBytes = 300, int microBatches = 1) {
  pealZeroOptions_t options = wideOptions(stage, group, bucketBytes, microBatches);
  options.master = pealZeroMasterIsWeight;
  return options;
}

TEST(WeightsFp32, AreTheirMastersWithTheSameBitsAtEveryStageAndInGroups) {
  for (const auto& [ranks, groups] : {std::pair<int, std::vector<int>>{1, {0}}, {3, {0}}, {4, {0, 2}}}) {
    const WideRun expected = trainWide(ranks, fp32Options(0, 0, 1 << 20));
    EXPECT_EQ(expected.weight, expected.master);
    EXPECT_FALSE(trainWide(ranks, wideOptions(0)) == expected);
    for (int stage = 0; stage <= 3; ++stage) {
      for (const int group : groups) {
        for (const size_t bucketBytes : {size_t{4}, size_t{700}}) {
          const int inGroups = stage == 0 ? 0 : group;
          EXPECT_TRUE(trainWide(ranks, fp32Options(stage, inGroups, bucketBytes)) == expected)
              << ranks << " ranks in groups of " << group << ", stage " << stage << ", buckets of "
              << bucketBytes;
        }
      }
    }
  }
}

TEST(WeightsFp32, TakeTheBytesOfTheFormula) {
  const Shape shape = unevenShape();
  for (int stage = 0; stage <= 3; ++stage) {
    onRanks(3, [&](int rank, pealComm_t comm) {
      Trainer trainer(comm, rank, fp32Options(stage), shape);
      uint64_t states = 0;
      for (const pealZeroArena_t& arena : trainer.engine().memory()) {
        EXPECT_EQ(arena.bytes, arena.plannedBytes) << arena.name << ", stage " << stage;
        EXPECT_NE(arena.name, std::string("master"));
        states += arena.kind == pealZeroModelState ? arena.bytes : 0;
      }
      pealZeroPlanInput_t input = defaultPlanInput();
      input.parameters = trainer.elements();
      input.weightBytes = 4;
      input.gradientBytes = 4;
      input.optimizerBytes = 8;
      input.ranks = 3;
      input.rank = rank;
      const pealZeroPlanStage_t row = plan(input).stages[stage];
      EXPECT_EQ(states, row.modelStates);
      if (stage == 1) {
        EXPECT_EQ(states, 8 * trainer.elements() + 8 * row.shardElements);
      }
      trainer.step();
      const pealZeroCounters_t counters = trainer.engine().counters();
      EXPECT_EQ(counters.bytesSent[pealZeroAllGather], 4 * counters.elementsSent[pealZeroAllGather]);
    });
  }
}

// One step against fp64: nothing on the way is bf16.
TEST(WeightsFp32, FollowTheReference) {
  pealZeroOptions_t options = fp32Options(2);
  options.clipNorm = 0;
  const WideRun run = trainWide(2, options, 1);
  const Shape shape = unevenShape();
  size_t at = 0;
  for (size_t p = 0; p < shape.size(); ++p) {
    for (uint64_t i = 0; i < shape[p].elements; ++i, ++at) {
      const double w = initialValue(p, i);
      const double gradient = (static_cast<double>(syntheticValue(p, i, 0, 0, 0, initialValue(p, i))) +
                               syntheticValue(p, i, 1, 0, 0, initialValue(p, i))) /
                              37;  // 16 + 21 tokens
      const double decay = shape[p].decay == pealZeroDecay ? options.weightDecay : 0;
      const double expected = w - 1e-2 * (gradient / (std::abs(gradient) + options.epsilon) + decay * w);
      EXPECT_NEAR(run.weight[at], expected, 1e-6) << p << " " << i;
    }
  }
}

// Saved on some ranks at one stage and loaded on others at another: every bit of the weights; and into an
// engine of bf16 weights, of the same masters.
TEST(WeightsFp32, CheckpointsKeepEveryBit) {
  const std::string folder = testing::TempDir() + "peal-fp32-checkpoint";
  std::filesystem::remove_all(folder);
  Shape shape = unevenShape();
  shape[2].frozen = true;
  std::vector<float> weights, masters, moments;
  onRanks(2, [&](int rank, pealComm_t comm) {
    Trainer trainer(comm, rank, fp32Options(1), shape);
    trainer.order = {10, 3, 5, 0, 8, 1, 4, 6, 7, 9};
    trainer.step();
    trainer.step();
    trainer.engine().save(folder);
    const std::vector<float> weight = trainer.read(pealZeroWeight);
    const std::vector<float> master = trainer.read(pealZeroMaster);
    const std::vector<float> moment = trainer.read(pealZeroMoment2);
    if (rank == 0) {
      weights = weight;
      masters = master;
      moments = moment;
    }
  });
  for (int stage = 0; stage <= 3; ++stage) {
    onRanks(3, [&](int rank, pealComm_t comm) {
      Trainer trainer(comm, rank, fp32Options(stage), shape);
      trainer.engine().load(folder);
      EXPECT_EQ(trainer.read(pealZeroWeight), weights) << stage;
      EXPECT_EQ(trainer.read(pealZeroMaster), masters) << stage;
      EXPECT_EQ(trainer.read(pealZeroMoment2), moments) << stage;
      trainer.engine().checkReplicas();
      pealZeroOptions_t converting = wideOptions(stage);
      converting.convertWeights = 1;
      Trainer narrow(comm, rank, converting, shape);
      narrow.engine().load(folder);
      EXPECT_EQ(narrow.read(pealZeroMaster), masters) << stage;
    });
  }
  const Checkpoint checkpoint(folder);
  EXPECT_EQ(checkpoint.info().weightBytes, 4);
  std::vector<float> kept(shape[5].elements);
  checkpoint.read(5, pealZeroWeight, 0, kept);
  EXPECT_TRUE(std::search(weights.begin(), weights.end(), kept.begin(), kept.end()) != weights.end());
  std::filesystem::remove_all(folder);
}

// What one rounding costs, and what a rounding at each of a ring's hops would: the root of the mean square of
// the error over that of the sum, of as many bf16 gradients as there are ranks.
TEST(SumOfBf16, HasTheErrorOfOneRoundingWhateverTheNumberOfRanks) {
  constexpr size_t kElements = 20'000;
  struct Published {
    size_t ranks;
    double once, atEachHop;
  };
  for (const auto& [ranks, once, atEachHop] :
       {Published{4, 1.69e-3, 2.65e-3}, Published{8, 1.66e-3, 3.55e-3}, Published{64, 1.65e-3, 8.33e-3},
        Published{256, 1.68e-3, 1.57e-2}}) {
    std::mt19937 random(7);
    std::normal_distribution<float> normal;
    std::vector<std::vector<uint16_t>> gradients(ranks, std::vector<uint16_t>(kElements));
    std::vector<double> exact(kElements);
    std::vector<const void*> sources;
    for (std::vector<uint16_t>& gradient : gradients) {
      for (size_t i = 0; i < kElements; ++i) {
        gradient[i] = roundToBf16(normal(random));
        exact[i] += static_cast<double>(widen(gradient[i]));
      }
      sources.push_back(gradient.data());
    }
    std::vector<uint16_t> sum(kElements), ring = gradients[0];
    reduce(pealBfloat16, {}, {.sources = sources, .destinations = {sum.data(), nullptr}, .count = kElements});
    for (size_t rank = 1; rank < ranks; ++rank) {
      const std::array<const void*, 2> two{ring.data(), gradients[rank].data()};
      reduce(pealBfloat16, {}, {.sources = two, .destinations = {ring.data(), nullptr}, .count = kElements});
    }
    const auto error = [&](const std::vector<uint16_t>& values) {
      double wrong = 0, all = 0;
      for (size_t i = 0; i < kElements; ++i) {
        const double difference = static_cast<double>(widen(values[i])) - exact[i];
        wrong += difference * difference;
        all += exact[i] * exact[i];
      }
      return std::sqrt(wrong / all);
    };
    EXPECT_NEAR(error(sum) / once, 1, 0.05) << ranks << " ranks: " << error(sum);
    EXPECT_NEAR(error(ring) / atEachHop, 1, 0.25) << ranks << " ranks: " << error(ring);
  }
}

TEST(WeightsFp32, WhatDoesNotGoWithThemIsRefused) {
  onRanks(1, [&](int, pealComm_t comm) {
    pealZeroOptions_t narrow = fp32Options(1);
    narrow.reduceType = pealZeroReduceBf16;
    EXPECT_THROW(Engine(comm, narrow), Failure);
    pealZeroOptions_t stochastic = fp32Options(1);
    stochastic.stochasticRounding = 1;
    EXPECT_THROW(Engine(comm, stochastic), Failure);
    for (const bool isWide : {false, true}) {
      Engine engine(comm, isWide ? fp32Options(1) : wideOptions(1));
      const float initial = 1;
      engine.setInitial(engine.addParameter("p", 1, 0, pealZeroDecay), &initial);
      engine.seal();
      engine.enter(0, pealZeroForward);
      const uint16_t* bf16 = nullptr;
      const float* fp32 = nullptr;
      EXPECT_EQ(pealZeroWeights(engine.handle(), 0, &bf16), isWide ? pealInvalidUsage : pealSuccess);
      EXPECT_EQ(pealZeroWeightsFp32(engine.handle(), 0, &fp32), isWide ? pealSuccess : pealInvalidUsage);
      engine.leave(0, pealZeroForward);
    }
  });
}

}  // namespace
}  // namespace peal::zero::test
