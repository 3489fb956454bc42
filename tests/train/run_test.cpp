// Whole runs of peal-train as processes: the same bits at every stage, a falling loss, when it stops, and
// what it prints.
#include <gtest/gtest.h>

#include <cmath>

#include "tests/train/run_fixture.h"

namespace peal::train {
namespace {

class StagesTest : public RunTest, public testing::WithParamInterface<int> {};

// Exit code 0 says too that memory and traffic are what the formulas say.
TEST_P(StagesTest, giveTheSameBits) {
  const Arguments common = {"--ranks", std::to_string(GetParam()), "--steps", "5", "--eval-every", "2"};
  json expected;
  for (const char* stage : {"0", "1", "2", "3"}) {
    Arguments arguments = common;
    arguments.insert(arguments.end(), {"--stage", stage});
    const std::vector<json> events = train(arguments);
    ASSERT_FALSE(events.empty());
    const json got = bits(events);
    if (expected.is_null()) {
      expected = got;
      EXPECT_EQ(expected.size(), 5u + 2u + 1u + 1u);
    }
    EXPECT_EQ(got, expected) << "stage " << stage;
    const json& end = events.back();
    EXPECT_EQ(end.at("elementsSent"), end.at("elementsSentFormula"));
    EXPECT_EQ(end.at("elementsSent") == 0, GetParam() == 1);
    EXPECT_EQ(end.at("modelStateBytes"), end.at("modelStateFormulaBytes"));
    EXPECT_EQ(end.at("ranksWithOtherMemory"), 0);
  }
}

INSTANTIATE_TEST_SUITE_P(ranks, StagesTest, testing::Values(1, 2, 3, 4, 7));

TEST_F(RunTest, microBatchesAndBucketsDoNotChangeTheBits) {
  const Arguments common = {"--ranks", "3", "--steps", "3", "--accumulate", "2"};
  json expected;
  for (const char* stage : {"0", "1", "2", "3"}) {
    for (const char* bucketBytes : {"64", "3000", "1M"}) {
      Arguments arguments = common;
      arguments.insert(arguments.end(), {"--stage", stage, "--bucket-bytes", bucketBytes});
      const json got = bits(train(arguments));
      if (expected.is_null()) {
        expected = got;
      }
      EXPECT_EQ(got, expected) << "stage " << stage << ", buckets of " << bucketBytes;
    }
  }
}

// The bits of one group, and the bytes of the planner inside and between groups: exit code 0 says the latter,
// too. Here the numbers are worked out by hand.
TEST_F(RunTest, shardGroupsGiveTheSameBits) {
  for (const uint64_t m : {1, 2}) {
    const Arguments common = {"--ranks", "6", "--steps", "3", "--accumulate", std::to_string(m)};
    const json expected = bits(train(common));
    const std::vector<std::pair<int, int>> one = {{1, 3}, {2, 2}, {3, 2}, {3, 6}};
    const std::vector<std::pair<int, int>> two = {{1, 2}, {2, 1}, {3, 3}};
    for (const auto& [stage, group] : m == 1 ? one : two) {
      Arguments arguments = common;
      arguments.insert(arguments.end(),
                       {"--stage", std::to_string(stage), "--shard-group", std::to_string(group)});
      const std::vector<json> events = train(arguments);
      ASSERT_FALSE(events.empty());
      EXPECT_EQ(bits(events), expected) << "stage " << stage << ", groups of " << group;
      const uint64_t P = events.front().at("parameters"), R = 6 / group;
      const json& end = events.back();
      EXPECT_EQ(end.at("elementsSent"), 3 * R * (group - 1) * P * (stage == 3 ? 3 * m : m + 1));
      EXPECT_EQ(end.at("bytesSent"), 2 * end.at("elementsSent").get<uint64_t>());
      EXPECT_EQ(end.at("bytesSent"), end.at("bytesSentFormula"));
      EXPECT_EQ(end.at("ranksWithOtherMemory"), 0);
      if (R == 1) {
        EXPECT_TRUE(end.at("betweenGroups").is_null());
        continue;
      }
      const json& between = end.at("betweenGroups");
      EXPECT_EQ(between.at("elementsSent"), 3 * (R - 1) * 2 * m * P);
      EXPECT_EQ(between.at("bytesSent"), 3 * (R - 1) * (4 + 2) * m * P);
      EXPECT_EQ(between.at("bytesSent"), between.at("bytesSentFormula"));
    }
  }
}

TEST_F(RunTest, shardGroupsThatAddUpLocallyMeetOnceAStep) {
  for (const char* stage : {"1", "2", "3"}) {
    const std::vector<json> events = train({"--ranks", "4", "--steps", "2", "--accumulate", "3",
                                            "--accumulate-locally", "--stage", stage, "--shard-group", "2"});
    const json& between = events.back().at("betweenGroups");
    EXPECT_EQ(between.at("elementsSent"), 2 * 2 * events.front().at("parameters").get<uint64_t>());
    EXPECT_EQ(between.at("bytesSent"), between.at("bytesSentFormula"));
  }
}

TEST_F(RunTest, saysWhichShardGroupsAreImpossible) {
  const auto refused = [](const Arguments& more) {
    const CommandResult result = Command(commandLine(kTiny, more)).wait();
    EXPECT_EQ(result.exitCode, 2) << result.output;
    return result.output;
  };
  EXPECT_IN("--shard-group 4 does not divide the 6 ranks: use one of 1, 2, 3, 6",
            refused({"--ranks", "6", "--shard-group", "4"}));
  EXPECT_IN("--shard-group 8 is more than the 2 ranks: use one of 1, 2",
            refused({"--ranks", "2", "--shard-group", "8"}));
  EXPECT_IN("--shard-group 2 needs --stage 1, 2 or 3",
            refused({"--ranks", "2", "--stage", "0", "--shard-group", "2"}));
}

TEST_F(RunTest, recomputingActivationsGivesTheSameBitsInLessMemory) {
  const Arguments common = {"--ranks", "2", "--steps", "3", "--layers", "4", "--stage", "3"};
  Arguments thrifty = common;
  thrifty.push_back("--recompute");
  const std::vector<json> kept = train(common), recomputed = train(thrifty);
  EXPECT_EQ(bits(kept), bits(recomputed));
  EXPECT_LT(2 * recomputed.back().at("workspaceBytes").get<uint64_t>(),
            kept.back().at("workspaceBytes").get<uint64_t>());
  EXPECT_EQ(recomputed.back().at("workspaceBytes"), recomputed.back().at("workspaceFormulaBytes"));
}

#ifndef PEAL_SANITIZED  // which has memory of its own beside all that is allocated
// By the kernel's account, not by the engine's. Beside arenas and workspace there are the communicators
// (links take room when they are used), OpenBLAS's buffers, libraries and the heap's slack; and what a rank
// reads in the others' arenas, in place, counts as resident with both.
TEST_F(RunTest, residentMemoryIsThePlansAndAnAllowance) {
  struct Case {
    int ranks;
    const char *stage, *accumulate;
  };
  std::string text(3000, '\0');  // short, so that evaluating is
  std::ifstream(PEAL_TRAIN_FIXTURE).read(text.data(), static_cast<std::streamsize>(text.size()));
  writeFile("text", text);
  for (const Case& one : {Case{1, "0", "1"}, Case{2, "2", "1"}, Case{4, "1", "2"}, Case{4, "3", "1"}}) {
    SCOPED_TRACE(one.ranks);
    const json end = train({"--ranks",        std::to_string(one.ranks),
                            "--stage",        one.stage,
                            "--accumulate",   one.accumulate,
                            "--steps",        "2",
                            "--layers",       "6",
                            "--width",        "256",
                            "--heads",        "4",
                            "--batch",        "1",
                            "--bucket-bytes", "4M",
                            "--sample",       "0",
                            "--text",         file("text")})
                         .back();
    double weights = 0, gradients = 0;
    for (const json& arena : end.at("memory")) {
      const std::string name = arena.at("name");
      weights += name == "weights" ? arena.at("bytes").get<double>() : 0;
      gradients += name == "gradients" || name == "gradient buffers" ? arena.at("bytes").get<double>() : 0;
    }
    const double others = one.ranks - 1, shards = one.stage == std::string("3") ? 1 : one.ranks;
    const double inPlace = others / shards * weights + others / one.ranks * gradients;
    ASSERT_EQ(end.at("ranks").size(), one.ranks);
    for (const json& rank : end.at("ranks")) {
      const double measured = rank.at("residentBytes"), planned = rank.at("residentPlannedBytes");
      const bool isFirst = &rank == &end.at("ranks")[0];
      EXPECT_GT(planned, isFirst ? 5e7 : 3e7);
      EXPECT_GT(measured, planned - (8 << 20));
      // Rank 0 has the first values too, and afterwards their room for the rest of what is not planned. Less
      // than a second fp32 master would take: 18 MiB on one rank, 9 on each of two.
      const int allowedMib = isFirst ? one.ranks <= 2 ? 6 : 8 + 2 * (one.ranks - 1)
                                     : 20;  // the others: less than they with the first values would have
      EXPECT_LT(measured, planned + (isFirst ? 0 : inPlace) + (allowedMib << 20));
    }
  }
}
#endif

TEST_F(RunTest, accumulatingLocallySendsEachGradientOnce) {
  for (const char* stage : {"0", "1"}) {
    const std::vector<json> events = train(
        {"--ranks", "2", "--steps", "2", "--accumulate", "3", "--accumulate-locally", "--stage", stage});
    const json& end = events.back();
    EXPECT_EQ(end.at("elementsSent"), 2 * 2 * events.front().at("parameters").get<uint64_t>());
  }
}

TEST_F(RunTest, repeatsBitForBitAndTheSeedMatters) {
  const json first = bits(train({"--ranks", "2", "--steps", "4", "--seed", "7"}));
  EXPECT_EQ(first, bits(train({"--ranks", "2", "--steps", "4", "--seed", "7"})));
  EXPECT_NE(first, bits(train({"--ranks", "2", "--steps", "4", "--seed", "8"})));
}

TEST_F(RunTest, tokensOfBytePairsTrainAndLossesArePerCharacterToo) {
  const Arguments common = {"--ranks", "2", "--steps", "4", "--tokenizer", "bpe", "--vocabulary", "300"};
  Arguments third = common;
  third.insert(third.end(), {"--stage", "3"});
  const std::vector<json> events = train(common);
  EXPECT_EQ(bits(events), bits(train(third)));
  EXPECT_EQ(events.front().at("vocabulary"), 300);
  const json& step = events.at(1);
  EXPECT_NEAR(step.at("lossPerToken"), std::log(300.0), 0.1);
  EXPECT_LT(step.at("loss").get<double>(), step.at("lossPerToken").get<double>() / 1.2);
  const json& end = events.back();
  EXPECT_LT(end.at("heldOutLoss").get<double>(), end.at("heldOutLossPerToken").get<double>() / 1.2);
  EXPECT_EQ(end.at("bigramLoss"), train({"--ranks", "1", "--steps", "1"}).back().at("bigramLoss"));
}

TEST_F(RunTest, tellsItsSpeedAndThePlannersPrediction) {
  const std::vector<json> events = train({"--ranks", "2", "--steps", "20", "--eval-every", "0"});
  for (const json& event : events) {
    if (event.at("event") == "step") {
      const double tokens = event.at("tokensPerSecondPerRank");
      EXPECT_NEAR(tokens * event.at("seconds").get<double>(), 2 * 16, 1e-6);
      EXPECT_NEAR(event.at("flopsPerSecondPerRank").get<double>() / tokens,
                  6 * events.front().at("parameters").get<double>(), 1e-3);
      EXPECT_GE(event.at("hiddenShare"), 0);
      EXPECT_LE(event.at("hiddenShare"), 1);
    }
  }
  const json& speed = events.back().at("speed");
  EXPECT_TRUE(speed.at("predicts"));
  EXPECT_GT(speed.at("predictedSecondsPerStep"), 0);
  EXPECT_GE(speed.at("predictedSecondsPerStep"), speed.at("predictedExposedSeconds"));
  EXPECT_GT(speed.at("networkBytesPerSecond"), 0);
}

// On one rank more than saved it a step has four sequences for rank 0 and two for each other.
TEST_F(RunTest, tellsTheSpeedOfEachRank) {
  train({"--ranks", "4", "--steps", "1", "--save", file("saved"), "--eval-every", "0"});
  const std::vector<json> events =
      train({"--ranks", "3", "--steps", "6", "--resume", file("saved"), "--eval-every", "0"});
  const json& ranks = events.back().at("ranks");
  ASSERT_EQ(ranks.size(), 3u);
  double communication = 0, waits = 0, seconds = 0;
  for (const json& event : events) {
    if (event.at("event") == "step" && event.at("step") > 2) {
      communication += event.at("communicationSeconds").get<double>() / 4;
      waits += event.at("waitSeconds").get<double>() / 4;
      seconds += event.at("seconds").get<double>() / 4;
    }
  }
  EXPECT_NEAR(ranks[0].at("communicationSecondsPerStep").get<double>(), communication, 1e-9);
  EXPECT_NEAR(ranks[0].at("waitSecondsPerStep").get<double>(), waits, 1e-9);
  EXPECT_NEAR(ranks[0].at("secondsPerStep").get<double>(), seconds, 1e-9);
  for (size_t rank = 0; rank < 3; ++rank) {
    SCOPED_TRACE(rank);
    const auto of = [&](const char* what) { return ranks[rank].at(what).get<double>(); };
    EXPECT_NEAR(of("tokensPerSecond") * of("secondsPerStep"), (rank == 0 ? 4 : 2) * 16, 1e-6);
    EXPECT_NEAR(of("flopsPerSecond") / of("tokensPerSecond"),
                6 * events.front().at("parameters").get<double>(), 1e-3);
    EXPECT_NEAR(of("hiddenShare"),
                std::max(0.0, 1 - of("waitSecondsPerStep") / of("communicationSecondsPerStep")), 1e-9);
    EXPECT_GT(of("communicationSecondsPerStep"), 0);
    // Its own, and no other's.
    EXPECT_NE(of("communicationSecondsPerStep"),
              ranks[(rank + 1) % 3].at("communicationSecondsPerStep").get<double>());
  }
}

TEST_F(RunTest, ratesWarmUpAndFollowHalfACosine) {
  const std::vector<json> events =
      train({"--steps", "7", "--warmup", "3", "--lr", "0.01", "--min-lr", "0.002", "--eval-every", "0"});
  std::vector<double> rates;
  for (const json& event : events) {
    if (event.at("event") == "step") {
      rates.push_back(event.at("learningRate"));
    }
  }
  // A third, two thirds, all; then (1 + cos(quarter * pi)) / 2 of what is above the least: 0.85355, 0.5, ...
  const double quarter = 0.25 * (2 + std::sqrt(2.0));
  const std::vector<double> expected{
      0.01 / 3, 0.02 / 3, 0.01, 0.002 + 0.008 * quarter, 0.006, 0.002 + 0.008 * (1 - quarter), 0.002};
  ASSERT_EQ(rates.size(), expected.size());
  for (size_t i = 0; i < rates.size(); ++i) {
    EXPECT_NEAR(rates[i], expected[i], 1e-12) << "step " << i + 1;
  }
}

TEST_F(RunTest, writesMetricsAsCsv) {
  const CommandResult result = Command(commandLine(kTiny, {"--ranks", "2", "--steps", "4", "--eval-every",
                                                           "2", "--metrics", file("run.csv")}))
                                   .wait();
  ASSERT_EQ(result.exitCode, 0) << result.output;
  std::ifstream stream(file("run.csv"));
  std::vector<std::vector<std::string>> rows;
  for (std::string line; std::getline(stream, line);) {
    std::vector<std::string>& cells = rows.emplace_back(1);
    for (const char c : line) {
      c == ',' ? void(cells.emplace_back()) : cells.back().push_back(c);
    }
  }
  ASSERT_EQ(rows.size(), 1u + 4u + 2u);
  EXPECT_EQ(rows[0][0], "event");
  EXPECT_EQ(rows[0][2], "loss");
  for (const auto& row : rows) {
    EXPECT_EQ(row.size(), rows[0].size());
  }
  EXPECT_EQ(rows[1][0], "step");
  EXPECT_EQ(rows[1][1], "1");
  EXPECT_GT(std::stod(rows[1][2]), 1);
  EXPECT_EQ(rows[3][0], "heldOut");
}

TEST_F(RunTest, lossFallsBelowTheBigrams) {
  const std::vector<json> events = train({"--ranks", "2", "--steps", "500", "--lr", "0.006", "--batch", "8",
                                          "--width", "32", "--heads", "2", "--context", "32"});
  const double first = events.at(1).at("loss");
  EXPECT_NEAR(first, std::log(events.front().at("vocabulary").get<double>()), 0.1);  // knows nothing
  const json& end = events.back();
  EXPECT_LT(end.at("heldOutLoss"), end.at("bigramLoss"));
  EXPECT_LT(end.at("fourGramLoss"), end.at("bigramLoss"));
}

TEST_F(RunTest, stopsAtTheLossThatWasAskedFor) {
  const std::vector<json> events =
      train({"--ranks", "2", "--steps", "1000", "--until-loss", "3.5", "--eval-every", "5", "--lr", "0.01"});
  EXPECT_LT(events.back().at("heldOutLoss"), 3.5);
  EXPECT_LT(events.back().at("steps"), 1000);
  EXPECT_EQ(events.back().at("reason"), "the held-out loss is below 3.5");
}

TEST_F(RunTest, missingTheLossThatWasAskedForIsAFailure) {
  const CommandResult result =
      Command(commandLine(kTiny, {"--ranks", "2", "--steps", "3", "--until-loss", "0.5"})).wait();
  EXPECT_EQ(result.exitCode, 1) << result.output;
  EXPECT_IN("has not come below --until-loss 0.5", result.output);
}

TEST_F(RunTest, stopsWhenItsTimeIsOver) {
  const std::vector<json> events = train({"--ranks", "2", "--steps", "1000000", "--time-limit", "0.2"});
  EXPECT_EQ(events.back().at("reason"), "the time limit of 0.2 s has passed");
}

TEST_F(RunTest, printsTheReportAndDraws) {
  Arguments arguments = commandLine(kTiny, {"--ranks", "3", "--steps", "2", "--stage", "2", "--eval-every",
                                            "1", "--sample-every", "1", "--plot", file("chart.svg")});
  const CommandResult result = Command(arguments).wait();
  ASSERT_EQ(result.exitCode, 0) << result.output;
  for (const char* part :
       {"ZeRO stage 2", "step     1  loss ", "held-out loss ", "sample at temperature", "token/s", "FLOP/s",
        "communication", "2P + 14P/N", "all 3 ranks: every arena has the planned size", "steps x (N-1) x 2P",
        "bigram", "four-gram", "weights ", "masters ", "drawn: "}) {
    EXPECT_IN(part, result.output);
  }
  EXPECT_EQ(result.output.find("DIFFERENT"), std::string::npos) << result.output;
  EXPECT_GT(std::filesystem::file_size(file("chart.svg")), 1000u);
}

}  // namespace
}  // namespace peal::train
