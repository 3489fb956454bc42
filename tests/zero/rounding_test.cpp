// How weights and masters are kept: stochastic rounding, and remainders in place of fp32 masters. On real
// ranks.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <bit>
#include <cstring>
#include <map>
#include <string>

#include "tests/zero/breadth.h"
#include "tests/zero/ranks.h"
#include "tests/zero/trained_state.h"

namespace peal::zero::test {
namespace {

// Two groups, and frozen parameters in between, so that an element's number is not its place in a bucket.
Shape gappyShape() {
  Shape shape = unevenShape();
  shape[2].frozen = true;
  shape[5].group = 1;
  shape[8].frozen = true;
  return shape;
}

pealZeroOptions_t roundingOptions(int stage, size_t bucketBytes) {
  pealZeroOptions_t options = defaultOptions();
  options.stage = stage;
  options.bucketBytes = bucketBytes;
  options.weightDecay = 0.1;
  return options;
}

TrainedState trainKept(int ranks, const pealZeroOptions_t& options, double learningRate, int steps = 3) {
  pealZeroGroup_t group = defaultGroup();
  group.weightDecay = 0;
  return trainedState(
      ranks, options,
      {.shape = gappyShape(), .groups = {group}, .steps = steps, .learningRate = learningRate});
}

TEST(StochasticRounding, SameBitsAtEveryStageAndBucketSize) {
  for (const int ranks : {1, 2, 3}) {
    pealZeroOptions_t options = roundingOptions(0, 1 << 20);
    const TrainedState nearest = trainKept(ranks, options, 1e-2);
    options.stochasticRounding = 1;
    options.seed = 5;
    const TrainedState expected = trainKept(ranks, options, 1e-2);
    EXPECT_NE(expected.weight, nearest.weight);
    for (int stage = 0; stage <= 3; ++stage) {
      for (const size_t bucketBytes : {size_t{2}, size_t{150}, size_t{1} << 20}) {
        options.stage = stage;
        options.bucketBytes = bucketBytes;
        EXPECT_TRUE(trainKept(ranks, options, 1e-2) == expected) << ranks << " ranks, stage " << stage;
      }
    }
    options.seed = 6;
    EXPECT_NE(trainKept(ranks, options, 1e-2).weight, expected.weight);
  }
}

// A learning rate of 0 leaves the masters as they were, so only the rounding is left: the same on any number
// of ranks, another in the next step, and always to one of the two neighbours.
TEST(StochasticRounding, DependsNotOnTheNumberOfRanks) {
  pealZeroOptions_t options = roundingOptions(0, 1 << 20);
  options.stochasticRounding = 1;
  options.seed = 77;
  const TrainedState one = trainKept(1, options, 0, 2);
  EXPECT_NE(trainKept(1, options, 0, 3).weight, one.weight);
  for (const int ranks : rankCounts({2, 3, 5})) {
    for (const int stage : {1, 3}) {
      options.stage = stage;
      options.bucketBytes = 90;
      const TrainedState many = trainKept(ranks, options, 0, 2);
      EXPECT_EQ(many.master, one.master);
      EXPECT_EQ(many.weight, one.weight) << ranks << " ranks, stage " << stage;
    }
  }
  // 225 masters, trained ones only; weights have the frozen ones in between.
  size_t at = 0, up = 0, down = 0;
  const Shape shape = gappyShape();
  size_t master = 0;
  for (const ModelParameter& parameter : shape) {
    for (uint64_t i = 0; i < parameter.elements; ++i, ++at) {
      if (parameter.frozen) {
        continue;
      }
      const float value = one.master[master++];
      const float below = widen(static_cast<uint16_t>(std::bit_cast<uint32_t>(value) >> 16));
      const float above = widen(static_cast<uint16_t>((std::bit_cast<uint32_t>(value) >> 16) + 1));
      ASSERT_TRUE(one.weight[at] == below || one.weight[at] == above) << at;
      up += one.weight[at] == above ? 1 : 0;
      down += one.weight[at] == below ? 1 : 0;
    }
  }
  EXPECT_EQ(master, one.master.size());
  EXPECT_GT(up, one.master.size() / 4);
  EXPECT_GT(down, one.master.size() / 4);
}

// No master of this run is a tie, so the weights are the same too, and with them all later gradients.
TEST(Remainders, GiveTheBitsOfFp32MastersAtEveryStage) {
  for (const int ranks : rankCounts({1, 2, 3, 5})) {
    pealZeroOptions_t options = roundingOptions(0, 1 << 20);
    const TrainedState expected = trainKept(ranks, options, 1e-2, 4);
    options.master = pealZeroMasterRemainder;
    for (int stage = 0; stage <= 3; ++stage) {
      for (const size_t bucketBytes : {size_t{2}, size_t{150}}) {
        options.stage = stage;
        options.bucketBytes = bucketBytes;
        EXPECT_TRUE(trainKept(ranks, options, 1e-2, 4) == expected) << ranks << " ranks, stage " << stage;
      }
    }
  }
}

TEST(Remainders, TakeTenBytesOfStateAsThePlannerSays) {
  for (int stage = 0; stage <= 3; ++stage) {
    onRanks(3, [&](int rank, pealComm_t comm) {
      pealZeroOptions_t options = roundingOptions(stage, 100);
      options.master = pealZeroMasterRemainder;
      Trainer trainer(comm, rank, options, unevenShape());
      pealZeroPlanInput_t input = defaultPlanInput();
      input.parameters = trainer.elements();
      input.optimizerBytes = 10;
      input.ranks = 3;
      input.rank = rank;
      const pealZeroPlanStage_t row = plan(input).stages[stage];
      std::map<std::string, uint64_t> bytes;
      uint64_t states = 0;
      for (const pealZeroArena_t& arena : trainer.engine().memory()) {
        EXPECT_EQ(arena.bytes, arena.plannedBytes) << arena.name;
        bytes[arena.name] = arena.bytes;
        states += arena.kind == pealZeroModelState ? arena.bytes : 0;
      }
      EXPECT_EQ(bytes["remainders"], 2 * row.shardElements);
      EXPECT_EQ(bytes.count("master"), 0u);
      EXPECT_EQ(states, row.modelStates);
    });
  }
}

TEST(Remainders, AndStochasticRoundingExcludeEachOther) {
  onRanks(1, [](int, pealComm_t comm) {
    pealZeroOptions_t options = defaultOptions();
    options.master = pealZeroMasterRemainder;
    options.stochasticRounding = 1;
    pealZero_t zero = nullptr;
    EXPECT_EQ(pealZeroCreate(&zero, comm, &options), pealInvalidArgument);
    EXPECT_NE(std::strstr(pealZeroGetLastError(nullptr), "switch one of the two off"), nullptr);
    options.stochasticRounding = 2;
    EXPECT_EQ(pealZeroCreate(&zero, comm, &options), pealInvalidArgument);
    EXPECT_NE(std::strstr(pealZeroGetLastError(nullptr), "stochasticRounding is 2"), nullptr);
  });
}

// All ranks round alike or find out that they do not.
TEST(StochasticRounding, RanksMustAgreeOnTheSeed) {
  onRanks(2, [](int rank, pealComm_t comm) {
    pealZeroOptions_t options = defaultOptions();
    options.stochasticRounding = 1;
    options.seed = static_cast<uint64_t>(rank);
    Engine engine(comm, options);
    const float value = 1;
    engine.setInitial(engine.addParameter(parameterOf("w", {}, 0)), &value);
    EXPECT_EQ(pealZeroSeal(engine.handle()), pealInvalidUsage);
    EXPECT_NE(std::strstr(pealZeroGetLastError(engine.handle()), "passed other options"), nullptr);
  });
}

}  // namespace
}  // namespace peal::zero::test
