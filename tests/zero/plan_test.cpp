// The planner beyond the published cases: uneven shards, buffers, the recommendation, and wrong input.
#include <gtest/gtest.h>

#include <cstring>
#include <limits>
#include <string>

#include "peal/zero.hpp"

namespace peal::zero {
namespace {

pealZeroPlanInput_t inputOf(uint64_t parameters, int64_t ranks) {
  pealZeroPlanInput_t input = defaultPlanInput();
  input.parameters = parameters;
  input.ranks = ranks;
  return input;
}

TEST(Plan, UnevenShardsAddUpToTheWhole) {
  for (const int64_t ranks : {1, 3, 7, 13}) {
    uint64_t elements = 0, optimizer = 0, weights = 0;
    for (int64_t rank = 0; rank < ranks; ++rank) {
      pealZeroPlanInput_t input = inputOf(1009, ranks);
      input.frozenParameters = 10;
      input.rank = rank;
      const pealZeroPlanStage_t row = plan(input).stages[3];
      elements += row.shardElements;
      optimizer += row.optimizer;
      weights += row.weights;
      EXPECT_EQ(row.gradients, 2 * row.shardElements);
      EXPECT_EQ(row.modelStates, row.weights + row.gradients + row.optimizer);
    }
    EXPECT_EQ(elements, 1009u);
    EXPECT_EQ(optimizer, 12u * 1009u);
    EXPECT_EQ(weights, 2u * 1019u);
  }
}

TEST(Plan, WorkingBuffersHaveTheirOwnFormulas) {
  pealZeroPlanInput_t input = inputOf(1000, 4);
  input.microBatches = 2;
  input.bucketElements = 90;
  input.buckets = 12;
  input.units = 10;
  input.unitElements = 150;
  const pealZeroPlan_t plans = plan(input);
  EXPECT_EQ(plans.stages[0].accumulation, 4000u);
  EXPECT_EQ(plans.stages[1].accumulation, 4000u);
  EXPECT_EQ(plans.stages[2].accumulation, 1000u);
  EXPECT_EQ(plans.stages[3].accumulation, 1000u);
  EXPECT_EQ(plans.stages[2].gradientBuffers, 2u * 2u * 90u);
  EXPECT_EQ(plans.stages[3].gradientBuffers, 3u * 2u * 150u);
  EXPECT_EQ(plans.stages[3].unitBuffers, 3u * 2u * 150u);
  EXPECT_EQ(plans.stages[1].gradientBuffers + plans.stages[1].unitBuffers, 0u);
  input.reduceEachMicroBatch = 1;
  EXPECT_EQ(plan(input).stages[0].accumulation, 4000u);
  EXPECT_EQ(plan(input).stages[1].accumulation, 1000u);
  input.buckets = 1;
  input.units = 2;
  EXPECT_EQ(plan(input).stages[2].gradientBuffers, 2u * 90u);
  EXPECT_EQ(plan(input).stages[3].unitBuffers, 2u * 2u * 150u);
}

TEST(Plan, ReducingEachMicroBatchCostsMoreElements) {
  pealZeroPlanInput_t input = inputOf(1000, 4);
  input.microBatches = 5;
  input.reduceEachMicroBatch = 1;
  EXPECT_EQ(plan(input).stages[0].elements, 10'000.0);
  EXPECT_EQ(plan(input).stages[1].elements, 6'000.0);
  EXPECT_EQ(plan(input).stages[2].elements, 6'000.0);
}

TEST(Plan, RecommendsTheLeastCommunicationThatFits) {
  pealZeroPlanInput_t input = inputOf(13'000'000'000, 32);
  EXPECT_EQ(plan(input).recommended, 2) << "as little as stage 0, with the least memory";
  input.microBatches = 8;
  EXPECT_EQ(plan(input).recommended, 1) << "stage 2 would reduce every micro-batch";
  input.deviceBytes = 60e9;
  EXPECT_EQ(plan(input).recommended, 2);
  input.deviceBytes = 20e9;
  EXPECT_EQ(plan(input).recommended, 3);
  input.deviceBytes = 5e9;
  pealZeroPlan_t nothing = plan(input);
  EXPECT_EQ(nothing.recommended, -1);
  EXPECT_EQ(nothing.stages[3].ranksNeeded, 52);  // 13e9 (16 + 4) / 52 = 5e9
  EXPECT_NE(std::string(nothing.reason).find("with 52 ranks"), std::string::npos) << nothing.reason;
  input.activationBytes = 6e9;
  nothing = plan(input);
  EXPECT_NE(std::string(nothing.reason).find("No number of ranks"), std::string::npos) << nothing.reason;
}

TEST(Plan, TheFewestRanksFitAndOneFewerDoNot) {
  for (const double memory : {30e9, 45e9, 80e9}) {
    pealZeroPlanInput_t input = inputOf(6'738'149'376, 1);
    input.deviceBytes = memory;
    for (int stage = 1; stage <= 3; ++stage) {
      const int64_t needed = plan(input).stages[stage].ranksNeeded;
      if (needed == 0) {
        EXPECT_GT(4.0 * 6'738'149'376, memory) << "only stage 1's floor is above some of these";
        continue;
      }
      pealZeroPlanInput_t enough = input;
      enough.ranks = needed;
      EXPECT_EQ(plan(enough).stages[stage].fits, 1);
      ASSERT_GT(needed, 1);
      enough.ranks = needed - 1;
      EXPECT_EQ(plan(enough).stages[stage].fits, 0);
    }
  }
}

TEST(Plan, MoreIsExposedWhenSendingIsSlowerThanComputing) {
  pealZeroPlanInput_t input = inputOf(1'000'000'000, 8);
  input.flopsPerSecond = 1e14;
  input.networkBytesPerSecond = 1e10;
  for (int stage = 0; stage <= 3; ++stage) {
    input.units = 40;
    const double needed = plan(input).stages[stage].tokensToHide;
    EXPECT_NEAR(needed, 1e4 * 7 / 8, 1e-6);
    double last = 1e300;
    for (const double share : {0.25, 0.5, 0.99, 1.5}) {
      input.tokens = share * needed;
      const pealZeroPlanStage_t row = plan(input).stages[stage];
      EXPECT_LT(row.exposedSeconds, last);
      EXPECT_GT(row.exposedSeconds, 0);
      EXPECT_LT(row.exposedSeconds, row.communicationSeconds);
      last = row.exposedSeconds;
    }
  }
  input.tokens = 0;
  EXPECT_EQ(plan(input).stages[1].exposedSeconds, plan(input).stages[1].communicationSeconds);
}

TEST(Plan, OneRankSendsNothing) {
  const pealZeroPlan_t plans = plan(inputOf(1000, 1));
  for (int stage = 0; stage <= 3; ++stage) {
    EXPECT_EQ(plans.stages[stage].bytesSent, 0);
    EXPECT_EQ(plans.stages[stage].messages, 0u);
  }
  EXPECT_EQ(plans.stages[pealZeroPlanHsdp].valid, 0);
}

constexpr std::pair<int, int> kGroupedRows[] = {
    {1, pealZeroPlanHsdp1}, {2, pealZeroPlanHsdp2}, {3, pealZeroPlanHsdp}};

TEST(Plan, HsdpOverAllRanksIsItsStage) {
  pealZeroPlanInput_t input = inputOf(1003, 4);
  input.group = 4;
  input.microBatches = 3;
  input.flopsPerSecond = 1e6;
  input.networkBytesPerSecond = 1e4;
  input.latencySeconds = 1e-3;
  input.tokens = 2;
  const pealZeroPlan_t plans = plan(input);
  for (const auto& [stage, row] : kGroupedRows) {
    const pealZeroPlanStage_t& flat = plans.stages[stage];
    const pealZeroPlanStage_t& hsdp = plans.stages[row];
    EXPECT_EQ(hsdp.total, flat.total);
    EXPECT_EQ(hsdp.elements, flat.elements);
    EXPECT_EQ(hsdp.groupBytesSent, flat.bytesSent);
    EXPECT_EQ(hsdp.groupSeconds, flat.networkSeconds);
    EXPECT_EQ(hsdp.exposedSeconds, flat.exposedSeconds);
    EXPECT_EQ(hsdp.messages, flat.messages);
    EXPECT_EQ(hsdp.bytesSent, 0);
    EXPECT_EQ(hsdp.allReduces, 0u);
  }
}

// In groups each row divides and sends what its stage does on as many ranks as a group has, and between
// groups 4 + 2 bytes for each of 1/G of the elements: once a step, or for each micro-batch.
TEST(Plan, HsdpIsItsStageInTheGroupAndAnAllReduceBetween) {
  for (const int each : {0, 1}) {
    pealZeroPlanInput_t input = inputOf(1200, 12);
    input.group = 3;
    input.units = 4;
    input.microBatches = 5;
    input.reduceEachMicroBatch = each;
    input.replicaSumBytes = 4;
    pealZeroPlanInput_t one = input;
    one.ranks = 3;
    one.group = 0;
    for (const auto& [stage, index] : kGroupedRows) {
      const pealZeroPlanStage_t inGroup = plan(one).stages[stage];
      const pealZeroPlanStage_t row = plan(input).stages[index];
      EXPECT_EQ(row.modelStates, inGroup.modelStates);
      EXPECT_EQ(row.accumulation, inGroup.accumulation);
      EXPECT_GT(row.replicaBuffers, 0u);
      EXPECT_EQ(row.elements, inGroup.elements);
      EXPECT_EQ(row.groupBytesSent, inGroup.bytesSent);
      const int reductions = each != 0 ? 5 : 1;
      EXPECT_DOUBLE_EQ(row.replicaElements, reductions * 2 * 400);
      EXPECT_DOUBLE_EQ(row.bytesSent, reductions * 400 * (4 + 2) * 3 / 4.0);
    }
  }
}

TEST(Plan, WrongInputSaysWhichField) {
  const auto refused = [](const char* expected, const auto& change) {
    pealZeroPlanInput_t input = inputOf(1000, 4);
    change(input);
    pealZeroPlan_t unused;
    EXPECT_EQ(pealZeroPlan(&input, &unused), pealInvalidArgument) << expected;
    EXPECT_NE(std::strstr(pealZeroGetLastError(nullptr), expected), nullptr) << pealZeroGetLastError(nullptr);
  };
  refused("magic", [](auto& input) { input.magic = 7; });
  refused("size", [](auto& input) { input.size = 8; });
  refused("ranks is 0", [](auto& input) { input.ranks = 0; });
  refused("rank is 4", [](auto& input) { input.rank = 4; });
  refused("group of 3 does not divide", [](auto& input) { input.group = 3; });
  refused("microBatches is 0", [](auto& input) { input.microBatches = 0; });
  refused("weightBytes is 0", [](auto& input) { input.weightBytes = 0; });
  refused("gradientBytes is 9", [](auto& input) { input.gradientBytes = 9; });
  refused("optimizerBytes is -1", [](auto& input) { input.optimizerBytes = -1; });
  refused("parameters is 1e+18", [](auto& input) { input.parameters = 1'000'000'000'000'000'000; });
  refused("tokens is nan", [](auto& input) { input.tokens = std::numeric_limits<double>::quiet_NaN(); });
  refused("flopsPerSecond is -1", [](auto& input) { input.flopsPerSecond = -1; });
  refused("keptUnits is 3", [](auto& input) { input.keptUnits = 3; });
  refused("activations",
          [](auto& input) { input.layers = input.hidden = input.sequence = input.sequences = 1e5; });
  pealZeroPlan_t unused;
  EXPECT_EQ(pealZeroPlan(nullptr, &unused), pealInvalidArgument);
  const pealZeroPlanInput_t input = inputOf(1, 1);
  EXPECT_EQ(pealZeroPlan(&input, nullptr), pealInvalidArgument);
  EXPECT_THROW(plan(inputOf(1, 0)), Failure);
}

}  // namespace
}  // namespace peal::zero
