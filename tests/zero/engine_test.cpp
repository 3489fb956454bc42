// The engine on real ranks: the same bits at every stage, counters and arenas equal to the formulas.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <map>

#include "tests/zero/ranks.h"

namespace peal::zero::test {
namespace {

struct Outcome {
  std::vector<float> master, moment1, moment2, weight;
  std::vector<double> norms;
  std::vector<pealZeroReport_t> reports;
  bool operator==(const Outcome& other) const {
    const auto same = [](const auto& a, const auto& b) {
      return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(a[0])) == 0;
    };
    return same(master, other.master) && same(moment1, other.moment1) && same(moment2, other.moment2) &&
           same(weight, other.weight) && same(norms, other.norms);
  }
};

pealZeroOptions_t optionsOf(int stage, size_t bucketBytes, int microBatches = 1) {
  pealZeroOptions_t options = defaultOptions();
  options.stage = stage;
  options.bucketBytes = bucketBytes;
  options.microBatches = microBatches;
  options.clipNorm = 0.5;
  options.weightDecay = 0.1;
  return options;
}

// Trains and checks that all ranks end with the same bits.
Outcome train(int ranks, const pealZeroOptions_t& options, int steps = 4, const Shape& shape = unevenShape(),
              const std::function<void(int rank, Trainer&)>& prepare = {}) {
  std::vector<Outcome> runs(static_cast<size_t>(ranks));
  onRanks(ranks, [&](int rank, pealComm_t comm) {
    Trainer trainer(comm, rank, options, shape);
    if (prepare) {
      prepare(rank, trainer);
    }
    Outcome& run = runs[static_cast<size_t>(rank)];
    for (int i = 0; i < steps; ++i) {
      run.reports.push_back(trainer.step());
      run.norms.push_back(run.reports.back().gradientNorm);
    }
    run.master = trainer.read(pealZeroMaster);
    run.moment1 = trainer.read(pealZeroMoment1);
    run.moment2 = trainer.read(pealZeroMoment2);
    run.weight = trainer.read(pealZeroWeight);
  });
  for (size_t rank = 1; rank < runs.size(); ++rank) {
    EXPECT_TRUE(runs[rank] == runs[0]) << "rank " << rank << " of " << ranks << " has other values";
  }
  return runs[0];
}

TEST(Stages, SameBitsWhateverTheStageAndTheBucket) {
  for (const int ranks : {1, 2, 3, 4, 7}) {
    const Outcome expected = train(ranks, optionsOf(0, 1 << 20));
    EXPECT_NE(expected.master[0], initialValue(0, 0));
    EXPECT_LT(expected.reports[0].clipFactor, 1.0);
    for (int stage = 0; stage <= 3; ++stage) {
      for (const size_t bucketBytes : {size_t{2}, size_t{100}, size_t{402}, size_t{1} << 20}) {
        EXPECT_TRUE(train(ranks, optionsOf(stage, bucketBytes)) == expected)
            << ranks << " ranks, stage " << stage << ", buckets of " << bucketBytes << " bytes";
      }
    }
  }
}

TEST(Stages, PrefetchAndKeptUnitsChangeNoBits) {
  for (const int ranks : {2, 3}) {
    const Outcome expected = train(ranks, optionsOf(0, 1 << 20));
    pealZeroOptions_t options = optionsOf(3, 1 << 20);
    options.prefetch = 0;
    EXPECT_TRUE(train(ranks, options) == expected);
    options.prefetch = 1;
    options.unitSlots = 2;  // no buffer is left to prefetch into
    EXPECT_TRUE(train(ranks, options) == expected);
  }
}

// Where micro-batches are added up before the reduction (stages 0, 1) and after it (2, 3) sums round at
// different places; inside each pair the bits are the same, and across they are close.
TEST(Accumulation, SameBitsInsideThePairsAndCloseAcross) {
  for (const int ranks : {1, 2, 3, 4}) {
    const Outcome before = train(ranks, optionsOf(0, 1 << 20, 3));
    const Outcome after = train(ranks, optionsOf(2, 1 << 20, 3));
    for (const size_t bucketBytes : {size_t{2}, size_t{300}}) {
      EXPECT_TRUE(train(ranks, optionsOf(1, bucketBytes, 3)) == before) << ranks;
      EXPECT_TRUE(train(ranks, optionsOf(3, bucketBytes, 3)) == after) << ranks;
      EXPECT_TRUE(train(ranks, optionsOf(2, bucketBytes, 3)) == after) << ranks;
    }
    for (size_t i = 0; i < before.norms.size(); ++i) {
      EXPECT_NEAR(before.norms[i] / after.norms[i], 1, 1.6e-2);
    }
    for (size_t i = 0; i < before.moment1.size(); ++i) {
      EXPECT_NEAR(before.moment1[i], after.moment1[i], 1.6e-2 * (0.05 + std::abs(after.moment1[i])));
    }
  }
}

TEST(Accumulation, ReducingEachMicroBatchGivesAllStagesTheSameBits) {
  for (const int ranks : {1, 2, 3, 4}) {
    pealZeroOptions_t options = optionsOf(2, 1 << 20, 3);
    const Outcome expected = train(ranks, options);
    options.reduceEachMicroBatch = 1;
    for (int stage = 0; stage <= 3; ++stage) {
      for (const size_t bucketBytes : {size_t{60}, size_t{1} << 20}) {
        options.stage = stage;
        options.bucketBytes = bucketBytes;
        EXPECT_TRUE(train(ranks, options) == expected) << ranks << " ranks, stage " << stage;
      }
    }
  }
}

// The norm is of the exact sum of squares: one rank that holds all gradients gets the same double as many
// that hold a part each.
TEST(Norm, DoesNotDependOnTheNumberOfRanks) {
  const Shape shape = unevenShape();
  const auto onlyRankZeroHasGradients = [](int rank, Trainer& trainer) {
    trainer.tokens = [](int r) -> uint64_t { return r == 0 ? 40 : 0; };
    if (rank != 0) {
      trainer.tamper = [shape = unevenShape()](size_t p, int, uint16_t* gradient) {
        std::fill_n(gradient, shape[p].elements, uint16_t{0});
      };
    }
  };
  const Outcome one = train(1, optionsOf(0, 1 << 20), 3, shape, onlyRankZeroHasGradients);
  for (const int ranks : {2, 3, 5}) {
    for (int stage = 0; stage <= 3; ++stage) {
      EXPECT_TRUE(train(ranks, optionsOf(stage, 80), 3, shape, onlyRankZeroHasGradients) == one) << ranks;
    }
  }
}

// The whole step against fp64 on one thread: sum over ranks, bf16, mean over all tokens, clip, AdamW.
TEST(Stages, FollowTheReferenceInFp64WithUnevenTokens) {
  const Shape shape = unevenShape();
  for (const int ranks : {1, 4}) {
    const pealZeroOptions_t options = optionsOf(2, 128);
    const Outcome run = train(ranks, options, 3, shape);
    std::vector<double> w, m, v;
    std::vector<uint16_t> rounded;
    std::vector<bool> decays;
    for (size_t p = 0; p < shape.size(); ++p) {
      for (uint64_t i = 0; i < shape[p].elements; ++i) {
        w.push_back(initialValue(p, i));
        rounded.push_back(roundToBf16(initialValue(p, i)));
        decays.push_back(shape[p].decay == pealZeroDecay);
      }
    }
    m.resize(w.size());
    v.resize(w.size());
    double tokens = 0;
    for (int rank = 0; rank < ranks; ++rank) {
      tokens += 16 + 5 * rank;
    }
    for (int step = 1; step <= 3; ++step) {
      std::vector<double> g;
      double squares = 0;
      for (size_t p = 0; p < shape.size(); ++p) {
        for (uint64_t i = 0; i < shape[p].elements; ++i) {
          float sum = 0;
          for (int rank = 0; rank < ranks; ++rank) {
            sum +=
                widen(syntheticGradient(p, i, rank, static_cast<uint64_t>(step - 1), 0, rounded[g.size()]));
          }
          g.push_back(widen(roundToBf16(sum)) / tokens);
          squares += g.back() * g.back();
        }
      }
      const double norm = std::sqrt(squares);
      EXPECT_NEAR(run.norms[static_cast<size_t>(step - 1)] / norm, 1, 1e-12);
      const double clip = std::min(1.0, options.clipNorm / (norm + 1e-6));
      for (size_t i = 0; i < w.size(); ++i) {
        const double scaled = g[i] * clip;
        m[i] = options.beta1 * m[i] + (1 - options.beta1) * scaled;
        v[i] = options.beta2 * v[i] + (1 - options.beta2) * scaled * scaled;
        const double update = m[i] / (1 - std::pow(options.beta1, step)) /
                              (std::sqrt(v[i] / (1 - std::pow(options.beta2, step))) + options.epsilon);
        w[i] -= 1e-2 * (update + (decays[i] ? options.weightDecay * w[i] : 0));
        rounded[i] = roundToBf16(static_cast<float>(w[i]));
      }
    }
    for (size_t i = 0; i < w.size(); ++i) {
      ASSERT_NEAR(run.master[i], w[i], 1e-5 + 1.3e-6 * std::abs(w[i])) << i << " of " << ranks << " ranks";
      ASSERT_NEAR(run.moment1[i], m[i], 1e-6 + 1e-5 * std::abs(m[i]));
      ASSERT_EQ(run.weight[i], widen(roundToBf16(run.master[i])));
    }
  }
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
  for (const int ranks : {1, 2, 3, 4, 5, 7}) {
    const auto others = static_cast<uint64_t>(ranks - 1);
    for (const uint64_t m : {1, 3}) {
      for (const size_t bucketBytes : {size_t{2}, size_t{150}, size_t{1} << 20}) {
        for (int stage = 0; stage <= 3; ++stage) {
          SCOPED_TRACE(fmt::format("{} ranks, stage {}, {} micro-batches, buckets of {} bytes", ranks, stage,
                                   m, bucketBytes));
          const pealZeroOptions_t options = optionsOf(stage, bucketBytes, static_cast<int>(m));
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
    pealZeroOptions_t options = optionsOf(3, 1 << 20, 2);
    options.prefetch = prefetch;
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

TEST(Memory, EveryArenaEqualsThePlanner) {
  const Shape shape = unevenShape();
  for (const int ranks : {1, 2, 3, 7}) {
    for (int stage = 0; stage <= 3; ++stage) {
      for (const int microBatches : {1, 2}) {
        onRanks(ranks, [&](int rank, pealComm_t comm) {
          Trainer trainer(comm, rank, optionsOf(stage, 100, microBatches), shape);
          uint64_t states = 0;
          std::map<std::string, uint64_t> bytes;
          for (const pealZeroArena_t& arena : trainer.engine().memory()) {
            EXPECT_EQ(arena.bytes, arena.plannedBytes) << arena.name << ", stage " << stage;
            states += arena.kind == pealZeroModelState ? arena.bytes : 0;
            bytes[arena.name] = arena.bytes;
          }
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
