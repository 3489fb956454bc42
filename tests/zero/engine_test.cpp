// The engine on real ranks: the same bits at every stage, and those of a reference.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "tests/zero/before.h"
#include "tests/zero/breadth.h"
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
              const std::function<void(int rank, Trainer&)>& prepare = {},
              const std::vector<int>& kept = {}) {
  std::vector<Outcome> runs(static_cast<size_t>(ranks));
  onRanks(ranks, [&](int rank, pealComm_t comm) {
    Trainer trainer(comm, rank, options, shape, kept);
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

// The table of docs/ZERO-ENGINE.md's "The same bits". Without overlap nothing is gathered ahead, each buffer
// is the only one, and the caller waits for the stream after every gradient.
TEST(Stages, SameBitsWhateverTheStageTheBucketAndTheOverlap) {
  enum class Overlap { None, Some };
  for (const int ranks : rankCounts({1, 2, 3, 4, 5})) {
    const Outcome expected = train(ranks, optionsOf(0, 1 << 20), 3);
    EXPECT_NE(expected.master[0], initialValue(0, 0));
    EXPECT_LT(expected.reports[0].clipFactor, 1.0);
    for (int stage = 0; stage <= 3; ++stage) {
      for (int group = 0; group < ranks; ++group) {
        if (group > 0 && (stage == 0 || ranks % group != 0)) {
          continue;
        }
        for (const size_t bucketBytes : {size_t{2}, size_t{100}, size_t{402}, size_t{1} << 20}) {
          for (const Overlap overlap : {Overlap::None, Overlap::Some}) {
            pealZeroOptions_t options = optionsOf(stage, bucketBytes);
            options.shardGroup = group;
            std::function<void(int, Trainer&)> prepare;
            if (overlap == Overlap::None) {
              options.prefetchDepth = 0;
              options.bucketSlots = stage == 3 ? 2 : 1;  // unit 0 is open around the others
              prepare = [](int, Trainer& trainer) {
                trainer.handedOver = [&](size_t) { finishQueued(trainer.engine().handle()); };
              };
            }
            EXPECT_TRUE(train(ranks, options, 3, unevenShape(), prepare) == expected)
                << ranks << " ranks in groups of " << group << ", stage " << stage << ", buckets of "
                << bucketBytes << " bytes, overlap " << (overlap == Overlap::Some);
          }
        }
      }
    }
  }
}

// Ones and small parts of them: a sum that is rounded to bf16 on its way stays 1.
TEST(Accumulation, IsInFp32) {
  constexpr int kMicroBatches = 32;
  const float small = 0x1p-8f;
  for (int stage = 0; stage <= 3; ++stage) {
    for (const int each : {0, 1}) {
      onRanks(2, [&](int rank, pealComm_t comm) {
        pealZeroOptions_t options = optionsOf(stage, 1 << 20, kMicroBatches);
        options.reduceEachMicroBatch = each;
        Trainer trainer(comm, rank, options, {{64, 0}});
        trainer.tokens = [](int) -> uint64_t { return 1; };
        trainer.tamper = [&](size_t, int microBatch, uint16_t* gradient) {
          std::fill_n(gradient, 64, uint16_t{0});
          gradient[0] = rank == 0 ? roundToBf16(microBatch == 0 ? 1.0f : small) : 0;
        };
        const double sum = widen(roundToBf16(1 + (kMicroBatches - 1) * small));
        EXPECT_DOUBLE_EQ(trainer.step().gradientNorm, sum / 2) << "stage " << stage << ", each " << each;
      });
    }
  }
}

TEST(Stages, PrefetchAndKeptUnitsChangeNoBits) {
  for (const int ranks : {2, 3}) {
    const Outcome expected = train(ranks, optionsOf(0, 1 << 20));
    pealZeroOptions_t options = optionsOf(3, 1 << 20);
    options.prefetchDepth = 0;
    EXPECT_TRUE(train(ranks, options) == expected);
    options.prefetchDepth = 1;
    options.unitSlots = 2;  // no buffer is left to prefetch into
    EXPECT_TRUE(train(ranks, options) == expected);
    options.unitSlots = 0;
    EXPECT_TRUE(train(ranks, options, 4, unevenShape(), {}, {1, 3}) == expected);
    EXPECT_TRUE(train(ranks, options, 4, unevenShape(), {}, {0, 1, 2, 3, 4}) == expected);
  }
}

// Evaluation: forward passes between steps see the new weights at every stage, also of kept units, and change
// nothing.
TEST(Stages, ForwardPassesBetweenStepsSeeTheNewWeights) {
  const Shape shape = unevenShape();
  const Outcome expected = train(3, optionsOf(0, 1 << 20));
  for (int stage = 0; stage <= 3; ++stage) {
    std::vector<float> master(expected.master.size());
    onRanks(3, [&](int rank, pealComm_t comm) {
      Trainer trainer(comm, rank, optionsOf(stage, 100), shape, {0, 2});
      for (int step = 0; step < 4; ++step) {
        trainer.step();
        for (int pass = 0; pass < 2; ++pass) {
          std::vector<float> seen;
          for (size_t p = 0; p < shape.size(); ++p) {
            const bool first = p == 0 || shape[p].unit != shape[p - 1].unit;
            if (first) {
              trainer.engine().enter(shape[p].unit, pealZeroForward);
            }
            const uint16_t* weights = trainer.engine().weights(static_cast<int>(p));
            for (uint64_t i = 0; i < shape[p].elements; ++i) {
              seen.push_back(widen(weights[i]));
            }
            if (p + 1 == shape.size() || shape[p].unit != shape[p + 1].unit) {
              trainer.engine().leave(shape[p].unit, pealZeroForward);
            }
          }
          EXPECT_EQ(seen, trainer.read(pealZeroWeight)) << "stage " << stage << ", step " << step;
        }
      }
      const std::vector<float> end = trainer.read(pealZeroMaster);
      if (rank == 0) {
        master = end;
      }
    });
    EXPECT_EQ(master, expected.master) << stage;
  }
}

// A kept unit that is not entered for backward stays gathered to the step, and no longer: decay changes it.
TEST(Stages, AKeptUnitWithoutBackwardIsGatheredAnewAfterTheStep) {
  for (int stage = 0; stage <= 3; ++stage) {
    onRanks(2, [&](int rank, pealComm_t comm) {
      pealZeroOptions_t options = optionsOf(stage, 1 << 20);
      options.weightDecay = 1;
      Engine engine(comm, options);
      const std::vector<float> ones(9, 1.0f);
      for (int unit = 0; unit < 2; ++unit) {
        engine.setInitial(engine.addParameter(fmt::format("p{}", unit), 9, unit, pealZeroDecay), ones.data());
      }
      engine.keepUnit(1);
      engine.seal();
      for (int step = 1; step <= 3; ++step) {
        for (int unit = 0; unit < 2; ++unit) {
          engine.enter(unit, pealZeroForward);
          EXPECT_EQ(widen(engine.weights(unit)[8]), std::ldexp(1.0f, 1 - step)) << stage;
          engine.leave(unit, pealZeroForward);
        }
        engine.endMicroBatch();
        EXPECT_EQ(engine.step(0.5, 4 + static_cast<uint64_t>(rank)).missingGradients, 2u);
      }
    });
  }
}

// Large enough that reductions run while later gradients are written, and that buffers are used many times.
TEST(Stages, SameBitsWithLargerParameters) {
  const Shape shape{{300'007, 0}, {70'001, 1}, {70'001, 1, pealZeroNoDecay}, {200'000, 2}, {3, 3}};
  const Outcome expected = train(3, optionsOf(0, 1 << 18), 3, shape);
  for (int stage = 1; stage <= 3; ++stage) {
    EXPECT_TRUE(train(3, optionsOf(stage, 1 << 18), 3, shape) == expected) << stage;
  }
}

// Where micro-batches are added up before the reduction (stages 0, 1) and after it (2, 3) sums round at
// different places; inside each pair the bits are the same, and across they are close.
TEST(Accumulation, SameBitsInsideThePairsAndCloseAcross) {
  for (const int ranks : rankCounts({1, 2, 3, 4})) {
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
  for (const int ranks : rankCounts({1, 2, 3, 4})) {
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

// Steps of 3, 1, 2 and 5 micro-batches that nobody knew beforehand are those of an engine that was made for 5
// and whose last ones are of zeros.
TEST(NoSync, GivesAStepTheMicroBatchesThatItHas) {
  const std::vector<int> numbers{3, 1, 2, 5};
  const auto run = [&](pealZeroOptions_t options, bool isScoped, bool announces) {
    Outcome outcome;
    options.microBatches = isScoped ? 2 : 5;
    onRanks(3, [&](int rank, pealComm_t comm) {
      Trainer trainer(comm, rank, options, unevenShape());
      int now = 0;
      trainer.announces = announces;
      trainer.tamper = [&](size_t p, int microBatch, uint16_t* gradient) {
        std::fill_n(gradient, microBatch < now ? 0 : unevenShape()[p].elements, uint16_t{0});
      };
      if (isScoped) {
        trainer.microBatchesOf = [&](uint64_t step) { return numbers[step]; };
      }
      std::vector<double> norms;
      for (const int number : numbers) {
        now = number;
        const pealZeroReport_t report = trainer.step();
        EXPECT_EQ(report.fusedBuckets > 0, announces);
        norms.push_back(report.gradientNorm);
      }
      Outcome read;
      read.norms = norms;
      read.master = trainer.read(pealZeroMaster);
      read.moment1 = trainer.read(pealZeroMoment1);
      read.moment2 = trainer.read(pealZeroMoment2);
      read.weight = trainer.read(pealZeroWeight);
      if (rank == 0) {
        outcome = read;
      }
    });
    return outcome;
  };
  for (int stage = 0; stage <= 3; ++stage) {
    for (const int each : {0, 1}) {
      pealZeroOptions_t options = optionsOf(stage, 300);
      options.reduceEachMicroBatch = each;
      EXPECT_TRUE(run(options, true, false) == run(options, false, false)) << stage << " " << each;
      if (stage == 1 || stage == 2) {
        options.clipNorm = 0;
        options.skipNonFinite = 0;
        EXPECT_TRUE(run(options, true, true) == run(options, false, false))
            << "fused " << stage << " " << each;
      }
    }
  }
}

// Rank 0's steps have a micro-batch more than those of the others: right sums, or an error on all, and none
// waits for the deadline.
TEST(NoSync, RanksMayDifferWhereEachAddsUpItsOwnMicroBatches) {
  const auto prepare = [](int number, bool areZeros, int rank, Trainer& trainer) {
    trainer.microBatchesOf = [=](uint64_t) { return rank == 0 ? 2 : number; };
    trainer.tamper = [=](size_t p, int microBatch, uint16_t* gradient) {
      if (areZeros && rank != 0 && microBatch == 1) {
        std::fill_n(gradient, unevenShape()[p].elements, uint16_t{0});
      }
    };
  };
  for (int stage = 0; stage <= 3; ++stage) {
    for (const auto& [each, group] : {std::pair{0, 0}, {1, 0}, {0, 2}}) {
      if (stage != 1 && group != 0) {
        continue;
      }
      SCOPED_TRACE(fmt::format("stage {}, reduceEachMicroBatch {}, shardGroup {}", stage, each, group));
      pealZeroOptions_t options = optionsOf(stage, 300, 2);
      options.reduceEachMicroBatch = each;
      options.shardGroup = group;
      if (stage <= 1 && each == 0) {
        const auto run = [&](int number) {
          return train(4, options, 3, unevenShape(),
                       [&](int rank, Trainer& trainer) { prepare(number, true, rank, trainer); });
        };
        EXPECT_TRUE(run(1) == run(2));
        continue;
      }
      onRanks(4, [&](int rank, pealComm_t comm) {
        Trainer trainer(comm, rank, options, unevenShape());
        prepare(1, false, rank, trainer);
        try {
          trainer.step();
          ADD_FAILURE() << "rank " << rank << " made a step";
        } catch (const peal::Error& error) {
          EXPECT_NE(error.code(), pealTimeout) << error.what();
        }
      });
    }
  }
}

TEST(NoSync, IsSaidBetweenMicroBatches) {
  onRanks(1, [](int rank, pealComm_t comm) {
    const auto refused = [](pealZero_t zero, int on, const std::string& sentence) {
      EXPECT_EQ(pealZeroSetNoSync(zero, on), pealInvalidUsage);
      EXPECT_NE(std::string(pealZeroGetLastError(zero)).find(sentence), std::string::npos)
          << pealZeroGetLastError(zero);
    };
    Trainer one(comm, rank, optionsOf(1, 300), {{8, 0}});
    refused(one.engine().handle(), 1, "made with microBatches 1");
    Trainer trainer(comm, rank, optionsOf(1, 300, 2), {{8, 0}});
    Engine& engine = trainer.engine();
    const pealZero_t zero = engine.handle();
    const auto pass = [&] {
      engine.enter(0, pealZeroBackward);
      std::fill_n(engine.gradient(0), 8, roundToBf16(1));
      engine.gradientReady(0);
    };
    {
      const NoSync scope(engine);
      pass();
      refused(zero, 0, "when it has gradients already");
      engine.leave(0, pealZeroBackward);
      refused(zero, 0, "when it has gradients already");
      engine.endMicroBatch();
      EXPECT_EQ(pealZeroStep(zero, 1e-2, 1, nullptr), pealInvalidUsage);
      EXPECT_NE(std::string(pealZeroGetLastError(zero)).find("none of which was to be its last"),
                std::string::npos)
          << pealZeroGetLastError(zero);
    }
    pass();
    engine.leave(0, pealZeroBackward);
    engine.endMicroBatch();
    refused(zero, 1, "after the last has ended");
    EXPECT_EQ(pealZeroUnitEnter(zero, 0, pealZeroBackward), pealInvalidUsage);
    EXPECT_NEAR(engine.step(1e-2, 1).gradientNorm, 2 * std::sqrt(8.0), 1e-12);
    // Without a scope each is a step's last.
    pass();
    engine.leave(0, pealZeroBackward);
    engine.endMicroBatch();
    EXPECT_NEAR(engine.step(1e-2, 1).gradientNorm, std::sqrt(8.0), 1e-12);
  });
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
  for (const int ranks : rankCounts({2, 3, 5})) {
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

// Why the engine has no communicator is what the system said, though the caller's communicator has no error.
TEST(Creation, SaysWhatTheCommunicatorLacked) {
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  onRanks(2, [&](int, pealComm_t comm) {
    const rlimit none{3, before.rlim_max};
    ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
    const pealZeroOptions_t options = defaultOptions();
    pealZero_t zero = nullptr;
    EXPECT_NE(pealZeroCreate(&zero, comm, &options), pealSuccess);
    const std::string told = pealZeroGetLastError(nullptr);
    EXPECT_NE(told.find("communicator \"zero\" cannot be made: "), std::string::npos) << told;
    EXPECT_NE(told.find("(errno "), std::string::npos) << told;
  });
  setrlimit(RLIMIT_NOFILE, &before);
}

}  // namespace
}  // namespace peal::zero::test
