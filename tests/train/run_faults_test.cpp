// Runs of peal-train that must fail: bad input, ranks that die, ranks that do not fit together.
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <filesystem>

#include "tests/support/limits.h"
#include "tests/train/run_fixture.h"

namespace peal::train {
namespace {

struct BadInput {
  Arguments arguments;
  std::string sentence;
};

TEST_F(RunTest, badInputEndsWithOneSentenceAndCodeTwo) {
  const std::string empty = writeFile("empty", ""), latin = writeFile("latin", "caf\xe9 au lait");
  const std::string link = file("link"), dangling = file("dangling");
  std::filesystem::create_directory(file("empty-folder"));
  std::filesystem::create_directory_symlink(file("empty-folder"), link);
  std::filesystem::create_directory_symlink(file("nothing"), dangling);
  const std::string brief = writeFile("brief", "To be, or not to be, that is the question.\n");
  const BadInput cases[] = {
      {{"--text", "/no/such/text"}, "cannot open the text '/no/such/text': No such file or directory"},
      {{"--text", "/"}, "it is a directory"},
      {{"--text", "/dev/zero"}, "it is not a regular file"},
      {{"--plot", "/no/such/folder/run.svg"}, "its folder: No such file or directory"},
      {{"--text", empty}, "is empty"},
      {{"--text", latin}, "is not UTF-8: byte 0xe9 at offset 3"},
      {{"--text", brief}, "--context 16 needs at least 17"},
      {{"--context", "50000"}, "--context 50000 needs at least 50001"},
      {{"--width", "10"}, "--width 10 is not divisible by --heads 3"},
      {{"--stage", "4"}, "--stage"},
      {{"--ranks", "0"}, "--ranks"},
      {{"--steps", "-1"}, "--steps"},
      {{"--layers", "0"}, "--layers"},
      {{"--batch", "1048576", "--context", "4096"}, "rows"},
      {{"--width", "1048575"}, "on this machine, which has"},
      {{"--layers", "1048576", "--width", "1200"}, "on this machine, which has"},
      {{"--until-loss", "2", "--eval-every", "0"}, "--eval-every must be at least 1"},
      {{"--lr", "nan"}, "--lr: nan is not a number from 0 to"},
      {{"--beta2", "-nan"}, "--beta2: -nan is not a number from 0 to 1"},
      {{"--temperature", "0"}, "--temperature: 0 is not a number from 0.01 to 100"},
      {{"--min-lr", "1"}, "--min-lr 1 is above --lr"},
      {{"--bucket-bytes", "many"}, "--bucket-bytes"},
      {{"--master", "bf16"}, "--master"},
      {{"--unit-slots", "1"}, "--unit-slots"},
      {{"--prefetch", "65"}, "the engine's prefetchDepth is 65; it must be from 0 to 64"},
      {{"--accumulate", "1048576"}, "the engine's microBatches is 1048576; it must be from 1 to 1000000"},
      {{"--unit-slots", "2", "--no-reshard"},
       "--unit-slots 2 cannot hold the 3 units that --no-reshard keeps"},
      {{"--embedding-decay", "nan"}, "--embedding-decay: nan is not a number from 0 to"},
      {{"--epsilon", "2"}, "--epsilon: 2 is not a number from 1.2e-38 to 1"},
      {{"--epsilon", "0"}, "--epsilon: 0 is not a number from 1.2e-38 to 1"},
      {{"--master", "remainder", "--stochastic-rounding"}, "--stochastic-rounding and --master remainder"},
      {{"--metrics", "/no/such/folder/metrics"}, "cannot write the metrics"},
      {{"--save", "/dev/null"}, "'/dev/null' exists and is no checkpoint"},
      {{"--save", "/dev/null/run.ckpt"}, "'/dev/null' is not a directory"},
      {{"--save", "/proc/run.ckpt"}, "cannot write checkpoints into '/proc'"},
      {{"--save", "/dev"}, "'/dev' exists and is no checkpoint"},
      {{"--save", link}, "'" + link + "' is a symbolic link, which no save replaces"},
      {{"--save", link + "/"}, "is a symbolic link, which no save replaces"},
      {{"--save", dangling}, "'" + dangling + "' is a symbolic link, which no save replaces"},
      {{"--tokenizer", "words"}, "--tokenizer"},
      {{"--tokenizer", "bpe", "--vocabulary", "255"}, "--vocabulary"},
      {{"--trace", "/no/such/folder/trace"}, "cannot write the trace"},
      {{"--plot", "chart.txt"}, "chart.txt"},
      {{"--no-such-option"}, "--no-such-option"}};
  for (const BadInput& bad : cases) {
    for (const Arguments& ranks : {Arguments{}, Arguments{"--ranks", "3"}}) {
      Arguments arguments = commandLine(kTiny, bad.arguments);
      if (bad.arguments[0] != "--ranks") {
        arguments.insert(arguments.end(), ranks.begin(), ranks.end());
      }
      const CommandResult result = Command(arguments).wait();
      EXPECT_EQ(result.exitCode, 2) << result.output;
      EXPECT_FALSE(result.leftSomething);
      EXPECT_IN(bad.sentence, result.output);
      EXPECT_EQ(std::count(result.output.begin(), result.output.end(), '\n'), 1) << result.output;
    }
  }
}

TEST_F(RunTest, whatHasNoEffectIsSaid) {
  const CommandResult result =
      Command(commandLine(
                  kTiny, {"--stage", "1", "--steps", "2", "--no-reshard", "--prefetch", "3", "--bucket-slots",
                          "2", "--vocabulary", "1000", "--accumulate-locally", "--warmup", "100"}))
          .wait();
  EXPECT_EQ(result.exitCode, 0) << result.output;
  for (const char* sentence :
       {"note: --no-reshard has no effect without --stage 3",
        "note: --prefetch has no effect without --stage 3",
        "note: --bucket-slots has no effect without --stage 2 or 3",
        "note: --vocabulary has no effect without --tokenizer bpe",
        "note: --accumulate-locally has no effect without --accumulate 2 or more",
        "note: the learning rate never reaches --lr: --warmup 100 is more than --steps 2"}) {
    EXPECT_IN(sentence, result.output);
  }
  EXPECT_IN("2 sequences x 1 micro-batch per rank", result.output);
  const CommandResult silent =
      Command(commandLine(kTiny, {"--stage", "3", "--steps", "1", "--prefetch", "3"})).wait();
  EXPECT_EQ(silent.output.find("note:"), std::string::npos) << silent.output;
  const CommandResult launched = Command(commandLine(kTiny, {"--ranks", "2"}), {"PEAL_RANK=0"}).wait();
  EXPECT_EQ(launched.exitCode, 2) << launched.output;
  EXPECT_IN("what the launcher says cannot be followed: ", launched.output);
}

TEST_F(RunTest, aKilledRankEndsTheRunAndIsNamed) {
  for (const char* stage : {"2", "3"}) {
    Command command(
        commandLine(kTiny, {"--ranks", "3", "--steps", "100000000", "--log-every", "100000000",
                            "--eval-every", "0", "--stage", stage, "--metrics", file("metrics")}));
    ASSERT_TRUE(writes(file("metrics"), "\"step\"", command));
    const std::vector<pid_t> ranks = command.children();
    ASSERT_EQ(ranks.size(), 3u);
    kill(ranks[1], SIGKILL);
    const auto killed = std::chrono::steady_clock::now();
    const CommandResult result = command.wait();
    EXPECT_FALSE(result.overdue);
    EXPECT_FALSE(result.leftSomething);
    EXPECT_EQ(result.exitCode, 128 + SIGKILL) << result.output;
    EXPECT_LT(std::chrono::steady_clock::now() - killed, test::kAtOnce);
    EXPECT_IN("rank 1 was killed by signal 9", result.output);
    std::filesystem::remove(file("metrics"));
  }
}

TEST_F(RunTest, interruptEndsAllRanks) {
  Command command(commandLine(kTiny, {"--ranks", "3", "--steps", "100000000", "--log-every", "100000000",
                                      "--eval-every", "0", "--metrics", file("metrics")}));
  ASSERT_TRUE(writes(file("metrics"), "\"step\"", command));
  kill(command.pid(), SIGINT);
  const CommandResult result = command.wait();
  EXPECT_FALSE(result.overdue);
  EXPECT_FALSE(result.leftSomething);
  EXPECT_EQ(result.exitCode, 128 + SIGINT) << result.output;
}

// Two ranks started as a launcher does.
class LaunchedTest : public RunTest {
 protected:
  std::vector<CommandResult> launch(const Arguments& first, const Arguments& second) {
    const std::string root = "PEAL_ROOT=127.0.0.1:" + std::to_string(20000 + getpid() % 20000);
    Command rank0(commandLine(kTiny, first), {"PEAL_RANK=0", "PEAL_SIZE=2", root});
    Command rank1(commandLine(kTiny, second), {"PEAL_RANK=1", "PEAL_SIZE=2", root});
    std::vector<CommandResult> results = {rank0.wait(), rank1.wait()};
    for (const CommandResult& result : results) {
      EXPECT_FALSE(result.overdue);
    }
    return results;
  }
};

TEST_F(LaunchedTest, givesTheSameBitsAsLocalProcesses) {
  const json expected = bits(train({"--ranks", "2", "--steps", "3"}));
  const Arguments more = {"--steps", "3", "--metrics", file("metrics")};
  const std::vector<CommandResult> results = launch(more, more);
  EXPECT_EQ(results[0].exitCode, 0) << results[0].output;
  EXPECT_EQ(results[1].exitCode, 0) << results[1].output;
  EXPECT_EQ(results[1].output, "");
  EXPECT_EQ(bits(metrics()), expected);
}

TEST_F(LaunchedTest, ranksWithDifferentTextsAreRefused) {
  const std::string other = writeFile("other", std::string(5000, 'x') + std::string(5000, 'y'));
  const std::vector<CommandResult> results = launch({"--steps", "3"}, {"--steps", "3", "--text", other});
  for (const CommandResult& result : results) {
    EXPECT_EQ(result.exitCode, 1) << result.output;
    EXPECT_IN("rank 1 has another text or other options than rank 0", result.output);
  }
}

TEST_F(LaunchedTest, ranksBesideALauncherAreRefused) {
  const std::vector<CommandResult> results = launch({"--ranks", "2"}, {"--ranks", "2"});
  for (const CommandResult& result : results) {
    EXPECT_EQ(result.exitCode, 2) << result.output;
    EXPECT_IN("--ranks", result.output);
  }
}

}  // namespace
}  // namespace peal::train
