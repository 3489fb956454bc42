// What a parameter can be beside trained with the options' AdamW: in a group, frozen, tied. On real ranks.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <string>

#include "tests/zero/arenas.h"
#include "tests/zero/breadth.h"
#include "tests/zero/ranks.h"
#include "tests/zero/trained_state.h"

namespace peal::zero::test {
namespace {

// Three groups, frozen parameters at the start, inside and at the end of units, a unit that is all frozen,
// two second names.
Shape mixedShape() {
  return {{37, 0, pealZeroDecay, 1},      {41, 0, pealZeroDecay, 0, true},
          {5, 0, pealZeroNoDecay, 2},     {64, 1, pealZeroDecay, 0, true},
          {0, 1, pealZeroDecay, 0, true}, {1, 2, pealZeroNoDecay, 0, true},
          {129, 2, pealZeroDecay, 2},     {13, 2},
          {200, 3, pealZeroNoDecay},      {37, 0, pealZeroDecay, 0, false, 0},
          {31, 4, pealZeroDecay, 1},      {41, 0, pealZeroDecay, 0, false, 1}};
}

std::vector<pealZeroGroup_t> twoGroups() {
  pealZeroGroup_t first = defaultGroup(), second = defaultGroup();
  first.learningRateFactor = 0.25;
  first.beta1 = 0.5;
  first.weightDecay = 0.3;
  second.beta2 = 0.9;
  second.epsilon = 1e-3;
  return {first, second};
}

pealZeroOptions_t mixedOptions(int stage, size_t bucketBytes, int microBatches = 1) {
  pealZeroOptions_t options = defaultOptions();
  options.stage = stage;
  options.bucketBytes = bucketBytes;
  options.microBatches = microBatches;
  options.reduceEachMicroBatch = 1;
  options.clipNorm = 0.5;
  options.weightDecay = 0.1;
  return options;
}

TrainedState trainMixed(int ranks, const pealZeroOptions_t& options, const std::vector<int>& kept = {}) {
  return trainedState(ranks, options, {.shape = mixedShape(), .groups = twoGroups(), .keptUnits = kept});
}

TEST(Registration, MixedModelsHaveTheSameBitsAtEveryStage) {
  for (const int ranks : rankCounts({1, 2, 3, 5})) {
    const TrainedState expected = trainMixed(ranks, mixedOptions(0, 1 << 20, 2));
    EXPECT_EQ(expected.master.size(), 415u);
    EXPECT_EQ(expected.weight.size(), 415u + 106u);
    for (int stage = 0; stage <= 3; ++stage) {
      for (const size_t bucketBytes : {size_t{2}, size_t{300}}) {
        EXPECT_TRUE(trainMixed(ranks, mixedOptions(stage, bucketBytes, 2)) == expected)
            << ranks << " " << stage;
      }
    }
    EXPECT_TRUE(trainMixed(ranks, mixedOptions(3, 1 << 20, 2), {0, 1, 2, 3, 4}) == expected) << ranks;
  }
}

// AdamW in fp64, each parameter with its group's numbers.
TEST(Registration, GroupsFollowTheReference) {
  const Shape shape = mixedShape();
  const std::vector<pealZeroGroup_t> groups = twoGroups();
  pealZeroOptions_t options = mixedOptions(2, 200);
  options.clipNorm = 0;
  std::vector<float> master(1000);
  onRanks(2, [&](int rank, pealComm_t comm) {
    Trainer trainer(comm, rank, options, shape, {}, groups);
    trainer.step();
    trainer.step();
    const std::vector<float> end = trainer.read(pealZeroMaster);
    if (rank == 0) {
      master = end;
    }
  });
  size_t at = 0;
  for (size_t p = 0; p < shape.size(); ++p) {
    if (!shape[p].trains()) {
      continue;
    }
    const auto own = [&](double pealZeroGroup_t::*field, double inherited) {
      const double value = shape[p].group == 0 ? -1 : groups[static_cast<size_t>(shape[p].group) - 1].*field;
      return value == -1 ? inherited : value;
    };
    const double rate = 1e-2 * own(&pealZeroGroup_t::learningRateFactor, 1);
    const double beta1 = own(&pealZeroGroup_t::beta1, options.beta1);
    const double beta2 = own(&pealZeroGroup_t::beta2, options.beta2);
    const double epsilon = own(&pealZeroGroup_t::epsilon, options.epsilon);
    const double decay =
        shape[p].decay == pealZeroDecay ? own(&pealZeroGroup_t::weightDecay, options.weightDecay) : 0;
    for (uint64_t i = 0; i < shape[p].elements; ++i, ++at) {
      double w = initialValue(p, i), m = 0, v = 0;
      uint16_t rounded = roundToBf16(initialValue(p, i));
      for (uint64_t step = 1; step <= 2; ++step) {
        const float sum = widen(syntheticGradient(p, i, 0, step - 1, 0, rounded)) +
                          widen(syntheticGradient(p, i, 1, step - 1, 0, rounded));
        const double g = widen(roundToBf16(sum)) / 37.0;  // 16 and 21 tokens
        m = beta1 * m + (1 - beta1) * g;
        v = beta2 * v + (1 - beta2) * g * g;
        const auto t = static_cast<double>(step);
        w -= rate *
             (m / (1 - std::pow(beta1, t)) / (std::sqrt(v / (1 - std::pow(beta2, t))) + epsilon) + decay * w);
        rounded = roundToBf16(static_cast<float>(w));
      }
      ASSERT_NEAR(master[at], w, 1e-5 + 1.3e-6 * std::abs(w)) << "parameter " << p << ", element " << i;
    }
  }
  EXPECT_EQ(at, master.size());
}

TEST(Registration, FrozenParametersKeepTheirFirstValues) {
  const Shape shape = mixedShape();
  for (int stage = 0; stage <= 3; ++stage) {
    onRanks(3, [&](int rank, pealComm_t comm) {
      Trainer trainer(comm, rank, mixedOptions(stage, 1 << 20), shape, {}, twoGroups());
      trainer.step();
      Engine& engine = trainer.engine();
      for (size_t p = 0; p < shape.size(); ++p) {
        const int id = static_cast<int>(p);
        if (!shape[p].frozen) {
          continue;
        }
        std::vector<float> values(shape[p].elements + 1);
        engine.read(id, pealZeroWeight, values.data());
        UnitScope scope(engine, shape[p].unit, pealZeroBackward);
        const uint16_t* weights = engine.weights(id);
        for (uint64_t i = 0; i < shape[p].elements; ++i) {
          ASSERT_EQ(weights[i], roundToBf16(initialValue(p, i))) << "stage " << stage << ", parameter " << p;
          ASSERT_EQ(values[i], widen(weights[i]));
        }
        uint16_t* gradient = nullptr;
        EXPECT_EQ(pealZeroGradient(engine.handle(), id, &gradient), pealInvalidUsage);
        EXPECT_NE(std::strstr(pealZeroGetLastError(engine.handle()), "is frozen: it has no gradient"),
                  nullptr);
        EXPECT_EQ(pealZeroGradientReady(engine.handle(), id), pealInvalidUsage);
        scope.leave();
        engine.endMicroBatch();
        engine.step(0.1, 1);
        EXPECT_EQ(pealZeroRead(engine.handle(), id, pealZeroMoment1, values.data()), pealInvalidUsage);
        EXPECT_NE(std::strstr(pealZeroGetLastError(engine.handle()), "has weights only"), nullptr);
      }
    });
  }
}

TEST(Registration, FrozenParametersCountAsTheFormulasSay) {
  for (const int ranks : rankCounts({1, 2, 3, 7})) {
    for (int stage = 0; stage <= 3; ++stage) {
      std::vector<pealZeroCounters_t> counted(static_cast<size_t>(ranks));
      onRanks(ranks, [&](int rank, pealComm_t comm) {
        Trainer trainer(comm, rank, mixedOptions(stage, 100, 2), mixedShape(), {}, twoGroups());
        trainer.step();
        counted[static_cast<size_t>(rank)] = trainer.engine().counters();
        pealZeroPlanInput_t input = defaultPlanInput();
        input.parameters = 415;
        input.frozenParameters = 106;
        input.ranks = ranks;
        input.rank = rank;
        const uint64_t states = plannedArenas(trainer.engine(), stage).modelStates;
        EXPECT_EQ(states, plan(input).stages[stage].modelStates) << ranks << " ranks, stage " << stage;
      });
      uint64_t gathered = 0, reduced = 0;
      for (const pealZeroCounters_t& counters : counted) {
        gathered += counters.elementsSent[pealZeroAllGather];
        reduced +=
            counters.elementsSent[pealZeroReduceScatter] + counters.elementsSent[pealZeroAllReduce] / 2;
      }
      const auto others = static_cast<uint64_t>(ranks - 1);
      EXPECT_EQ(reduced, 2 * others * 415);
      EXPECT_EQ(gathered, stage == 0 ? 0 : stage == 3 ? 4 * others * (415 + 106) : others * 415);
      // Five units, of which four train and three have frozen parameters.
      if (stage == 3) {
        EXPECT_EQ(counted[0].calls[pealZeroAllGather], 4u * (4u + 3u));
        EXPECT_EQ(counted[0].calls[pealZeroReduceScatter], 2u * 4u);
      }
    }
  }
}

TEST(Registration, TiedNamesAreTheSameWeights) {
  for (int stage = 0; stage <= 3; ++stage) {
    onRanks(2, [&](int rank, pealComm_t comm) {
      Trainer trainer(comm, rank, mixedOptions(stage, 100), mixedShape(), {}, twoGroups());
      trainer.step();
      Engine& engine = trainer.engine();
      std::vector<float> first(37), second(37);
      for (const pealZeroTensor_t tensor : {pealZeroMaster, pealZeroMoment2, pealZeroWeight}) {
        engine.read(0, tensor, first.data());
        engine.read(9, tensor, second.data());
        EXPECT_EQ(first, second);
      }
      UnitScope scope(engine, 0, pealZeroBackward);
      EXPECT_EQ(engine.weights(0), engine.weights(9));
      EXPECT_EQ(engine.weights(1), engine.weights(11));
      uint16_t* gradient = nullptr;
      EXPECT_EQ(pealZeroGradient(engine.handle(), 9, &gradient), pealInvalidUsage);
      EXPECT_NE(
          std::strstr(pealZeroGetLastError(engine.handle()), "hand the sum over as that of parameter 0"),
          nullptr)
          << pealZeroGetLastError(engine.handle());
      scope.leave();
    });
  }
}

TEST(Registration, DescriptorsComeBackAsTheyWere) {
  onRanks(1, [](int, pealComm_t comm) {
    Engine engine(comm, defaultOptions());
    EXPECT_EQ(engine.addGroup(defaultGroup()), 1);
    pealZeroParameter_t table = parameterOf("table", {5, 3, 2}, 0);
    table.group = 1;
    table.decay = pealZeroNoDecay;
    table.frozen = 1;
    EXPECT_EQ(engine.addParameter(table), 0);
    EXPECT_EQ(engine.addParameter(parameterOf("scalar", {}, 0)), 1);
    EXPECT_EQ(engine.addParameter(parameterOf("w", {3}, 1)), 2);
    pealZeroParameter_t head = parameterOf("head", {5, 3, 2}, 0);
    head.tiedTo = "table";
    EXPECT_EQ(engine.addParameter(head), 3);
    pealZeroParameter_t third = parameterOf("third", {5, 3, 2}, 0);
    third.tiedTo = "head";
    EXPECT_EQ(engine.addParameter(third), 4);
    const float values[30] = {};
    for (int id = 0; id < 3; ++id) {
      engine.setInitial(id, values);
    }
    EXPECT_EQ(pealZeroSetInitial(engine.handle(), 3, values), pealInvalidUsage);
    EXPECT_NE(std::strstr(pealZeroGetLastError(engine.handle()), "another name for parameter 0"), nullptr);
    engine.seal();
    pealZeroParameter_t parameter = PEAL_ZERO_PARAMETER_INITIALIZER;
    uint64_t elements = 0;
    for (const int id : {0, 3, 4}) {
      ASSERT_EQ(pealZeroParameterInfo(engine.handle(), id, &parameter, &elements), pealSuccess);
      EXPECT_EQ(elements, 30u);
      ASSERT_EQ(parameter.dims, 3);
      EXPECT_EQ(parameter.extents[1], 3u);
      EXPECT_EQ(parameter.group, 1);
      EXPECT_EQ(parameter.decay, pealZeroNoDecay);
      EXPECT_EQ(parameter.frozen, 1);
      EXPECT_EQ(id == 0, parameter.tiedTo == nullptr);
    }
    EXPECT_STREQ(parameter.tiedTo, "table");
    ASSERT_EQ(pealZeroParameterInfo(engine.handle(), 1, &parameter, &elements), pealSuccess);
    EXPECT_EQ(elements, 1u);
    EXPECT_EQ(parameter.dims, 0);
  });
}

TEST(Registration, RefusesWhatCannotBe) {
  onRanks(1, [](int, pealComm_t comm) {
    Engine engine(comm, defaultOptions());
    const auto refused = [&](const char* text, auto change) {
      pealZeroParameter_t parameter = parameterOf("w", {4, 2}, 0);
      change(parameter);
      EXPECT_EQ(pealZeroAddParameter(engine.handle(), &parameter, nullptr), pealInvalidArgument);
      EXPECT_NE(std::strstr(pealZeroGetLastError(engine.handle()), text), nullptr)
          << pealZeroGetLastError(engine.handle());
    };
    engine.addParameter(parameterOf("a", {4, 2}, 0));
    refused("size 4", [](auto& p) { p.size = 4; });
    refused("magic", [](auto& p) { p.magic = 4; });
    refused("has -1 dimensions", [](auto& p) { p.dims = -1; });
    refused("has 9 dimensions", [](auto& p) { p.dims = 9; });
    refused("10^15", [](auto& p) { p.extents[0] = p.extents[1] = uint64_t{1} << 33; });
    refused("there is no group 1: 0 were added", [](auto& p) { p.group = 1; });
    refused("there is no group -1", [](auto& p) { p.group = -1; });
    refused("frozen is 2", [](auto& p) { p.frozen = 2; });
    refused("\"b\", which is not registered yet", [](auto& p) { p.tiedTo = "b"; });
    refused("shape [4, 2] and unit 0", [](auto& p) { p.tiedTo = "a", p.extents[0] = 2, p.extents[1] = 4; });
    refused("shape [4, 2] and unit 0", [](auto& p) { p.tiedTo = "a", p.unit = 1; });
    const auto refusedGroup = [&](const char* text, auto change) {
      pealZeroGroup_t group = defaultGroup();
      change(group);
      EXPECT_EQ(pealZeroAddGroup(engine.handle(), &group, nullptr), pealInvalidArgument);
      EXPECT_NE(std::strstr(pealZeroGetLastError(engine.handle()), text), nullptr)
          << pealZeroGetLastError(engine.handle());
    };
    refusedGroup("magic", [](auto& g) { g.magic = 0; });
    refusedGroup("learningRateFactor is -1;", [](auto& g) { g.learningRateFactor = -1; });
    refusedGroup("beta1 is 1;", [](auto& g) { g.beta1 = 1; });
    refusedGroup("beta2 is -0.5;", [](auto& g) { g.beta2 = -0.5; });
    refusedGroup("epsilon is nan;", [](auto& g) { g.epsilon = std::nan(""); });
    refusedGroup("epsilon is 0; it must be from 1.2e-38 to 1", [](auto& g) { g.epsilon = 0; });
    refusedGroup("epsilon is 1e-46;", [](auto& g) { g.epsilon = 1e-46; });
  });
}

// Ranks that differ in one of the new fields find out when they seal.
TEST(Registration, RanksMustAgree) {
  const auto expectRefused = [](const std::function<void(pealZeroGroup_t&, pealZeroParameter_t&)>& change) {
    onRanks(2, [&](int rank, pealComm_t comm) {
      Engine engine(comm, defaultOptions());
      pealZeroGroup_t group = defaultGroup();
      pealZeroParameter_t parameter = parameterOf("w", {4, 2}, 0);
      if (rank == 1) {
        change(group, parameter);
      }
      engine.addGroup(group);
      const float values[8] = {};
      engine.setInitial(engine.addParameter(parameter), values);
      EXPECT_EQ(pealZeroSeal(engine.handle()), pealInvalidUsage);
      EXPECT_NE(std::strstr(pealZeroGetLastError(engine.handle()), "registered other parameters"), nullptr);
    });
  };
  expectRefused([](auto& group, auto&) { group.learningRateFactor = 2; });
  expectRefused([](auto&, auto& parameter) { parameter.group = 1; });
  expectRefused([](auto&, auto& parameter) { parameter.frozen = 1; });
  expectRefused([](auto&, auto& parameter) { parameter.extents[0] = 2, parameter.extents[1] = 4; });
}

// Numbers that come later are those that were there from the beginning, on every stage.
TEST(SetGroup, HoldsFromTheNextStepOn) {
  Shape shape = unevenShape();
  for (size_t p = 0; p < shape.size(); p += 2) {
    shape[p].group = 1;
  }
  pealZeroGroup_t first = defaultGroup(), later = defaultGroup();
  later.learningRateFactor = 0.25;
  later.weightDecay = 0.5;
  later.beta2 = 0.9;
  for (int stage = 0; stage <= 3; ++stage) {
    SCOPED_TRACE(stage);
    onRanks(2, [&](int rank, pealComm_t comm) {
      pealZeroOptions_t options = defaultOptions();
      options.stage = stage;
      options.bucketBytes = 100;
      Trainer changed(comm, rank, options, shape, {}, {first});
      changed.engine().setGroup(1, later);
      Trainer expected(comm, rank, options, shape, {}, {later});
      EXPECT_EQ(changed.step().gradientNorm, expected.step().gradientNorm);
      EXPECT_EQ(changed.read(pealZeroMaster), expected.read(pealZeroMaster));
      EXPECT_EQ(changed.read(pealZeroMoment2), expected.read(pealZeroMoment2));
      pealZeroGroup_t none = defaultGroup();
      none.learningRateFactor = 0;
      changed.engine().setGroup(0, none);
      changed.engine().setGroup(1, none);
      const std::vector<float> before = changed.read(pealZeroMaster);
      changed.step();
      EXPECT_EQ(changed.read(pealZeroMaster), before);
      changed.engine().setGroup(1, later);
      changed.step();
      EXPECT_NE(changed.read(pealZeroMaster), before);
    });
  }
}

TEST(SetGroup, IsTheSameOnAllRanksOrChangesNothing) {
  onRanks(2, [&](int rank, pealComm_t comm) {
    Trainer trainer(comm, rank, defaultOptions(), unevenShape());
    Trainer untouched(comm, rank, defaultOptions(), unevenShape());
    const pealZero_t zero = trainer.engine().handle();
    const auto refused = [&](int group, const pealZeroGroup_t& numbers, pealResult_t code, const char* text) {
      EXPECT_EQ(pealZeroSetGroup(zero, group, &numbers), code);
      EXPECT_NE(std::strstr(pealZeroGetLastError(zero), text), nullptr) << pealZeroGetLastError(zero);
    };
    pealZeroGroup_t numbers = defaultGroup();
    numbers.weightDecay = rank == 0 ? 0.1 : 0.2;
    refused(0, numbers, pealInvalidUsage, "all ranks give the same. Nothing has changed");
    refused(1, numbers, pealInvalidArgument, "there is no group 1");
    numbers.beta1 = rank == 0 ? 1 : 0.9;
    refused(0, numbers, rank == 0 ? pealInvalidArgument : pealRemoteError,
            rank == 0 ? "the group's beta1 is 1" : "rank 0 cannot set group 0");
    trainer.engine().enter(0, pealZeroForward);
    refused(0, defaultGroup(), pealInvalidUsage, "between steps");
    trainer.engine().leave(0, pealZeroForward);
    trainer.step();
    untouched.step();
    EXPECT_EQ(trainer.read(pealZeroMaster), untouched.read(pealZeroMaster));
  });
}

// A vector is as long as its parameter.
TEST(Registration, FirstValuesAreAsManyAsElements) {
  onRanks(1, [](int, pealComm_t comm) {
    Engine engine(comm, defaultOptions());
    const int id = engine.addParameter("w", 8, 0, pealZeroDecay);
    try {
      engine.setInitial(id, std::vector<float>(7));
      ADD_FAILURE() << "did not fail";
    } catch (const Failure& failure) {
      EXPECT_EQ(failure.code(), pealInvalidArgument);
      EXPECT_NE(std::strstr(failure.what(), "has 8 elements, and there are 7 values"), nullptr)
          << failure.what();
    }
    const std::vector<float> values(8, 2.5F);
    engine.setInitial(id, values);
    engine.seal();
    std::vector<float> read(8);
    engine.read(id, pealZeroMaster, read.data());
    EXPECT_EQ(read, values);
  });
}

// First values that a function writes, piece by piece, on rank 0 alone.
struct Asked {
  uint64_t next = 0;
  bool inOrder = true;
  static float value(uint64_t element) { return static_cast<float>(element % 251) / 64; }
  static void fill(void* user, uint64_t first, uint64_t count, float* values) {
    auto& asked = *static_cast<Asked*>(user);
    asked.inOrder = asked.inOrder && first == asked.next && count > 0 && count <= uint64_t{1} << 20;
    asked.next += count;
    for (uint64_t i = 0; i < count; ++i) {
      values[i] = value(first + i);
    }
  }
};

TEST(InitialFunction, GivesEachElementOnceAndInOrder) {
  constexpr uint64_t kMany = (uint64_t{2} << 20) + 77;
  onRanks(2, [](int rank, pealComm_t comm) {
    Engine engine(comm, defaultOptions());
    Asked many, few;
    const float replaced[5] = {};
    const int large = engine.addParameter("large", kMany, 0, pealZeroDecay);
    const int small = engine.addParameter("small", 5, 0, pealZeroDecay);
    engine.setInitial(large, &Asked::fill, &many);
    engine.setInitial(small, replaced);
    engine.setInitial(small, &Asked::fill, &few);
    EXPECT_EQ(pealZeroSetInitialFunction(engine.handle(), small, nullptr, nullptr), pealInvalidArgument);
    EXPECT_NE(std::string(pealZeroGetLastError(engine.handle())).find("fill is NULL"), std::string::npos);
    engine.seal();
    EXPECT_TRUE(many.inOrder && few.inOrder);
    EXPECT_EQ(many.next, rank == 0 ? kMany : 0);
    EXPECT_EQ(few.next, rank == 0 ? 5U : 0);
    std::vector<float> values(kMany);
    engine.read(large, pealZeroMaster, values.data());
    for (uint64_t i = 0; i < kMany; ++i) {
      ASSERT_EQ(values[i], Asked::value(i)) << i;
    }
    // Errors of the engine are errors of peal.
    try {
      engine.setInitial(large, &Asked::fill, &many);
      FAIL() << "after the seal";
    } catch (const peal::Error& error) {
      EXPECT_EQ(error.code(), pealInvalidUsage);
      EXPECT_NE(std::string(error.what()).find("come too late"), std::string::npos) << error.what();
    }
  });
}

// What a function of first values may not do: call the engine, which tells it so, and throw, whatever it is.
struct Unruly {
  pealZero_t zero;
  bool throws = false;
  std::string told;
  static void fill(void* user, uint64_t, uint64_t, float* values) {
    auto& unruly = *static_cast<Unruly*>(user);
    if (unruly.throws) {
      throw 42;
    }
    EXPECT_EQ(pealZeroSeal(unruly.zero), pealInvalidUsage);
    EXPECT_EQ(pealZeroDestroy(unruly.zero), pealInvalidUsage);
    unruly.told = pealZeroGetLastError(unruly.zero);
    *values = 1;
  }
};

TEST(InitialFunction, MayNeitherCallTheEngineNorThrow) {
  for (const bool throws : {false, true}) {
    onRanks(2, [&](int rank, pealComm_t comm) {
      pealZero_t zero = nullptr;
      const pealZeroOptions_t options = defaultOptions();
      ASSERT_EQ(pealZeroCreate(&zero, comm, &options), pealSuccess);
      Unruly unruly{zero, throws, ""};
      pealZeroParameter_t parameter = PEAL_ZERO_PARAMETER_INITIALIZER;
      parameter.name = "one";
      parameter.dims = 0;
      ASSERT_EQ(pealZeroAddParameter(zero, &parameter, nullptr), pealSuccess);
      ASSERT_EQ(pealZeroSetInitialFunction(zero, 0, &Unruly::fill, &unruly), pealSuccess);
      const pealResult_t sealed = pealZeroSeal(zero);
      EXPECT_EQ(sealed, !throws ? pealSuccess : rank == 0 ? pealInternalError : pealRemoteError);
      const std::string& told = throws ? pealZeroGetLastError(zero) : unruly.told;
      if (rank == 0) {
        EXPECT_NE(told.find(throws ? "no std::exception" : "by the function that writes its first values"),
                  std::string::npos)
            << told;
      }
      EXPECT_EQ(pealZeroDestroy(zero), pealSuccess);
    });
  }
}

}  // namespace
}  // namespace peal::zero::test
