// --save and --resume: a run that was interrupted ends with the bits of one that was not, also as the last
// word of a run that lost a rank.
#include <gtest/gtest.h>
#include <signal.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <random>
#include <span>
#include <thread>

#include "peal/zero.hpp"
#include "tests/train/run_fixture.h"

namespace peal::train {
namespace {

class ResumeTest : public RunTest {
 protected:
  // A rate that does not depend on --steps.
  static Arguments steady(Arguments more) {
    more.insert(more.end(), {"--lr", "0.003", "--min-lr", "0.003", "--warmup", "0", "--eval-every", "0"});
    return more;
  }
  static std::vector<json> stepsOf(const std::vector<json>& events) {
    std::vector<json> steps;
    for (const json& event : events) {
      if (event.at("event") == "step") {
        steps.push_back({event.at("step"), event.at("loss"), event.at("gradientNorm"), event.at("tokens")});
      }
    }
    return steps;
  }
  static std::string sampleOf(const std::vector<json>& events) {
    for (const json& event : events) {
      if (event.at("event") == "sample") {
        return event.at("text");
      }
    }
    ADD_FAILURE() << "no sample";
    return "";
  }
  // Three ranks started as a launcher does. They save every other step until they are ended, and if asked to
  // end have seconds to find out why.
  std::vector<std::unique_ptr<Command>> launchForever() const {
    const std::string root = "PEAL_ROOT=127.0.0.1:" + std::to_string(20000 + getpid() % 20000);
    const Arguments arguments = commandLine(
        kTiny, {"--steps", "1000000", "--log-every", "1000000", "--eval-every", "0", "--save", file("saved"),
                "--save-every", "2", "--metrics", file("metrics"), "--last-words", "8"});
    std::vector<std::unique_ptr<Command>> ranks;
    for (int rank = 0; rank < 3; ++rank) {
      ranks.push_back(std::make_unique<Command>(
          arguments, Arguments{"PEAL_RANK=" + std::to_string(rank), "PEAL_SIZE=3", root}));
    }
    return ranks;
  }
};

TEST_F(ResumeTest, threeStepsAndThreeMoreAreSix) {
  for (const char* stage : {"0", "2", "3"}) {
    for (const char* tokenizer : {"characters", "bpe"}) {
      SCOPED_TRACE(std::string(stage) + " " + tokenizer);
      const Arguments common = steady({"--ranks", "2", "--tokenizer", tokenizer, "--vocabulary", "300"});
      const auto with = [&](Arguments more) {
        more.insert(more.begin(), common.begin(), common.end());
        more.insert(more.end(), {"--stage", stage});
        return train(more);
      };
      const std::vector<json> whole = with({"--steps", "6"});
      with({"--steps", "3", "--save", file("saved"), "--overwrite"});
      const std::vector<json> rest = with({"--steps", "6", "--resume", file("saved")});
      ASSERT_EQ(stepsOf(whole).size(), 6u);
      ASSERT_EQ(stepsOf(rest).size(), 3u);
      for (size_t i = 0; i < 3; ++i) {
        EXPECT_EQ(stepsOf(rest)[i], stepsOf(whole)[i + 3]);
      }
      for (const char* what : {"weights", "masters", "heldOutLoss"}) {
        EXPECT_EQ(rest.back().at(what), whole.back().at(what)) << what;
      }
      EXPECT_EQ(rest.back().at("elementsSent"), rest.back().at("elementsSentFormula"));
    }
  }
}

TEST_F(ResumeTest, metricsOfTheInterruptedRunAreKept) {
  const auto linesOf = [](const std::string& path) {
    std::vector<std::string> lines;
    std::ifstream stream(path);
    for (std::string line; std::getline(stream, line);) {
      lines.push_back(line);
    }
    return lines;
  };
  for (const char* name : {"run.jsonl", "run.csv"}) {
    SCOPED_TRACE(name);
    const auto run = [&](Arguments more) {
      more.insert(more.end(), {"--save", file("saved"), "--metrics", file(name)});
      const CommandResult result = Command(commandLine(kTiny, steady(more))).wait();
      EXPECT_EQ(result.exitCode, 0) << result.output;
      return linesOf(file(name));
    };
    std::filesystem::remove_all(file("saved"));
    run({"--steps", "3"});
    const std::vector<std::string> first = run({"--steps", "2", "--overwrite"});  // begins anew
    std::ofstream(file(name), std::ios::app)
        << (std::string(name) == "run.csv" ? "step,3,1" : R"({"event":"st)");  // a full disk
    const std::vector<std::string> both = run({"--steps", "5", "--resume", file("saved")});
    ASSERT_GT(both.size(), first.size());
    EXPECT_TRUE(std::equal(first.begin(), first.end(), both.begin()));
    const bool isCsv = std::string(name) == "run.csv";
    const auto with = [&](const std::string& text) {
      return std::count_if(both.begin(), both.end(),
                           [&](const std::string& line) { return line.find(text) != std::string::npos; });
    };
    EXPECT_EQ(with(isCsv ? "step," : "\"event\":\"step\""), isCsv ? 1 + 5 : 5);
    for (const std::string& line : both) {
      EXPECT_TRUE(isCsv ? std::count(line.begin(), line.end(), ',') ==
                              std::count(both[0].begin(), both[0].end(), ',')
                        : nlohmann::json::accept(line))
          << line;
    }
    EXPECT_EQ(with(isCsv ? "event," : "\"event\":\"start\""), isCsv ? 1 : 2);
  }
}

// Each step reads the same text, so that losses agree but for the order of the sums.
TEST_F(ResumeTest, fewerAndMoreRanksReadTheSameText) {
  const std::vector<json> whole = train(steady({"--ranks", "4", "--steps", "5"}));
  train(steady({"--ranks", "4", "--steps", "2", "--save", file("saved")}));
  for (const char* ranks : {"3", "1", "5"}) {  // 8 sequences: 2 + 2 + 2, then 2 + 0 + 0
    SCOPED_TRACE(ranks);
    const std::vector<json> rest =
        train(steady({"--ranks", ranks, "--steps", "5", "--stage", "3", "--resume", file("saved")}));
    ASSERT_EQ(stepsOf(rest).size(), 3u);
    for (size_t i = 0; i < 3; ++i) {
      const json got = stepsOf(rest)[i], expected = stepsOf(whole)[i + 2];
      EXPECT_EQ(got[0], expected[0]);
      EXPECT_EQ(got[3], expected[3]);
      EXPECT_NEAR(got[1].get<double>(), expected[1].get<double>(), i == 0 ? 1e-6 : 1e-2);
      EXPECT_NEAR(got[2].get<double>(), expected[2].get<double>(), 1.6e-2 * expected[2].get<double>());
    }
  }
}

TEST_F(ResumeTest, aLostRankEndsWithTheCommandThatGoesOn) {
  const Arguments common = {"--ranks", "3",      "--log-every", "1000000",      "--eval-every",
                            "0",       "--save", file("saved"), "--save-every", "2"};
  Arguments endless = common;
  endless.insert(endless.end(), {"--steps", "1000000", "--metrics", file("metrics")});
  Command command(commandLine(kTiny, endless));
  ASSERT_TRUE(writes(file("metrics"), "\"saved\"", command));
  const std::vector<pid_t> ranks = command.children();
  ASSERT_EQ(ranks.size(), 3u);
  kill(ranks[2], SIGKILL);
  const CommandResult result = command.wait();
  EXPECT_EQ(result.exitCode, 128 + SIGKILL) << result.output;
  EXPECT_IN("the last checkpoint is of step ", result.output);
  EXPECT_IN("--steps 1000000 --metrics " + file("metrics") + " --resume " + file("saved") + "\n",
            result.output);

  std::vector<json> rest =
      train({"--ranks", "2", "--steps", "1000000", "--time-limit", "0.1", "--resume", file("saved")});
  EXPECT_GE(rest.front().at("firstStep").get<int>(), 2);
  EXPECT_EQ(stepsOf(rest).front().at(0).get<int>(), rest.front().at("firstStep").get<int>() + 1);
}

// Ranks started as a launcher does; the one that usually speaks is lost.
TEST_F(ResumeTest, ifRankZeroIsLostRankOneTellsHowToGoOn) {
  const std::vector<std::unique_ptr<Command>> ranks = launchForever();
  ASSERT_TRUE(writes(file("metrics"), "\"saved\"", *ranks[0]));
  kill(ranks[0]->pid(), SIGKILL);
  for (size_t rank = 1; rank < 3; ++rank) {
    const CommandResult result = ranks[rank]->wait();
    EXPECT_EQ(result.exitCode, 1) << result.output;
    EXPECT_IN("rank 0", result.output);
    const bool tells = result.output.find("the last checkpoint is of step ") != std::string::npos;
    EXPECT_EQ(tells, rank == 1) << result.output;
  }
  ranks[0]->wait();
}

// mpirun ends the other ranks as soon as one has died, mostly before they have noticed; and a scheduler ends
// all of them. Whoever speaks does so all the same. They have time: rank 0 is still there when the others
// give up.
TEST_F(ResumeTest, ranksThatTheirLauncherEndsTellHowToGoOn) {
  for (const bool dies : {true, false}) {
    SCOPED_TRACE(dies ? "rank 0 died" : "all are ended");
    std::filesystem::remove(file("metrics"));
    std::filesystem::remove_all(file("saved"));
    const std::vector<std::unique_ptr<Command>> ranks = launchForever();
    ASSERT_TRUE(writes(file("metrics"), "\"saved\"", *ranks[0]));
    for (size_t rank = 0; rank < 3; ++rank) {
      kill(ranks[rank]->pid(), dies && rank == 0 ? SIGKILL : SIGTERM);
    }
    for (size_t rank = 0; rank < 3; ++rank) {
      const CommandResult result = ranks[rank]->wait();
      EXPECT_NE(result.exitCode, 0) << result.output;
      const bool tells = result.output.find("the last checkpoint is of step ") != std::string::npos;
      EXPECT_EQ(tells, rank == (dies ? 1U : 0U)) << rank << ": " << result.output;
    }
  }
}

// One process of several, at many moments of saving: what was saved last is whole.
TEST_F(ResumeTest, aRankKilledWhileAllSaveLeavesTheLastCheckpointWhole) {
  // Until the folder of a save that is not published yet is there.
  const auto awaitSave = [this] {
    const std::filesystem::path folder = std::filesystem::path(file("saved")).parent_path();
    const auto end = std::chrono::steady_clock::now() + test::kAtOnce;
    while (std::chrono::steady_clock::now() < end) {
      std::error_code gone;  // entries come and go
      for (std::filesystem::directory_iterator entry(folder, gone), last; !gone && entry != last;
           entry.increment(gone)) {
        if (entry->path().filename().string().find(".saving-") != std::string::npos) {
          return;
        }
      }
    }
  };
  std::mt19937 random(20261130);
  uint64_t step = 0;
  int inSaves = 0;
  // Eight rounds, and more until one has hit a save: how long that takes beside a step is the machine's
  // affair.
  for (size_t round = 0; round < 8 || (inSaves == 0 && round < 64); ++round) {
    SCOPED_TRACE(round);
    std::filesystem::remove(file("metrics"));
    Arguments arguments = {
        "--ranks", "3", "--steps", "1000000",     "--log-every",  "1000000", "--eval-every", "0",
        "--stage", "3", "--save",  file("saved"), "--save-every", "1",       "--metrics",    file("metrics")};
    if (round > 0) {
      arguments.insert(arguments.end(), {"--resume", file("saved")});
    }
    Command command(commandLine(kTiny, arguments));
    ASSERT_TRUE(writes(file("metrics"), "\"saved\"", command));
    const std::vector<pid_t> ranks = command.children();
    ASSERT_EQ(ranks.size(), 3u);
    if (round % 2 == 0) {
      std::this_thread::sleep_for(std::chrono::microseconds(random() % 20'000));
    } else {
      awaitSave();
    }
    kill(ranks[round % 3], SIGKILL);
    const CommandResult result = command.wait();
    EXPECT_EQ(result.exitCode, 128 + SIGKILL) << result.output;
    EXPECT_FALSE(result.leftSomething);
    inSaves += result.output.find("pealZeroSave") != std::string::npos ? 1 : 0;
    const zero::Checkpoint saved(file("saved"));
    for (uint64_t i = 0; i < saved.info().parameters; ++i) {
      std::vector<float> values(saved.parameter(i).elements);
      for (const pealZeroTensor_t tensor : {pealZeroMaster, pealZeroMoment1, pealZeroMoment2}) {
        saved.read(i, tensor, 0, values);
      }
    }
    EXPECT_GT(saved.info().step, step);
    step = saved.info().step;
  }
  EXPECT_GT(inSaves, 0) << "no rank was killed while all saved";
  const std::vector<json> rest =
      train({"--ranks", "2", "--steps", std::to_string(step + 1), "--resume", file("saved")});
  EXPECT_EQ(rest.front().at("firstStep"), step);
}

TEST_F(ResumeTest, anotherRunsCheckpointIsRefused) {
  train(steady({"--ranks", "2", "--steps", "2", "--save", file("saved")}));
  const std::pair<Arguments, std::string> cases[] = {
      {{"--seed", "2"}, "its --seed is 1, this run's is 2"},
      {{"--width", "24", "--seed", "3"},
       "its --seed is 1, this run's is 3; its --width is 12, this run's is 24."},
      {{"--beta2", "0.9"}, "its --beta2 is 0.99, this run's is 0.9"},
      {{"--embedding-decay", "0"}, "its --embedding-decay is 0.1, this run's is 0"},
      {{"--weight-decay", "0.2"}, "': its --weight-decay is 0.1, this run's is 0.2."},
      {{"--tokenizer", "bpe"}, "': its --tokenizer is characters, this run's is bpe."},
      {{"--text", writeFile("other.txt", std::string(4000, 'a'))}, "its --text is another than this run's"},
      {{"--steps", "1"}, "it is of step 2, and --steps is 1"},
      {{"--resume", "/no/such/checkpoint"}, "cannot resume from '/no/such/checkpoint'"},
      {{"--save-every", "2"}, "--save-every needs --save"}};
  for (const auto& [more, sentence] : cases) {
    Arguments arguments = {"--ranks", "2", "--resume", file("saved")};
    arguments.insert(arguments.end(), more.begin(), more.end());
    const CommandResult result = Command(commandLine(kTiny, arguments)).wait();
    EXPECT_EQ(result.exitCode, 2) << result.output;
    EXPECT_IN(sentence, result.output);
  }
}

// The model, the tokenizer and the rest come from the checkpoint; a step keeps its sequences.
TEST_F(ResumeTest, whatIsNotGivenIsTheCheckpoints) {
  train(steady({"--ranks", "2", "--steps", "2", "--tokenizer", "bpe", "--vocabulary", "300", "--seed", "5",
                "--beta2", "0.95", "--embedding-decay", "0.3", "--save", file("saved")}));
  const CommandResult result =
      Command({PEAL_TRAIN_PROGRAM, "--text", PEAL_TRAIN_FIXTURE, "--ranks", "2", "--steps", "3", "--batch",
               "8", "--accumulate", "3", "--eval-every", "0", "--sample", "0", "--resume", file("saved")})
          .wait();
  EXPECT_EQ(result.exitCode, 0) << result.output;
  EXPECT_IN("1 layer, width 12, 3 heads, context 16", result.output);
  EXPECT_IN("a step is 64 tokens: 4 sequences of all ranks, 8 at most in a micro-batch of one",
            result.output);
  EXPECT_IN("note: --accumulate 3 is not followed: the checkpoint's steps have 4 sequences", result.output);
}

// What a user needs to use the model is in the checkpoint; the text is not there, and may be gone.
TEST_F(ResumeTest, samplesComeFromTheCheckpointAlone) {
  const std::string text =
      writeFile("text", std::string(4000, 'a') + "\u00e4b\n\u00e4c" + std::string(400, 'c'));
  for (const char* tokenizer : {"characters", "bpe"}) {
    SCOPED_TRACE(tokenizer);
    const Arguments options = {"--text",       std::string(tokenizer) == "bpe" ? PEAL_TRAIN_FIXTURE : text,
                               "--tokenizer",  tokenizer,
                               "--vocabulary", "300",
                               "--ranks",      "2",
                               "--steps",      "20",
                               "--lr",         "0.03",
                               "--warmup",     "0",
                               "--eval-every", "0",
                               "--save",       file("saved"),
                               "--overwrite"};
    const std::string expected = sampleOf(train(options));
    EXPECT_GT(expected.size(), 10u);
    const json run = json::parse(zero::Checkpoint(file("saved")).userData()).at("run");
    const std::string kept = run.at("tokenizer");
    EXPECT_EQ(run.at("sampleStart"), std::string(tokenizer) == "bpe" ? '\n' : 0);
    EXPECT_TRUE(kept.starts_with(std::string(tokenizer) == "bpe" ? "peal-bpe 1\n" : "characters")) << kept;
    EXPECT_EQ(std::count(kept.begin(), kept.end(), '\n'),
              std::string(tokenizer) == "bpe" ? 1 + 300 - 256 : 0);
    for (const char* stage : {"0", "3"}) {
      std::filesystem::remove(file("metrics"));
      const CommandResult result =
          Command({PEAL_TRAIN_PROGRAM, "--resume", file("saved"), "--sample-only", "--sample", "20",
                   "--ranks", "3", "--stage", stage, "--metrics", file("metrics")})
              .wait();
      EXPECT_EQ(result.exitCode, 0) << result.output;
      EXPECT_EQ(sampleOf(metrics()), expected);
    }
    std::filesystem::remove(file("metrics"));
    const CommandResult other = Command({PEAL_TRAIN_PROGRAM, "--resume", file("saved"), "--sample-only",
                                         "--sample", "20", "--seed", "2", "--metrics", file("metrics")})
                                    .wait();
    EXPECT_EQ(other.exitCode, 0) << other.output;
    const std::string another = sampleOf(metrics());
    if (std::string(tokenizer) == "bpe") {  // the other text is all but one letter
      EXPECT_NE(another, expected);
    }
  }
  const auto refused = [&](const Arguments& more) {
    Arguments arguments = {PEAL_TRAIN_PROGRAM, "--sample-only"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    const CommandResult result = Command(arguments).wait();
    EXPECT_EQ(result.exitCode, 2) << result.output;
    return result.output;
  };
  EXPECT_IN("--sample-only requires --resume", refused({}));
  EXPECT_IN("--text excludes --sample-only", refused({"--resume", file("saved"), "--text", text}));
  EXPECT_IN("--save excludes --sample-only", refused({"--resume", file("saved"), "--save", file("saved")}));
  EXPECT_IN("nothing for --plot or --trace to show",
            refused({"--resume", file("saved"), "--trace", file("trace")}));
  EXPECT_IN("its --width is 12, this run's is 24", refused({"--resume", file("saved"), "--width", "24"}));
}

// Notes as no run writes them are an error that names them, before anything is made from them.
TEST_F(ResumeTest, notesThatAreDamagedAreRefused) {
  train(steady({"--ranks", "1", "--steps", "1", "--save", file("saved")}));
  const std::string notes = zero::Checkpoint(file("saved")).userData();
  const auto refused = [&](const std::string& key, const std::string& value) {
    json changed = json::parse(notes);
    (changed.contains(key) ? changed : changed["run"])[key] = json::parse(value);
    const std::string text = changed.dump();
    pealComm_t comm = nullptr;
    ASSERT_EQ(pealCommInitAll(&comm, 1, nullptr), pealSuccess);
    {
      zero::Engine engine(comm, zero::defaultOptions());
      const float first = 0;
      engine.setInitial(engine.addParameter("p", 1, 0, pealZeroDecay), &first);
      engine.seal();
      engine.save(file("changed"), std::as_bytes(std::span(text)));
    }
    pealCommDestroy(comm);
    const CommandResult result =
        Command({PEAL_TRAIN_PROGRAM, "--resume", file("changed"), "--sample-only"}).wait();
    EXPECT_EQ(result.exitCode, 2) << result.output;
    EXPECT_IN("'" + file("changed") + "': what it says of its run is damaged: " + key + " is " + value,
              result.output);
  };
  refused("heads", "0");
  refused("context", "-1");
  refused("width", "1048577");
  refused("sequences", "0");
  refused("steps", "null");
  refused("alphabet", "3");
}

// A run that should have gone on, and was started anew, does not cost the checkpoint.
TEST_F(ResumeTest, anotherRunsCheckpointIsReplacedOnlyIfAsked) {
  const auto run = [&](Arguments more) {
    more.insert(more.begin(), {"--ranks", "2", "--save", file("saved")});
    return Command(commandLine(kTiny, steady(more))).wait();
  };
  train(steady({"--ranks", "2", "--steps", "3", "--save", file("saved")}));
  for (const Arguments& again : {Arguments{}, Arguments{"--resume", file("other")}}) {
    Arguments arguments = {"--steps", "2"};
    arguments.insert(arguments.end(), again.begin(), again.end());
    if (!again.empty()) {
      train(steady({"--ranks", "2", "--steps", "1", "--save", file("other")}));
    }
    const CommandResult result = run(arguments);
    EXPECT_EQ(result.exitCode, 2) << result.output;
    EXPECT_IN("'" + file("saved") + "' holds a checkpoint of step 3: go on from it with --resume " +
                  file("saved") + ", or give --overwrite",
              result.output);
    EXPECT_EQ(zero::Checkpoint(file("saved")).info().step, 3U);
  }
  EXPECT_EQ(run({"--steps", "4", "--resume", file("saved") + "/"}).exitCode, 0);
  EXPECT_EQ(zero::Checkpoint(file("saved")).info().step, 4U);
  EXPECT_EQ(run({"--steps", "2", "--overwrite"}).exitCode, 0);
  EXPECT_EQ(zero::Checkpoint(file("saved")).info().step, 2U);
  EXPECT_EQ(Command(commandLine(kTiny, {"--overwrite"})).wait().exitCode, 2);
  writeFile("saved/manifest.txt", "broken");
  const CommandResult result = run({"--steps", "2"});
  EXPECT_EQ(result.exitCode, 2) << result.output;
  EXPECT_IN("holds a checkpoint that cannot be read", result.output);
}

}  // namespace
}  // namespace peal::train
