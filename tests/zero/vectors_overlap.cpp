// Tokens and times: T of zero-vectors.json, against the planner.
#include <gtest/gtest.h>

#include "tests/zero/vectors.h"

namespace peal::zero::test {
namespace {

double tokensToHide(const json& inputs, int stage, double N, double P = kEven, int reduceBytes = 0) {
  pealZeroPlanInput_t input = inputOf(P, static_cast<int64_t>(N));
  input.flopsPerSecond = inputs.at("F").get<double>();
  input.networkBytesPerSecond = inputs.at("W").get<double>();
  input.reduceBytes = reduceBytes;
  return plan(input).stages[stage].tokensToHide;
}

constexpr double kManyRanks = 1e9;  // (N-1)/N is 1

void threshold(const json& test) {
  const json& expected = test.at("expected");
  const double F = test.at("inputs").at("F").get<double>();
  const double W = test.at("inputs").at("W").get<double>();
  for (int stage = 0; stage <= 3; ++stage) {
    expectPrinted(tokensToHide(test.at("inputs"), stage, kManyRanks), expected.at("T"));
    if (expected.contains("with_N")) {
      ASSERT_EQ(expected.at("with_N"), "F/W*(N-1)/N");
      forEachRanks([&](double N) {
        EXPECT_NEAR(tokensToHide(test.at("inputs"), stage, N), F / W * (N - 1) / N, 1e-6);
      });
    }
  }
}

void thresholdOfFp32(const json& test) {
  expectPrinted(tokensToHide(test.at("inputs"), 0, kManyRanks), test.at("expected").at("T_bf16"));
  expectPrinted(tokensToHide(test.at("inputs"), 0, kManyRanks, kEven, 4),
                test.at("expected").at("T_fp32_reduce"));
}

void fp32Doubles(const json& test) {
  ASSERT_EQ(test.at("expected").at("T"), "2F/W");
  const json machine{{"F", 3e14}, {"W", 4e10}};
  EXPECT_NEAR(tokensToHide(machine, 0, kManyRanks, kEven, 4), 2 * 3e14 / 4e10, 1e-3);
  EXPECT_DOUBLE_EQ(tokensToHide(machine, 0, 8, kEven, 4), 2 * tokensToHide(machine, 0, 8, kEven, 2));
}

void parametersCancel(const json& test) {
  ASSERT_EQ(test.at("expected").at("T"), "same");
  const json machine{{"F", 4e14}, {"W", 5e10}};
  const double first = test.at("inputs").at("P")[0].get<double>();
  const double second = test.at("inputs").at("P")[1].get<double>();
  for (int stage = 0; stage <= 3; ++stage) {
    EXPECT_NEAR(tokensToHide(machine, stage, 8, first) / tokensToHide(machine, stage, 8, second), 1, 1e-12);
  }
}

// At stage 3 both passes need the same tokens, in each micro-batch: with just enough, what is exposed is one
// unit's piece of each pass; with fewer, more.
void thresholdPerMicroBatch(const json& test) {
  ASSERT_EQ(test.at("expected"), json({{"fwd", "2P bytes vs 2PT flops"}, {"bwd", "4P bytes vs 4PT flops"}}));
  pealZeroPlanInput_t input = inputOf(kEven, 4);
  input.flopsPerSecond = 4e14;
  input.networkBytesPerSecond = 5e10;
  input.units = 10;
  const double needed = plan(input).stages[3].tokensToHide;
  for (const int64_t m : {1, 4}) {
    input.microBatches = m;
    EXPECT_DOUBLE_EQ(plan(input).stages[3].tokensToHide, needed);
    input.tokens = needed;
    const pealZeroPlan_t enough = plan(input);
    EXPECT_DOUBLE_EQ(enough.forwardSeconds, 2 * kEven * needed / 4e14 * static_cast<double>(m));
    EXPECT_DOUBLE_EQ(enough.backwardSeconds, 2 * enough.forwardSeconds);
    const double forwardBytes = 2 * kEven * 3 / 4;  // and twice that backward
    const double piece = 3 * forwardBytes / 5e10 / 10;
    EXPECT_NEAR(enough.stages[3].exposedSeconds, static_cast<double>(m) * piece, 1e-9);
    input.tokens = needed / 2;
    EXPECT_GT(plan(input).stages[3].exposedSeconds, 2 * static_cast<double>(m) * piece);
  }
}

void timeOfComputing(const json& test) {
  pealZeroPlanInput_t input = inputOf(test.at("inputs").at("P").get<double>(), 1);
  input.tokens = test.at("inputs").at("T").get<double>();
  input.flopsPerSecond = test.at("inputs").at("F").get<double>();
  const pealZeroPlan_t plans = plan(input);
  expectPrinted(plans.flops, test.at("expected").at("flops"));
  expectPrinted(plans.computeSeconds, test.at("expected").at("step_s"));
  expectPrinted(plans.backwardSeconds, test.at("expected").at("bwd_s"));
}

void tokensOfAField(const json& test) {
  const json& grid = test.at("inputs").at("grid");
  constexpr double kPatch = 4 * 4;  // in the case's text
  const double tokens = grid[0].get<double>() * grid[1].get<double>() / kPatch;
  expectPrinted(tokens, test.at("expected").at("tokens"));
  ASSERT_EQ(test.at("expected").at("source"), "about 65,000 = 4x F/W at 25 GB/s");
  const double needed = tokensToHide(json{{"F", 4e14}, {"W", 2.5e10}}, 0, kManyRanks);
  EXPECT_NEAR(tokens / needed, 4, 0.1);
}

void onlyTheLastBucketIsExposed(const json& test) {
  ASSERT_EQ(test.at("expected").at("exposed"), "only last bucket");
  const json& inputs = test.at("inputs");
  pealZeroPlanInput_t input =
      inputOf(inputs.at("layers").get<double>() * inputs.at("params_per_layer").get<double>(),
              inputs.at("N").get<int64_t>());
  input.flopsPerSecond = inputs.at("F").get<double>();
  input.tokens = inputs.at("T").get<double>();
  input.networkBytesPerSecond = inputs.at("W").get<double>();
  input.bucketBytes = static_cast<uint64_t>(inputs.at("bucket_MB").get<double>() * 1e6);
  const pealZeroPlanStage_t row = plan(input).stages[0];
  const double bucketSeconds =
      2 * static_cast<double>(input.bucketBytes) * 7 / 8 / input.networkBytesPerSecond;
  EXPECT_NEAR(row.exposedSeconds, bucketSeconds, 1e-9);
  EXPECT_GT(row.communicationSeconds, 50 * row.exposedSeconds);
}

}  // namespace

Handlers overlapHandlers() {
  return {
      {"T01", threshold},
      {"T02", threshold},
      {"T03", threshold},
      {"T04", thresholdOfFp32},
      {"T05", fp32Doubles},
      {"T06", parametersCancel},
      {"T07", thresholdPerMicroBatch},
      {"T08", timeOfComputing},
      {"T09", tokensOfAField},
      {"T10", onlyTheLastBucketIsExposed},
  };
}

}  // namespace peal::zero::test
