// Announced steps on real ranks: fused or not, the same bits, the same counters; what cannot be fused, and
// what goes wrong.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "tests/zero/breadth.h"
#include "tests/zero/ranks.h"

namespace peal::zero::test {
namespace {

constexpr uint64_t kFusedSteps = 3;

// Nothing needs the whole gradient first.
pealZeroOptions_t fusable(int stage, size_t bucketBytes, int microBatches = 1) {
  pealZeroOptions_t options = defaultOptions();
  options.stage = stage;
  options.bucketBytes = bucketBytes;
  options.microBatches = microBatches;
  options.skipNonFinite = 0;
  options.weightDecay = 0.1;
  return options;
}

struct FusedRun {
  std::vector<std::vector<float>> values;  // master, both moments, weights
  std::vector<double> norms;
  std::vector<uint64_t> tokens;
  std::vector<pealZeroCounters_t> counters;  // per rank
  uint64_t fusedBuckets = 0;                 // of all steps
  uint64_t buckets = 0;                      // of a step
  std::string reason;
};

enum class Announce { No, Yes };

// Trains; all ranks end with the same values.
FusedRun runSteps(int ranks, const pealZeroOptions_t& options, Announce announce,
                  const Shape& shape = unevenShape(),
                  const std::function<void(int rank, Trainer&)>& prepare = {},
                  const std::vector<pealZeroGroup_t>& groups = {}) {
  std::vector<FusedRun> runs(static_cast<size_t>(ranks));
  onRanks(ranks, [&](int rank, pealComm_t comm) {
    Trainer trainer(comm, rank, options, shape, {}, groups);
    trainer.announces = announce == Announce::Yes;
    if (prepare) {
      prepare(rank, trainer);
    }
    FusedRun& run = runs[static_cast<size_t>(rank)];
    uint64_t fusedBefore = 0;  // buckets are rebuilt after the first step
    for (uint64_t step = 0; step < kFusedSteps; ++step) {
      fusedBefore += trainer.engine().fusedStatus().fusedBuckets;
      const pealZeroReport_t report = trainer.step();
      run.norms.push_back(report.gradientNorm);
      run.tokens.push_back(report.tokens);
      run.fusedBuckets += report.fusedBuckets;
    }
    for (const pealZeroTensor_t tensor : {pealZeroMaster, pealZeroMoment1, pealZeroMoment2, pealZeroWeight}) {
      run.values.push_back(trainer.read(tensor));
    }
    run.counters = {trainer.engine().counters()};
    const pealZeroFusedStatus_t status = trainer.engine().fusedStatus();
    run.buckets = status.buckets;
    run.reason = status.reason;
    EXPECT_EQ(run.fusedBuckets, announce == Announce::Yes ? fusedBefore : 0);
    EXPECT_EQ(run.counters[0].calls[pealZeroFused], run.fusedBuckets);
  });
  for (int rank = 1; rank < ranks; ++rank) {
    const FusedRun& other = runs[static_cast<size_t>(rank)];
    for (size_t i = 0; i < other.values.size(); ++i) {
      EXPECT_EQ(std::memcmp(other.values[i].data(), runs[0].values[i].data(), 4 * other.values[i].size()), 0)
          << "rank " << rank << " of " << ranks << " has other values";
    }
    runs[0].counters.push_back(other.counters[0]);
  }
  return runs[0];
}

void expectSameRun(const FusedRun& fused, const FusedRun& expected, const std::string& what) {
  for (size_t i = 0; i < expected.values.size(); ++i) {
    ASSERT_EQ(fused.values[i].size(), expected.values[i].size());
    EXPECT_EQ(std::memcmp(fused.values[i].data(), expected.values[i].data(), 4 * fused.values[i].size()), 0)
        << what << ": tensor " << i;
  }
  EXPECT_EQ(std::memcmp(fused.norms.data(), expected.norms.data(), 8 * fused.norms.size()), 0) << what;
  EXPECT_EQ(fused.tokens, expected.tokens) << what;
}

// ---- equality -------------------------------------------------------------------------------------------

TEST(Fused, SameBitsAndCountersAsTwoPhases) {
  for (const int ranks : rankCounts({1, 2, 3, 4, 5})) {
    for (const auto& [microBatches, each] : {std::pair{1, 0}, std::pair{3, 0}, std::pair{3, 1}}) {
      for (const int stage : {1, 2}) {
        pealZeroOptions_t options = fusable(stage, 1 << 20, microBatches);
        options.reduceEachMicroBatch = each;
        const FusedRun expected = runSteps(ranks, options, Announce::No);
        for (const size_t bucketBytes : {size_t{2}, size_t{100}, size_t{402}, size_t{1} << 20}) {
          options.bucketBytes = bucketBytes;
          const FusedRun fused = runSteps(ranks, options, Announce::Yes);
          const std::string what =
              fmt::format("{} ranks, stage {}, {} micro-batches, each {}, buckets of {} bytes", ranks, stage,
                          microBatches, each, bucketBytes);
          expectSameRun(fused, expected, what);
          EXPECT_GT(fused.fusedBuckets, 0u) << what;
          if (stage == 1) {
            EXPECT_EQ(fused.fusedBuckets, kFusedSteps * fused.buckets) << what;
            EXPECT_EQ(fused.reason, "") << what;
          }
          const FusedRun separate = runSteps(ranks, options, Announce::No);
          for (size_t rank = 0; rank < fused.counters.size(); ++rank) {
            for (const int counter : {pealZeroReduceScatter, pealZeroAllGather}) {
              EXPECT_EQ(fused.counters[rank].calls[counter], separate.counters[rank].calls[counter]) << what;
              EXPECT_EQ(fused.counters[rank].elementsSent[counter],
                        separate.counters[rank].elementsSent[counter])
                  << what;
              EXPECT_EQ(fused.counters[rank].bytesSent[counter], separate.counters[rank].bytesSent[counter])
                  << what;
            }
            EXPECT_EQ(fused.counters[rank].calls[pealZeroControl], 2 * kFusedSteps) << what;
          }
        }
      }
    }
  }
}

// Blocks of several rounds and pieces, that end in the middle of each other.
TEST(Fused, SameBitsWithLargerParameters) {
  const Shape shape{{200'007, 0}, {70'001, 1}, {70'001, 1, pealZeroNoDecay}, {3, 2}};
  for (const int stage : {1, 2}) {
    const pealZeroOptions_t options = fusable(stage, 1 << 18, stage);
    const FusedRun fused = runSteps(3, options, Announce::Yes, shape);
    expectSameRun(fused, runSteps(3, options, Announce::No, shape), fmt::format("stage {}", stage));
    EXPECT_GT(fused.fusedBuckets, 0u);
  }
}

// A bucket may have parameters of several groups, and any kind of master.
TEST(Fused, SameBitsWithGroupsRemaindersAndStochasticRounding) {
  Shape shape = unevenShape();
  for (size_t p = 0; p < shape.size(); ++p) {
    shape[p].group = static_cast<int>(p % 3);
  }
  pealZeroGroup_t slow = defaultGroup(), decaying = defaultGroup();
  slow.learningRateFactor = 0.1;
  slow.beta2 = 0.9;
  decaying.weightDecay = 0.7;
  for (int kind = 0; kind < 3; ++kind) {
    pealZeroOptions_t options = fusable(2, 250);
    options.master = kind == 1 ? pealZeroMasterRemainder : pealZeroMasterFp32;
    options.stochasticRounding = kind == 2 ? 1 : 0;
    options.seed = 5;
    const FusedRun fused = runSteps(4, options, Announce::Yes, shape, {}, {slow, decaying});
    expectSameRun(fused, runSteps(4, options, Announce::No, shape, {}, {slow, decaying}),
                  fmt::format("kind {}", kind));
    EXPECT_GT(fused.fusedBuckets, 0u);
  }
}

// Buckets rebuilt after the first step, of parameters that lie apart in the order of registration.
TEST(Fused, SameBitsWithRebuiltBuckets) {
  const auto prepare = [](int, Trainer& trainer) { trainer.order = {0, 7, 2, 9, 4, 5, 10, 1, 8, 3, 6}; };
  for (const int microBatches : {1, 2}) {
    pealZeroOptions_t options = fusable(1, 150, microBatches);
    options.stochasticRounding = 1;
    const FusedRun fused = runSteps(3, options, Announce::Yes, unevenShape(), prepare);
    expectSameRun(fused, runSteps(3, options, Announce::No, unevenShape(), prepare),
                  fmt::format("{} micro-batches", microBatches));
    options.rebuildBuckets = 0;
    expectSameRun(fused, runSteps(3, options, Announce::Yes, unevenShape(), prepare), "as registered");
    EXPECT_EQ(fused.reason, "");
  }
}

TEST(Fused, MissingGradientsAndRanksWithoutTokens) {
  const auto prepare = [](int rank, Trainer& trainer) {
    trainer.tokens = [](int r) -> uint64_t { return r == 1 ? 40 : 0; };
    if (rank == 0) {
      trainer.withheld = {0, 3, 5, 9};
    }
  };
  for (const int stage : {1, 2}) {
    const pealZeroOptions_t options = fusable(stage, 100);
    expectSameRun(runSteps(3, options, Announce::Yes, unevenShape(), prepare),
                  runSteps(3, options, Announce::No, unevenShape(), prepare), fmt::format("stage {}", stage));
  }
}

// skipNonFinite 0: the step is made, on all ranks alike, and the report says NaN.
TEST(Fused, ANonFiniteGradientIsNotSkipped) {
  const auto prepare = [](int rank, Trainer& trainer) {
    if (rank == 1) {
      trainer.tamper = [](size_t parameter, int, uint16_t* gradient) {
        if (parameter == 8) {
          gradient[77] = 0x7f80;  // infinity
        }
      };
    }
  };
  for (const int stage : {0, 1, 2, 3}) {
    const pealZeroOptions_t options = fusable(stage, 100);
    const FusedRun fused = runSteps(3, options, Announce::Yes, unevenShape(), prepare);
    expectSameRun(fused, runSteps(3, options, Announce::No, unevenShape(), prepare),
                  fmt::format("stage {}", stage));
    EXPECT_TRUE(std::isnan(fused.norms[0]));
    const std::vector<float>& masters = fused.values[0];
    EXPECT_EQ(std::count_if(masters.begin(), masters.end(), [](float value) { return std::isnan(value); }),
              1);
  }
}

// ---- two phases all the same ----------------------------------------------------------------------------

TEST(Fused, SaysWhyNotAndDoesTheSame) {
  const auto expectReason = [](const char* text, int ranks, const auto& change) {
    pealZeroOptions_t options = fusable(1, 100);
    change(options);
    const FusedRun announced = runSteps(ranks, options, Announce::Yes);
    EXPECT_EQ(announced.fusedBuckets, 0u) << text;
    EXPECT_NE(announced.reason.find(text), std::string::npos) << announced.reason;
    expectSameRun(announced, runSteps(ranks, options, Announce::No), text);
  };
  expectReason("clipNorm is 0.5", 2, [](auto& o) { o.clipNorm = 0.5; });
  expectReason("skipNonFinite is 1", 2, [](auto& o) { o.skipNonFinite = 1; });
  expectReason("stage 0", 2, [](auto& o) { o.stage = 0; });
  expectReason("stage 3", 2, [](auto& o) { o.stage = 3; });
  expectReason("gradients or weights are fp32", 2, [](auto& o) { o.reduceType = pealZeroReduceFp32; });
  expectReason("2 shard groups", 4, [](auto& o) { o.shardGroup = 2; });
}

// Units with more buckets than stage 2 has buffers: only as many wait for the unit's end as leave one free.
TEST(Fused, Stage2FusesWhatItsBuffersAllow) {
  const Shape shape{{8, 0}, {8, 0}, {8, 0}, {8, 1}, {8, 1}, {8, 1}, {8, 1}};
  for (const int slots : {1, 2, 3, 4}) {
    pealZeroOptions_t options = fusable(2, 16);
    options.bucketSlots = slots;
    const FusedRun fused = runSteps(2, options, Announce::Yes, shape);
    const uint64_t ofUnit = std::max(1, slots - 1);
    EXPECT_EQ(fused.fusedBuckets, kFusedSteps * 2 * ofUnit) << slots;
    EXPECT_EQ(fused.reason.empty(), ofUnit == 4);
    EXPECT_NE(fused.reason.find(fmt::format("{} of 7 buckets are fused", 2 * ofUnit)), std::string::npos)
        << fused.reason;
    expectSameRun(fused, runSteps(2, options, Announce::No, shape), fmt::format("{} buffers", slots));
  }
}

// Backward passes that leave all units at their end, when stage 2 has long needed the buffers of most
// buckets.
struct LateRun {
  std::vector<float> weights;
  std::vector<double> norms;
  std::string reason;
};

constexpr int kLateUnits = 5;

LateRun leaveLate(int ranks, int slots, Announce announce) {
  LateRun run;
  onRanks(ranks, [&](int rank, pealComm_t comm) {
    pealZeroOptions_t options = fusable(2, 16);
    options.bucketSlots = slots;
    Engine engine(comm, options);
    const std::vector<float> ones(8, 1.0f);
    for (int unit = 0; unit < kLateUnits; ++unit) {
      engine.setInitial(engine.addParameter(fmt::format("p{}", unit), 8, unit, pealZeroDecay), ones.data());
    }
    engine.seal();
    LateRun mine;
    for (int step = 0; step < 3; ++step) {
      if (announce == Announce::Yes) {
        engine.expectStep(0.1, 1);
      }
      for (int unit = kLateUnits - 1; unit >= 0; --unit) {
        engine.enter(unit, pealZeroBackward);
        std::fill_n(engine.gradient(unit), 8, roundToBf16(static_cast<float>(unit + step + rank)));
        engine.gradientReady(unit);
      }
      for (int unit = kLateUnits - 1; unit >= 0; --unit) {
        engine.leave(unit, pealZeroBackward);
      }
      engine.endMicroBatch();
      const pealZeroReport_t report = engine.step(0.1, 1);
      mine.norms.push_back(report.gradientNorm);
      EXPECT_EQ(report.fusedBuckets, announce == Announce::Yes ? static_cast<uint64_t>(slots) : 0u);
    }
    for (int unit = 0; unit < kLateUnits; ++unit) {
      std::vector<float> values(8);
      engine.read(unit, pealZeroMaster, values.data());
      mine.weights.insert(mine.weights.end(), values.begin(), values.end());
    }
    mine.reason = engine.fusedStatus().reason;
    if (rank == 0) {
      run = mine;
    }
  });
  return run;
}

TEST(Fused, UnitsLeftLateAtStage2AreUpdatedByTheStep) {
  for (const int ranks : {1, 2, 3}) {
    for (const int slots : {1, 2, 4}) {
      const LateRun announced = leaveLate(ranks, slots, Announce::Yes);
      const LateRun expected = leaveLate(ranks, slots, Announce::No);
      EXPECT_EQ(announced.weights, expected.weights) << ranks << " ranks, " << slots << " buffers";
      EXPECT_EQ(announced.norms, expected.norms);
      EXPECT_NE(announced.reason.find(fmt::format("bucket {} of 5 was last not fused", 4 - slots)),
                std::string::npos)
          << announced.reason;
    }
  }
}

// ---- what goes wrong ------------------------------------------------------------------------------------

void expectRefusal(pealZero_t zero, pealResult_t actual, const char* text) {
  EXPECT_EQ(actual, pealInvalidUsage) << text;
  EXPECT_NE(std::strstr(pealZeroGetLastError(zero), text), nullptr) << pealZeroGetLastError(zero);
}

// One engine by hand: two units of one parameter each, a bucket each.
class TwoUnits {
 public:
  TwoUnits(pealComm_t comm, const pealZeroOptions_t& options) : engine(comm, options) {
    const std::vector<float> ones(8, 1.0f);
    for (int unit = 0; unit < 2; ++unit) {
      engine.setInitial(engine.addParameter(fmt::format("p{}", unit), 8, unit, pealZeroDecay), ones.data());
    }
    engine.seal();
  }
  void gradientOf(int unit) {
    engine.enter(unit, pealZeroBackward);
    std::fill_n(engine.gradient(unit), 8, roundToBf16(0.5f));
    engine.gradientReady(unit);
  }
  Engine engine;
};

TEST(Fused, AStepOtherThanAnnouncedIsRefusedAndTheAnnouncedOneGoesOn) {
  for (const bool canFuse : {true, false}) {
    onRanks(2, [&](int, pealComm_t comm) {
      pealZeroOptions_t options = fusable(2, 16);
      options.skipNonFinite = canFuse ? 0 : 1;
      TwoUnits model(comm, options);
      Engine& engine = model.engine;
      pealZero_t zero = engine.handle();
      engine.expectStep(0.1, 4);
      engine.expectStep(0.25, 5);  // the last announcement counts
      model.gradientOf(1);
      expectRefusal(zero, pealZeroExpectStep(zero, 0.25, 5),
                    "when gradients of its last micro-batch are ready");
      engine.leave(1, pealZeroBackward);
      if (canFuse) {
        expectRefusal(zero, pealZeroUnitEnter(zero, 1, pealZeroForward), "was announced");
      }
      model.gradientOf(0);
      engine.leave(0, pealZeroBackward);
      engine.endMicroBatch();
      expectRefusal(zero, pealZeroExpectStep(zero, 0.25, 5), "after its last micro-batch");
      if (canFuse) {
        expectRefusal(zero, pealZeroUnitEnter(zero, 0, pealZeroForward), "was announced");
      }
      expectRefusal(zero, pealZeroStep(zero, 0.5, 5, nullptr),
                    "announced with learning rate 0.25 and 5 tokens");
      expectRefusal(zero, pealZeroStep(zero, 0.25, 6, nullptr), "is made with 0.25 and 6");
      const pealZeroReport_t report = engine.step(0.25, 5);
      EXPECT_EQ(report.fusedBuckets, canFuse ? 2u : 0u);
      EXPECT_EQ(report.tokens, 10u);
      EXPECT_EQ(report.gradientNorm, 0.4);  // 16 times (1/10)^2, rooted
      // The next is not announced.
      model.gradientOf(1);
      engine.leave(1, pealZeroBackward);
      EXPECT_EQ(pealZeroUnitEnter(zero, 1, pealZeroForward), pealSuccess);
      engine.leave(1, pealZeroForward);
      model.gradientOf(0);
      engine.leave(0, pealZeroBackward);
      engine.endMicroBatch();
      EXPECT_EQ(engine.step(0.5, 7).fusedBuckets, 0u);
    });
  }
}

// Ranks that announce other learning rates, or no tokens at all: an error on each, and nothing was updated.
TEST(Fused, RanksThatDisagreeAreRefusedTogether) {
  const auto expectFailureOfAll = [](const char* text, double secondRate, uint64_t tokens) {
    onRanks(3, [&](int rank, pealComm_t comm) {
      Trainer trainer(comm, rank, fusable(1, 100), unevenShape());
      trainer.announces = true;
      trainer.tokens = [tokens](int) { return tokens; };
      try {
        trainer.step(rank == 2 ? secondRate : 0.01);
        ADD_FAILURE() << "accepted on rank " << rank;
      } catch (const Failure& failure) {
        EXPECT_NE(std::strstr(failure.what(), text), nullptr) << failure.what();
      }
    });
  };
  expectFailureOfAll("different learning rates", 0.02, 8);
  expectFailureOfAll("no rank had a token", 0.01, 0);
}

// A rank that does not announce makes other collectives than the others: an error that says so, no hang.
TEST(Fused, ARankThatDoesNotAnnounceIsNoticed) {
  onRanks(2, [](int rank, pealComm_t comm) {
    Trainer trainer(comm, rank, fusable(2, 100), unevenShape());
    trainer.announces = rank == 0;
    EXPECT_THROW(trainer.step(), Failure);
    EXPECT_NE(pealZeroEndMicroBatch(trainer.engine().handle()), pealSuccess);
  });
}

// A rank leaves when some buckets of the others' step are on their way.
TEST(Fused, ARankThatGivesUpInTheMiddleIsNoticed) {
  for (const int stage : {1, 2}) {
    onRanks(3, [&](int rank, pealComm_t comm) {
      const Shape shape{{40'000, 0}, {40'000, 1}, {40'000, 2}};
      Trainer trainer(comm, rank, fusable(stage, 80'000), shape);
      trainer.announces = true;
      trainer.step();
      ASSERT_EQ(pealBarrier(comm, nullptr), pealSuccess);
      if (rank == 1) {
        Engine& engine = trainer.engine();
        engine.expectStep(1e-2, trainer.tokens(rank));
        engine.enter(2, pealZeroBackward);
        std::fill_n(engine.gradient(2), 40'000, uint16_t{0});
        engine.gradientReady(2);
        engine.leave(2, pealZeroBackward);  // its bucket goes off
        return;                             // destroys the engine
      }
      try {
        trainer.step();
        ADD_FAILURE() << "the step went on without rank 1, at stage " << stage;
      } catch (const Failure& failure) {
        EXPECT_EQ(failure.code(), pealRemoteError) << failure.what();
      }
      EXPECT_EQ(pealZeroEndMicroBatch(trainer.engine().handle()), pealRemoteError);
    });
  }
}

}  // namespace
}  // namespace peal::zero::test
