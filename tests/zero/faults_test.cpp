// What goes wrong: values that are not finite, calls out of order, ranks that disagree or leave. Each is an
// error with a sentence on the ranks concerned, never a hang and never a silent difference.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <chrono>
#include <cmath>
#include <cstring>
#include <limits>

#include "tests/support/limits.h"
#include "tests/zero/ranks.h"

namespace peal::zero::test {
namespace {

pealZeroOptions_t optionsOf(int stage) {
  pealZeroOptions_t options = defaultOptions();
  options.stage = stage;
  options.bucketBytes = 100;
  return options;
}

// The last call failed with this code, and its sentence has this text.
void expectFailure(pealZero_t zero, pealResult_t actual, pealResult_t expected, const char* text) {
  EXPECT_EQ(actual, expected) << text;
  EXPECT_NE(std::strstr(pealZeroGetLastError(zero), text), nullptr)
      << "\"" << pealZeroGetLastError(zero) << "\" lacks \"" << text << "\"";
}

// ---- numbers ----------------------------------------------------------------------------------------------

TEST(NonFinite, OneBadGradientOnOneRankSkipsTheStepOnAll) {
  constexpr int kRanks = 3;
  for (int stage = 0; stage <= 3; ++stage) {
    for (const float bad :
         {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
      onRanks(kRanks, [&](int rank, pealComm_t comm) {
        Trainer trainer(comm, rank, optionsOf(stage), unevenShape());
        trainer.step();
        const std::vector<float> master = trainer.read(pealZeroMaster);
        const std::vector<float> moments = trainer.read(pealZeroMoment2);
        const std::vector<float> weights = trainer.read(pealZeroWeight);
        if (rank == 1) {
          trainer.tamper = [bad](size_t parameter, int, uint16_t* gradient) {
            if (parameter == 5) {
              gradient[77] = static_cast<uint16_t>(std::bit_cast<uint32_t>(bad) >> 16);
            }
          };
        }
        const pealZeroReport_t skipped = trainer.step();
        EXPECT_EQ(skipped.skipped, 1) << "stage " << stage << " rank " << rank;
        EXPECT_EQ(skipped.step, 1u);
        EXPECT_TRUE(std::isnan(skipped.gradientNorm));
        EXPECT_EQ(trainer.read(pealZeroMaster), master);
        EXPECT_EQ(trainer.read(pealZeroMoment2), moments);
        EXPECT_EQ(trainer.read(pealZeroWeight), weights);
        trainer.tamper = nullptr;
        const pealZeroReport_t next = trainer.step();
        EXPECT_EQ(next.skipped, 0);
        EXPECT_EQ(next.step, 2u);
        EXPECT_NE(trainer.read(pealZeroMaster), master);
      });
    }
  }
}

TEST(Missing, CountsAsZerosAndIsReported) {
  std::vector<std::vector<float>> withheld(4), zeros(4);
  for (int stage = 0; stage <= 3; ++stage) {
    for (const bool hold : {true, false}) {
      onRanks(2, [&](int rank, pealComm_t comm) {
        Trainer trainer(comm, rank, optionsOf(stage), unevenShape());
        if (hold) {
          trainer.withheld = {0, 5};
        } else {
          trainer.tamper = [](size_t parameter, int, uint16_t* gradient) {
            if (parameter == 0 || parameter == 5) {
              std::fill_n(gradient, unevenShape()[parameter].elements, uint16_t{0});
            }
          };
        }
        trainer.step();
        EXPECT_EQ(trainer.step().missingGradients, hold ? 2u : 0u);
        auto& into = hold ? withheld : zeros;
        const std::vector<float> master = trainer.read(pealZeroMaster);
        if (rank == 0) {
          into[static_cast<size_t>(stage)] = master;
        }
      });
    }
    EXPECT_EQ(withheld[static_cast<size_t>(stage)], zeros[static_cast<size_t>(stage)]) << stage;
    EXPECT_EQ(withheld[static_cast<size_t>(stage)], withheld[0]) << stage;
  }
}

// A whole micro-batch without backward on one rank: its tokens are 0, its gradients zeros.
TEST(Missing, ARankMayHaveNothingInAStep) {
  for (int stage = 0; stage <= 3; ++stage) {
    onRanks(2, [&](int rank, pealComm_t comm) {
      Engine engine(comm, optionsOf(stage));
      const float initial[4] = {1, 2, 3, 4};
      const int id = engine.addParameter("p", 4, 0, pealZeroNoDecay);
      engine.setInitial(id, initial);
      engine.seal();
      // At stage 3 every rank takes part in the gathering.
      engine.enter(0, pealZeroBackward);
      if (rank == 0) {
        std::fill_n(engine.gradient(id), 4, roundToBf16(2.0f));
        engine.gradientReady(id);
      }
      engine.leave(0, pealZeroBackward);
      engine.endMicroBatch();
      const pealZeroReport_t report = engine.step(0.5, rank == 0 ? 8 : 0);
      EXPECT_EQ(report.tokens, 8u);
      EXPECT_EQ(report.missingGradients, rank == 0 ? 0u : 1u);
      EXPECT_EQ(report.gradientNorm, 0.5);  // 4 times (2/8)^2, rooted
    });
  }
}

TEST(Missing, AsAnErrorNamesTheParameter) {
  onRanks(1, [](int rank, pealComm_t comm) {
    pealZeroOptions_t options = optionsOf(1);
    options.missingGradients = pealZeroMissingIsError;
    Trainer trainer(comm, rank, options, unevenShape());
    trainer.withheld = {5};
    try {
      trainer.step();
      ADD_FAILURE() << "a missing gradient was accepted";
    } catch (const Failure& failure) {
      EXPECT_EQ(failure.code(), pealInvalidUsage);
      EXPECT_NE(std::strstr(failure.what(), "\"p5\""), nullptr) << failure.what();
    }
  });
}

TEST(Sizes, FewerElementsThanRanksAndNoneAtAll) {
  for (const Shape& shape : {Shape{{1, 0}, {0, 0}, {2, 1}}, Shape{{0, 0}}, Shape{{5, 0}}, Shape{{13, 0}}}) {
    std::vector<float> expected;  // of stage 0, where every rank updates everything
    for (int stage = 0; stage <= 3; ++stage) {
      std::vector<std::vector<float>> ends(7);
      onRanks(7, [&](int rank, pealComm_t comm) {
        Trainer trainer(comm, rank, optionsOf(stage), shape);
        trainer.step();
        trainer.step();
        std::vector<float>& end = ends[static_cast<size_t>(rank)];
        end = trainer.read(pealZeroMaster);
        const std::vector<float> weights = trainer.read(pealZeroWeight);
        EXPECT_EQ(end.size(), trainer.elements());
        end.insert(end.end(), weights.begin(), weights.end());
      });
      expected = stage == 0 ? ends[0] : expected;
      for (const std::vector<float>& end : ends) {
        EXPECT_EQ(end, expected) << "stage " << stage;
      }
    }
  }
}

// ---- calls out of order
// -------------------------------------------------------------------------------------

TEST(Usage, NullsAndOptions) {
  pealZero_t zero = nullptr;
  const pealZeroOptions_t options = defaultOptions();
  expectFailure(nullptr, pealZeroCreate(&zero, nullptr, &options), pealInvalidArgument, "comm is NULL");
  expectFailure(nullptr, pealZeroSeal(nullptr), pealInvalidArgument, "zero is NULL");
  EXPECT_EQ(pealZeroDestroy(nullptr), pealSuccess);
  onRanks(1, [&](int, pealComm_t comm) {
    expectFailure(nullptr, pealZeroCreate(nullptr, comm, &options), pealInvalidArgument, "zero is NULL");
    expectFailure(nullptr, pealZeroCreate(&zero, comm, nullptr), pealInvalidArgument, "options is NULL");
    const auto refused = [&](const char* text, const auto& change) {
      pealZeroOptions_t changed = options;
      change(changed);
      expectFailure(nullptr, pealZeroCreate(&zero, comm, &changed), pealInvalidArgument, text);
      EXPECT_EQ(zero, nullptr);
    };
    refused("stage is 4", [](auto& o) { o.stage = 4; });
    refused("stage is -1", [](auto& o) { o.stage = -1; });
    refused("microBatches is 0", [](auto& o) { o.microBatches = 0; });
    refused("bucketBytes is 0", [](auto& o) { o.bucketBytes = 0; });
    refused("clipNorm is -1", [](auto& o) { o.clipNorm = -1; });
    refused("beta1 is 1", [](auto& o) { o.beta1 = 1; });
    refused("beta2 is nan", [](auto& o) { o.beta2 = std::numeric_limits<double>::quiet_NaN(); });
    refused("weightDecay is -1", [](auto& o) { o.weightDecay = -1; });
    refused("epsilon is 0; it must be from 1.2e-38 to 1", [](auto& o) { o.epsilon = 0; });
    refused("epsilon is 1e-46", [](auto& o) { o.epsilon = 1e-46; });
    refused("size", [](auto& o) { o.size = 4; });
    refused("magic", [](auto& o) { o.magic = 4; });
  });
}

TEST(Usage, OptionsAreCheckedWithoutACommunicator) {
  pealZeroOptions_t options = optionsOf(2);
  EXPECT_EQ(pealZeroCheckOptions(&options), pealSuccess);
  options.prefetchDepth = 65;
  expectFailure(nullptr, pealZeroCheckOptions(&options), pealInvalidArgument, "prefetchDepth is 65");
  options = optionsOf(0);
  options.shardGroup = 2;
  expectFailure(nullptr, pealZeroCheckOptions(&options), pealInvalidArgument, "shards nothing");
  expectFailure(nullptr, pealZeroCheckOptions(nullptr), pealInvalidArgument, "options");
}

TEST(Usage, Registration) {
  onRanks(1, [](int, pealComm_t comm) {
    Engine engine(comm, optionsOf(1));
    pealZero_t zero = engine.handle();
    int id = 9;
    const float values[8] = {};
    const auto add = [&](const char* name, uint64_t elements, int unit) {
      const pealZeroParameter_t parameter = parameterOf(name, {elements}, unit);
      return pealZeroAddParameter(zero, &parameter, &id);
    };
    expectFailure(zero, pealZeroAddParameter(zero, nullptr, &id), pealInvalidArgument, "parameter is NULL");
    expectFailure(zero, add(nullptr, 4, 0), pealInvalidArgument, "name is NULL");
    expectFailure(zero, add("", 4, 0), pealInvalidArgument, "empty");
    expectFailure(zero, add("a", 4, 1), pealInvalidArgument, "first parameter's unit is 0");
    EXPECT_EQ(add("a", 4, 0), pealSuccess);
    EXPECT_EQ(id, 0);
    expectFailure(zero, add("a", 4, 0), pealInvalidArgument, "another has this name");
    expectFailure(zero, add("b", 4, 2), pealInvalidArgument, "of 0 or 1");
    expectFailure(zero, add("b", uint64_t{1} << 60, 0), pealInvalidArgument, "10^15");
    EXPECT_EQ(add("b", 4, 1), pealSuccess);
    expectFailure(zero, add("c", 4, 0), pealInvalidArgument, "registered together");
    expectFailure(zero, pealZeroSetInitial(zero, 2, values), pealInvalidArgument, "no parameter 2: 2");
    expectFailure(zero, pealZeroSetInitial(zero, -1, values), pealInvalidArgument, "no parameter -1");
    expectFailure(zero, pealZeroSetInitial(zero, 0, nullptr), pealInvalidArgument, "values is NULL");
    expectFailure(zero, pealZeroKeepUnit(zero, 2), pealInvalidArgument, "no unit 2");
    expectFailure(zero, pealZeroUnitEnter(zero, 0, pealZeroForward), pealInvalidUsage, "not sealed");
    expectFailure(zero, pealZeroStep(zero, 0.1, 1, nullptr), pealInvalidUsage, "not sealed");
    EXPECT_EQ(pealZeroSetInitial(zero, 0, values), pealSuccess);
    int count = 0;
    EXPECT_EQ(pealZeroParameterCount(zero, &count), pealSuccess);
    EXPECT_EQ(count, 2);
    pealZeroParameter_t parameter = PEAL_ZERO_PARAMETER_INITIALIZER;
    uint64_t elements = 0;
    EXPECT_EQ(pealZeroParameterInfo(zero, 1, &parameter, &elements), pealSuccess);
    EXPECT_STREQ(parameter.name, "b");
    EXPECT_EQ(elements, 4u);
    EXPECT_EQ(parameter.unit, 1);
    expectFailure(zero, pealZeroParameterInfo(zero, 2, nullptr, nullptr), pealInvalidArgument,
                  "no parameter 2");
    // Parameter 1 has no first values until it is given some.
    expectFailure(zero, pealZeroSeal(zero), pealInvalidUsage, "parameter 1 (\"b\") has no first values");
    expectFailure(zero, pealZeroStep(zero, 0.1, 1, nullptr), pealInvalidUsage, "not sealed");
    EXPECT_EQ(pealZeroSetInitial(zero, 1, values), pealSuccess);
    EXPECT_EQ(pealZeroSeal(zero), pealSuccess);
  });
}

TEST(Usage, AnEngineWithoutParameters) {
  onRanks(2, [](int, pealComm_t comm) {
    Engine engine(comm, optionsOf(2));
    expectFailure(engine.handle(), pealZeroSeal(engine.handle()), pealInvalidUsage, "no parameters");
  });
}

TEST(Usage, UnitsAndGradientsOutOfOrder) {
  for (int stage = 0; stage <= 3; ++stage) {
    SCOPED_TRACE(stage);
    onRanks(1, [&](int, pealComm_t comm) {
      Engine engine(comm, optionsOf(stage));
      pealZero_t zero = engine.handle();
      const float values[8] = {};
      for (int i = 0; i < 3; ++i) {
        engine.setInitial(engine.addParameter(fmt::format("p{}", i), 8, i / 2, pealZeroDecay), values);
      }
      engine.seal();
      uint16_t* gradient = nullptr;
      const uint16_t* weights = nullptr;
      expectFailure(zero, pealZeroSeal(zero), pealInvalidUsage, "sealed already");
      const pealZeroParameter_t late = parameterOf("q", {4}, 1);
      expectFailure(zero, pealZeroAddParameter(zero, &late, nullptr), pealInvalidUsage, "is sealed");
      expectFailure(zero, pealZeroSetInitial(zero, 0, values), pealInvalidUsage, "too late");
      expectFailure(zero, pealZeroKeepUnit(zero, 0), pealInvalidUsage, "is sealed");
      expectFailure(zero, pealZeroWeights(zero, 0, &weights), pealInvalidUsage, "unit 0 is not open");
      expectFailure(zero, pealZeroGradient(zero, 0, &gradient), pealInvalidUsage, "not open for backward");
      expectFailure(zero, pealZeroUnitEnter(zero, 5, pealZeroForward), pealInvalidArgument, "no unit 5");
      engine.enter(0, pealZeroBackward);
      engine.leave(0, pealZeroBackward);
      expectFailure(zero, pealZeroUnitEnter(zero, 0, pealZeroBackward), pealInvalidUsage, "a second time");
      expectFailure(zero, pealZeroUnitLeave(zero, 1, pealZeroForward), pealInvalidUsage, "it is not open");
      engine.enter(1, pealZeroForward);
      expectFailure(zero, pealZeroUnitEnter(zero, 1, pealZeroForward), pealInvalidUsage, "while it is open");
      expectFailure(zero, pealZeroUnitLeave(zero, 1, pealZeroBackward), pealInvalidUsage, "entered forward");
      expectFailure(zero, pealZeroGradient(zero, 2, &gradient), pealInvalidUsage, "not open for backward");
      expectFailure(zero, pealZeroEndMicroBatch(zero), pealInvalidUsage, "while a unit is open");
      engine.leave(1, pealZeroForward);
      engine.enter(1, pealZeroBackward);
      expectFailure(zero, pealZeroGradientReady(zero, 2), pealInvalidUsage, "not asked for");
      expectFailure(zero, pealZeroGradient(zero, 3, &gradient), pealInvalidArgument, "no parameter 3");
      expectFailure(zero, pealZeroGradientReady(zero, 3), pealInvalidArgument, "no parameter 3");
      expectFailure(zero, pealZeroGradient(zero, 2, nullptr), pealInvalidArgument, "gradient is NULL");
      std::fill_n(engine.gradient(2), 8, uint16_t{0});
      engine.gradientReady(2);
      expectFailure(zero, pealZeroGradientReady(zero, 2), pealInvalidUsage, "handed over already");
      expectFailure(zero, pealZeroGradient(zero, 2, &gradient), pealInvalidUsage, "handed over already");
      expectFailure(zero, pealZeroStep(zero, 0.1, 1, nullptr), pealInvalidUsage, "0 of 1 micro-batches");
      float read[8];
      expectFailure(zero, pealZeroRead(zero, 0, pealZeroMaster, read), pealInvalidUsage, "between steps");
      engine.leave(1, pealZeroBackward);
      engine.endMicroBatch();
      expectFailure(zero, pealZeroEndMicroBatch(zero), pealInvalidUsage, "ended already");
      expectFailure(zero, pealZeroUnitEnter(zero, 0, pealZeroBackward), pealInvalidUsage,
                    "call pealZeroStep");
      expectFailure(zero, pealZeroStep(zero, -1, 1, nullptr), pealInvalidArgument, "learning rate is -1");
      expectFailure(zero, pealZeroStep(zero, NAN, 1, nullptr), pealInvalidArgument, "learning rate is nan");
      expectFailure(zero, pealZeroStep(zero, 0.1, uint64_t{1} << 50, nullptr), pealInvalidArgument, "2^42");
      EXPECT_EQ(pealZeroStep(zero, 0.1, 1, nullptr), pealSuccess);
      expectFailure(zero, pealZeroRead(zero, 0, pealZeroMaster, nullptr), pealInvalidArgument,
                    "values is NULL");
      EXPECT_EQ(pealZeroRead(zero, 0, pealZeroMaster, read), pealSuccess);
    });
  }
}

TEST(Usage, TooFewBuffers) {
  onRanks(1, [](int, pealComm_t comm) {
    const float values[8] = {};
    for (const int stage : {2, 3}) {
      pealZeroOptions_t options = optionsOf(stage);
      options.bucketBytes = 16;  // one parameter each
      options.bucketSlots = 2;
      options.unitSlots = 3;
      Engine engine(comm, options);
      pealZero_t zero = engine.handle();
      for (int i = 0; i < 4; ++i) {
        engine.setInitial(engine.addParameter(fmt::format("p{}", i), 8, stage == 3 ? i : 0, pealZeroDecay),
                          values);
      }
      engine.seal();
      uint16_t* gradient = nullptr;
      if (stage == 3) {
        for (int unit = 0; unit < 3; ++unit) {
          engine.enter(unit, pealZeroBackward);
        }
        expectFailure(zero, pealZeroUnitEnter(zero, 3, pealZeroBackward), pealInvalidUsage,
                      "raise unitSlots");
      } else {
        engine.enter(0, pealZeroBackward);
      }
      EXPECT_EQ(pealZeroGradient(zero, 0, &gradient), pealSuccess);
      EXPECT_EQ(pealZeroGradient(zero, 1, &gradient), pealSuccess);
      expectFailure(zero, pealZeroGradient(zero, 2, &gradient), pealInvalidUsage, "raise bucketSlots");
    }
  });
}

// ---- ranks that disagree or leave
// -----------------------------------------------------------------------------

// Every rank's seal fails; the sentence names the others.
void expectDisagreement(const char* text, const std::function<void(int rank, pealZeroOptions_t&)>& options,
                        const std::function<void(int rank, Engine&)>& model) {
  onRanks(3, [&](int rank, pealComm_t comm) {
    pealZeroOptions_t mine = optionsOf(1);
    options(rank, mine);
    Engine engine(comm, mine);
    const float values[8] = {};
    engine.setInitial(engine.addParameter("first", 8, 0, pealZeroDecay), values);
    model(rank, engine);
    expectFailure(engine.handle(), pealZeroSeal(engine.handle()), pealInvalidUsage, text);
    expectFailure(engine.handle(), pealZeroSeal(engine.handle()), pealInvalidUsage, text);
  });
}

TEST(Disagreement, OptionsAndParametersAreComparedAtTheSeal) {
  const auto sameOptions = [](int, pealZeroOptions_t&) {};
  const auto sameModel = [](int, Engine&) {};
  const float values[8] = {};
  expectDisagreement(
      "other options", [](int rank, auto& o) { o.stage = rank == 2 ? 2 : 1; }, sameModel);
  expectDisagreement(
      "other options", [](int rank, auto& o) { o.clipNorm = rank == 1 ? 1 : 0; }, sameModel);
  expectDisagreement("other parameters", sameOptions, [&](int rank, Engine& engine) {
    engine.setInitial(engine.addParameter(rank == 1 ? "other" : "second", 8, 0, pealZeroDecay), values);
  });
  expectDisagreement("other parameters", sameOptions, [&](int rank, Engine& engine) {
    engine.setInitial(engine.addParameter("second", rank == 0 ? 7 : 8, 0, pealZeroDecay), values);
  });
  expectDisagreement("other parameters", sameOptions, [&](int rank, Engine& engine) {
    engine.setInitial(engine.addParameter("second", 8, 0, rank == 0 ? pealZeroDecay : pealZeroNoDecay),
                      values);
  });
}

TEST(Disagreement, MissingFirstValuesOnRankZeroAreToldToAllAndCanBeMended) {
  const std::vector<float> values(8, 0.5F);
  onRanks(3, [&](int rank, pealComm_t comm) {
    Engine engine(comm, optionsOf(2));
    const int id = engine.addParameter("only", 8, 0, pealZeroDecay);
    if (rank == 0) {
      expectFailure(engine.handle(), pealZeroSeal(engine.handle()), pealInvalidUsage, "no first values");
    } else {
      expectFailure(engine.handle(), pealZeroSeal(engine.handle()), pealRemoteError, "rank 0 cannot seal");
    }
    engine.setInitial(id, values.data());
    engine.seal();
    std::vector<float> sealed(8);
    engine.read(id, pealZeroMaster, sealed.data());
    EXPECT_EQ(sealed, values);
  });
}

TEST(Disagreement, LearningRatesAndNoTokens) {
  const double twin = 0.01 + 1346269 * (std::nextafter(0.01, 1.0) - 0.01);
  // Far apart, one bit apart, and such that a digest of few bits would not see it.
  for (const double other : {0.02, std::nextafter(0.01, 1.0), twin}) {
    for (const bool announces : {false, true}) {
      onRanks(3, [&](int rank, pealComm_t comm) {
        pealZeroOptions_t options = optionsOf(1);
        options.skipNonFinite = announces ? 0 : 1;
        Trainer trainer(comm, rank, options, unevenShape());
        trainer.announces = announces;
        try {
          trainer.step(rank == 2 ? other : 0.01);
          ADD_FAILURE() << "different learning rates were accepted on rank " << rank;
        } catch (const Failure& failure) {
          EXPECT_EQ(failure.code(), pealInvalidUsage);
          EXPECT_NE(std::strstr(failure.what(), "different learning rates"), nullptr) << failure.what();
        }
      });
    }
  }
  onRanks(3, [](int rank, pealComm_t comm) {
    Trainer trainer(comm, rank, optionsOf(2), unevenShape());
    trainer.tokens = [](int) { return uint64_t{0}; };
    try {
      trainer.step();
      ADD_FAILURE() << "a step without tokens was accepted on rank " << rank;
    } catch (const Failure& failure) {
      EXPECT_EQ(failure.code(), pealInvalidArgument);
      EXPECT_NE(std::strstr(failure.what(), "no rank had a token"), nullptr) << failure.what();
    }
  });
}

// A rank that cannot compare says so, and nobody waits for it.
TEST(Disagreement, WhoIsInTheMiddleOfAStepComparesNoReplicas) {
  onRanks(3, [](int rank, pealComm_t comm) {
    Trainer trainer(comm, rank, optionsOf(1), unevenShape());
    trainer.step();
    if (rank == 1) {
      trainer.engine().enter(0, pealZeroForward);
    }
    EXPECT_EQ(pealZeroCheckReplicas(trainer.engine().handle()),
              rank == 1 ? pealInvalidUsage : pealRemoteError);
    EXPECT_NE(std::strstr(pealZeroGetLastError(trainer.engine().handle()), "compared between steps"), nullptr)
        << pealZeroGetLastError(trainer.engine().handle());
    if (rank == 1) {
      trainer.engine().leave(0, pealZeroForward);
    }
    trainer.engine().checkReplicas();
    EXPECT_EQ(trainer.step().step, 2u);
  });
}

// The engine's communicator is its own: the caller's may go first.
TEST(Leaving, TheCallersCommunicatorMayBeDestroyedBeforeTheEngine) {
  onRanks(3, [](int rank, pealComm_t comm) {
    pealComm_t callers = nullptr;
    ASSERT_EQ(pealCommSplit(comm, 0, 2 - rank, &callers, nullptr), pealSuccess);
    int callersRank = -1;
    ASSERT_EQ(pealCommUserRank(callers, &callersRank), pealSuccess);
    EXPECT_EQ(callersRank, 2 - rank);
    Trainer trainer(callers, callersRank, optionsOf(2), unevenShape());
    trainer.step();
    ASSERT_EQ(pealCommDestroy(callers), pealSuccess);
    EXPECT_EQ(trainer.step().step, 2u);
    EXPECT_EQ(trainer.read(pealZeroWeight).size(), trainer.elements());
  });
}

// A rank that gives up in the middle of a step: the others get an error at once, not at the deadline.
TEST(Leaving, ARankThatGivesUpIsNoticed) {
  for (int stage = 0; stage <= 3; ++stage) {
    const auto began = std::chrono::steady_clock::now();
    onRanks(3, [&](int rank, pealComm_t comm) {
      Trainer trainer(comm, rank, optionsOf(stage), unevenShape());
      trainer.step();
      ASSERT_EQ(pealBarrier(comm, nullptr), pealSuccess);  // all have returned from the first step
      if (rank == 1) {
        trainer.engine().enter(0, pealZeroForward);
        return;  // destroys the engine
      }
      try {
        trainer.step();
        ADD_FAILURE() << "the step went on without rank 1, at stage " << stage;
      } catch (const Failure& failure) {
        EXPECT_EQ(failure.code(), pealRemoteError) << failure.what();
      }
      const pealResult_t again = pealZeroEndMicroBatch(trainer.engine().handle());
      EXPECT_EQ(again, pealRemoteError);
      EXPECT_NE(std::strstr(pealZeroGetLastError(trainer.engine().handle()), "out of step"), nullptr);
    });
    EXPECT_LT(std::chrono::steady_clock::now() - began, peal::test::kAtOnce);
  }
}

}  // namespace
}  // namespace peal::zero::test
