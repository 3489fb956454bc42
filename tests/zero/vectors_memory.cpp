// Memory and activations: M and A of zero-vectors.json, against the planner.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <string>

#include "tests/zero/vectors.h"

namespace peal::zero::test {
namespace {

constexpr double kGibibyte = 1024.0 * 1024.0 * 1024.0;

double states(const pealZeroPlanInput_t& input, int stage) {
  return static_cast<double>(plan(input).stages[stage].modelStates);
}

const std::map<std::string, int> kStageNames{{"ddp", 0}, {"DDP", 0}, {"z1", 1}, {"z2", 2}, {"z3", 3}};

// Every entry of `expected` that names a stage is that stage's states over `unit`.
void expectStates(const pealZeroPlanInput_t& input, const json& expected, double unit) {
  int found = 0;
  for (const auto& [name, value] : expected.items()) {
    if (const auto stage = kStageNames.find(name); stage != kStageNames.end()) {
      expectPrinted(states(input, stage->second) / unit, value);
      ++found;
    }
  }
  EXPECT_GT(found, 0) << expected.dump();
}

void formulasOfStates(const json& test) {
  ASSERT_EQ(test.at("expected"), "[(4+K)P, 4P+KP/N, 2P+(2+K)P/N, (4+K)P/N]");
  const double P = kEven;
  for (const int K : {0, 8, 12, 16}) {
    forEachRanks([&](double N) {
      pealZeroPlanInput_t input = inputOf(P, static_cast<int64_t>(N));
      input.optimizerBytes = K;
      EXPECT_DOUBLE_EQ(states(input, 0), (4 + K) * P);
      EXPECT_DOUBLE_EQ(states(input, 1), 4 * P + K * P / N);
      EXPECT_DOUBLE_EQ(states(input, 2), 2 * P + (2 + K) * P / N);
      EXPECT_DOUBLE_EQ(states(input, 3), (4 + K) * P / N);
    });
  }
}

void statesInBytes(const json& test) {
  pealZeroPlanInput_t input = inputOf(test.at("inputs"));
  expectStates(input, test.at("expected"), 1);
  if (test.at("expected").contains("hsdp_G8")) {
    input.group = 8;
    expectPrinted(states(input, pealZeroPlanHsdp), test.at("expected").at("hsdp_G8"));
  }
}

// M05 and M15 say in words which card only stage 3 fits.
void onlyStage3Fits(const json& test, double deviceBytes) {
  statesInBytes(test);
  pealZeroPlanInput_t input = inputOf(test.at("inputs"));
  input.deviceBytes = deviceBytes;
  const pealZeroPlan_t plans = plan(input);
  EXPECT_EQ(plans.recommended, 3) << plans.reason;
  for (int stage = 0; stage <= 3; ++stage) {
    EXPECT_EQ(plans.stages[stage].fits, stage == 3 ? 1 : 0);
  }
}

void floorsOfManyRanks(const json& test) {
  ASSERT_EQ(test.at("inputs").at("N"), "inf");
  const double P = 1e12;
  const pealZeroPlanInput_t input = inputOf(P, 1'000'000'000'000);
  const json& expected = test.at("expected");
  for (const auto& [name, stage] : std::map<std::string, int>{{"z1", 1}, {"z2", 2}, {"z3", 3}}) {
    EXPECT_NEAR(states(input, stage) / P, expected.at(name).get<double>(), 1e-6);
  }
  EXPECT_NEAR(states(input, 0) / states(input, 1), expected.at("ratio_vs_ddp")[0].get<double>(), 1e-6);
  EXPECT_NEAR(states(input, 0) / states(input, 2), expected.at("ratio_vs_ddp")[1].get<double>(), 1e-6);
  ASSERT_EQ(expected.at("ratio_vs_ddp")[2], "inf");
  EXPECT_GT(states(input, 0) / states(input, 3), 1e11);
}

void bytesOfFp32Shards(const json& test) {
  ASSERT_EQ(test.at("inputs").at("bytes"), "4+4+8");
  pealZeroPlanInput_t input = inputOf(kEven, 8);
  input.weightBytes = 4;
  input.gradientBytes = 4;
  input.optimizerBytes = 8;
  expectPrinted(states(input, 3) * 8 / kEven, test.at("expected").at("per_param"));
}

void statesOfHsdp(const json& test) {
  ASSERT_EQ(test.at("expected").at("bytes"), "16P/G");
  for (const int64_t group : {1, 2, 4, 8}) {
    pealZeroPlanInput_t input = inputOf(kEven, 16);
    input.group = group;
    EXPECT_DOUBLE_EQ(states(input, pealZeroPlanHsdp), 16 * kEven / static_cast<double>(group));
  }
}

void gibibytesAtStage3(const json& test) {
  expectPrinted(states(inputOf(test.at("inputs")), 3) / kGibibyte, test.at("expected").at("z3_GiB"));
  EXPECT_LT(states(inputOf(test.at("inputs")), 3), 2 * kGibibyte);
}

void tableWithActivations(const json& test) {
  pealZeroPlanInput_t input = inputOf(test.at("inputs"));
  input.activationBytes = test.at("inputs").at("act_GB").get<double>() * kGigabyte;
  const pealZeroPlan_t plans = plan(input);
  for (const auto& [name, value] : test.at("expected").items()) {
    const pealZeroPlanStage_t& row = plans.stages[kStageNames.at(name)];
    expectPrinted(static_cast<double>(row.modelStates + row.activations) / kGigabyte, value);
  }
}

void bytesSentPerStep(const json& test) {
  const pealZeroPlan_t plans = plan(inputOf(test.at("inputs")));
  for (int stage = 0; stage <= 2; ++stage) {
    expectPrinted(plans.stages[stage].bytesSent / kGigabyte, test.at("expected").at("ddp=z1=z2"));
  }
  expectPrinted(plans.stages[3].bytesSent / kGigabyte, test.at("expected").at("z3"));
}

void dropOfStage1(const json& test) {
  // The model of M11.
  pealZeroPlanInput_t input = inputOf(6738149376.0, 8);
  input.activationBytes = 0.822 * kGigabyte;
  const auto total = [&](int stage) {
    const pealZeroPlanStage_t row = plan(input).stages[stage];
    return static_cast<double>(row.modelStates + row.activations);
  };
  expectPrinted(total(0) / kGigabyte, test.at("inputs").at("from"));
  expectPrinted(total(1) / kGigabyte, test.at("inputs").at("to"));
  expectPrinted(1 - total(1) / total(0), test.at("expected").at("drop"));
}

void fewestRanksOnACard(const json& test) {
  const json& expected = test.at("expected");
  pealZeroPlanInput_t input = inputOf(test.at("inputs"));
  input.activationBytes = 3.255 * kGigabyte;
  input.deviceBytes = 80 * kGigabyte;
  EXPECT_EQ(static_cast<double>(input.parameters) * 16 / kGigabyte, expected.at("16P").get<double>());
  for (const int64_t ranks : {8, 16}) {
    input.ranks = ranks;
    const pealZeroPlanStage_t row = plan(input).stages[3];
    expectPrinted(static_cast<double>(row.total) / kGigabyte, expected.at(fmt::format("N{}", ranks)));
    EXPECT_EQ(row.fits, ranks == 16 ? 1 : 0);
  }
  const int64_t needed = plan(input).stages[3].ranksNeeded;
  EXPECT_EQ(needed, expected.at("min_N_any").get<int64_t>());
  int64_t power = 1;
  while (power < needed) {
    power *= 2;
  }
  EXPECT_EQ(power, expected.at("min_N_pow2").get<int64_t>());
  EXPECT_EQ(plan(input).stages[1].ranksNeeded, 0) << "4P alone is more than the card";
  input.ranks = 1'000'000'000'000;
  expectPrinted(states(input, 1) / kGigabyte, expected.at("z1_floor_4P"));
}

void fp32WithoutMaster(const json& test) {
  const json& expected = test.at("expected");
  ASSERT_EQ(expected.at("z1"), "8P+8P/N");
  ASSERT_EQ(expected.at("ddp"), "16P");
  pealZeroPlanInput_t input = inputOf(kEven, 1);
  input.optimizerBytes = test.at("inputs").at("K").get<int>();
  input.weightBytes = test.at("inputs").at("bw").get<int>();
  input.gradientBytes = test.at("inputs").at("bg").get<int>();
  forEachRanks([&](double N) {
    input.ranks = static_cast<int64_t>(N);
    EXPECT_DOUBLE_EQ(states(input, 1), 8 * kEven + 8 * kEven / N);
    EXPECT_DOUBLE_EQ(states(input, 0), 16 * kEven);
  });
  input.ranks = 1'000'000'000'000;
  EXPECT_NEAR(states(input, 1) / kEven, expected.at("z1_floor").get<double>(), 1e-6);

  // What an engine allocates.
  constexpr int kRanks = 3;
  constexpr uint64_t kElements = 300;
  for (const int stage : {0, 1}) {
    onRanks(kRanks, [&](int rank, pealComm_t comm) {
      pealZeroOptions_t options = defaultOptions();
      options.stage = stage;
      options.master = pealZeroMasterIsWeight;
      options.reduceType = pealZeroReduceFp32;
      Trainer trainer(comm, rank, options, {{kElements, 0}});
      uint64_t bytes = 0;
      for (const pealZeroArena_t& arena : trainer.engine().memory()) {
        bytes += arena.kind == pealZeroModelState ? arena.bytes : 0;
      }
      EXPECT_EQ(bytes, stage == 0 ? 16 * kElements : 8 * kElements + 8 * kElements / kRanks);
    });
  }
}

void rightAndWrongFormula(const json& test) {
  ASSERT_EQ(test.at("inputs").at("wrong"), "2P+2P+8P/N");
  ASSERT_EQ(test.at("expected").at("right"), "4P+12P/N");
  forEachRanks([](double N) {
    const double actual = states(inputOf(kEven, static_cast<int64_t>(N)), 1);
    EXPECT_DOUBLE_EQ(actual, 4 * kEven + 12 * kEven / N);
    EXPECT_GT(actual, 4 * kEven + 8 * kEven / N);
  });
}

void frozenParameters(const json& test) {
  ASSERT_EQ(test.at("expected").at("bytes_z3"), "(2*P_frozen + (4+K)*A)/N");
  for (const int K : {8, 12}) {
    forEachRanks([&](double N) {
      pealZeroPlanInput_t input = inputOf(kEven / 100, static_cast<int64_t>(N));
      input.frozenParameters = static_cast<uint64_t>(kEven);
      input.optimizerBytes = K;
      EXPECT_DOUBLE_EQ(states(input, 3), (2 * kEven + (4 + K) * kEven / 100) / N);
    });
  }
}

void activations(const json& test) {
  const json& inputs = test.at("inputs");
  const json& expected = test.at("expected");
  pealZeroPlanInput_t input = inputOf(13e9, 32);  // the model of M04
  input.group = 8;
  input.sequence = inputs.at("s").get<double>();
  input.hidden = inputs.at("h").get<double>();
  input.sequences = inputs.at("b").get<double>();
  input.layers = 1;
  const auto total = [&](int stage) {
    const pealZeroPlanStage_t row = plan(input).stages[stage];
    return static_cast<double>(row.modelStates + row.activations) / kGigabyte;
  };
  expectPrinted(static_cast<double>(plan(input).stages[0].activations) / kGigabyte,
                expected.at("per_layer_GB"));
  input.layers = inputs.at("L").get<double>();
  expectPrinted(static_cast<double>(plan(input).stages[0].activations) / kGigabyte, expected.at("total_GB"));
  expectPrinted(total(1), expected.at("z1"));
  expectPrinted(total(2), expected.at("z2"));
  expectPrinted(total(3), expected.at("z3"));
  expectPrinted(total(pealZeroPlanHsdp), expected.at("hsdp8"));
  input.sequences = 2;
  expectPrinted(static_cast<double>(plan(input).stages[0].activations) / kGigabyte,
                expected.at("z3_two_seq_act"));
  expectPrinted(total(3), expected.at("z3_two_seq"));
}

}  // namespace

Handlers memoryHandlers() {
  return {
      {"M01", formulasOfStates},
      {"M02", statesInBytes},
      {"M03", statesInBytes},
      {"M04", statesInBytes},
      {"M05", [](const json& test) { onlyStage3Fits(test, 80e9); }},
      {"M06", floorsOfManyRanks},
      {"M07", bytesOfFp32Shards},
      {"M08", statesOfHsdp},
      {"M09",
       [](const json& test) { expectStates(inputOf(test.at("inputs")), test.at("expected"), kGibibyte); }},
      {"M10", gibibytesAtStage3},
      {"M11", tableWithActivations},
      {"M12", bytesSentPerStep},
      {"M13", dropOfStage1},
      {"M14", fewestRanksOnACard},
      {"M15", [](const json& test) { onlyStage3Fits(test, 24e9); }},
      {"M16", fp32WithoutMaster},
      {"M17", rightAndWrongFormula},
      {"M18", frozenParameters},
      {"A01", activations},
  };
}

}  // namespace peal::zero::test
