// Ranks as processes and charts: what tools and benches share.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>

#include "tools/common/error.h"
#include "tools/common/local_ranks.h"
#include "tools/common/plot.h"

namespace peal::tools {
namespace {

using Clock = std::chrono::steady_clock;

// Runs body in a process of its own, so that runLocalRanks has a parent that it can end; returns its wait
// status and what it said on the error output.
struct Outcome {
  int status = 0;
  std::string said;
  double seconds = 0;
  int exitCode() const { return WIFEXITED(status) ? WEXITSTATUS(status) : -1; }
};

class Parent {
 public:
  explicit Parent(const std::function<int()>& body) {
    int pipe[2];
    EXPECT_EQ(::pipe2(pipe, O_CLOEXEC), 0);
    start_ = Clock::now();
    pid_ = fork();
    if (pid_ == 0) {
      dup2(pipe[1], STDERR_FILENO);
      _exit(body());
    }
    close(pipe[1]);
    errors_ = pipe[0];
  }
  pid_t pid() const { return pid_; }
  // The error output ends when the parent and all its ranks have ended: so none is left behind.
  Outcome wait() {
    Outcome outcome;
    char part[256];
    for (ssize_t got = 0; (got = read(errors_, part, sizeof(part))) > 0;) {
      outcome.said.append(part, static_cast<size_t>(got));
    }
    close(errors_);
    waitpid(pid_, &outcome.status, 0);
    outcome.seconds = std::chrono::duration<double>(Clock::now() - start_).count();
    return outcome;
  }

 private:
  pid_t pid_ = 0;
  int errors_ = -1;
  Clock::time_point start_;
};

int sleepForever() {
  for (;;) {
    pause();
  }
}

// Ranks write a byte here when they have started, so that the test need not guess.
class StartLine {
 public:
  StartLine() { EXPECT_EQ(::pipe2(ends_, O_CLOEXEC), 0); }
  ~StartLine() {
    close(ends_[0]);
    close(ends_[1]);
  }
  void arrive() const { EXPECT_EQ(write(ends_[1], "x", 1), 1); }
  void await(int ranks) const {
    char byte = 0;
    for (int i = 0; i < ranks; ++i) {
      ASSERT_EQ(read(ends_[0], &byte, 1), 1);
    }
  }

 private:
  int ends_[2] = {-1, -1};
};

TEST(LocalRanks, AllRunAndAllSucceed) {
  StartLine line;
  Parent parent([&] {
    return runLocalRanks(5, [&](LocalRank& local) {
      line.arrive();
      return local.rank() >= 0 && local.rank() < 5 && local.size() == 5 ? 0 : 1;
    });
  });
  line.await(5);
  const Outcome outcome = parent.wait();
  EXPECT_EQ(outcome.exitCode(), 0);
  EXPECT_EQ(outcome.said, "");
}

TEST(LocalRanks, OneUniqueIdForAll) {
  Parent parent([] {
    int ids[2];
    if (pipe(ids) != 0) {
      return 1;
    }
    const int code = runLocalRanks(3, [&](LocalRank& local) {
      const pealUniqueId id = local.takeUniqueId();
      return write(ids[1], &id, sizeof(id)) == sizeof(id) ? 0 : 1;
    });
    pealUniqueId seen[3];
    if (code != 0 || read(ids[0], seen, sizeof(seen)) != sizeof(seen)) {
      return 2;
    }
    return memcmp(&seen[0], &seen[1], sizeof(seen[0])) == 0 &&
                   memcmp(&seen[0], &seen[2], sizeof(seen[0])) == 0
               ? 0
               : 3;
  });
  const Outcome outcome = parent.wait();
  EXPECT_EQ(outcome.exitCode(), 0) << outcome.said;
}

TEST(LocalRanks, AnExceptionIsThatRanksSentenceAndCode) {
  Parent failed([] {
    return runLocalRanks(3, [](LocalRank& local) -> int {
      if (local.rank() == 1) {
        throw ToolError("the text is unreadable.");
      }
      return 0;
    });
  });
  const Outcome outcome = failed.wait();
  EXPECT_EQ(outcome.exitCode(), kExitFailure);
  EXPECT_NE(outcome.said.find("rank 1: the text is unreadable.\n"), std::string::npos) << outcome.said;

  Parent misused([] { return runLocalRanks(2, [](LocalRank&) -> int { throw UsageError("no."); }); });
  EXPECT_EQ(misused.wait().exitCode(), kExitUsage);
}

TEST(LocalRanks, ASignalledRankIsNamedAndTheRestIsKilledAfterTheGrace) {
  Parent parent([] {
    return runLocalRanks(4,
                         [](LocalRank& local) {
                           if (local.rank() == 2) {
                             raise(SIGKILL);
                           }
                           return sleepForever();
                         },
                         {200});
  });
  const Outcome outcome = parent.wait();
  EXPECT_EQ(outcome.exitCode(), 128 + SIGKILL);
  EXPECT_EQ(outcome.said, "rank 2 was killed by signal 9 (Killed)\n");
  EXPECT_LT(outcome.seconds, 30);
}

// What is left is a rank that cannot end: nobody waits the whole grace for it.
TEST(LocalRanks, AStoppedRankIsNamedAndKilledSoon) {
  Parent parent([] {
    return runLocalRanks(3,
                         [](LocalRank& local) {
                           if (local.rank() == 1) {
                             raise(SIGSTOP);
                           }
                           return local.rank() == 2 ? 7 : 0;
                         },
                         {600000});
  });
  const Outcome outcome = parent.wait();
  EXPECT_EQ(outcome.exitCode(), 7);
  EXPECT_EQ(
      outcome.said,
      "rank 1 was stopped by signal 19 (Stopped (signal)), and is killed\nrank 2 ended with exit code 7\n");
  EXPECT_GE(outcome.seconds, 0.9);
  EXPECT_LT(outcome.seconds, 30);
}

// One that goes on in time ends by itself.
TEST(LocalRanks, AStoppedRankThatGoesOnIsNotKilled) {
  StartLine line;
  int ranks[2];
  ASSERT_EQ(pipe(ranks), 0);
  Parent parent([&] {
    return runLocalRanks(2, [&](LocalRank& local) {
      if (local.rank() == 0) {
        line.arrive();
        return 7;
      }
      const pid_t pid = getpid();
      EXPECT_EQ(write(ranks[1], &pid, sizeof pid), static_cast<ssize_t>(sizeof pid));
      raise(SIGSTOP);
      return 0;
    });
  });
  pid_t stopped = 0;
  ASSERT_EQ(read(ranks[0], &stopped, sizeof stopped), static_cast<ssize_t>(sizeof stopped));
  line.await(1);
  for (bool isStopped = false; !isStopped;) {
    std::ifstream file("/proc/" + std::to_string(stopped) + "/stat");
    const std::string stat(std::istreambuf_iterator<char>(file), {});
    ASSERT_FALSE(stat.empty()) << "rank 1 was killed at once";
    isStopped = stat.find(") T ") != std::string::npos;
  }
  kill(stopped, SIGCONT);
  const Outcome outcome = parent.wait();
  EXPECT_EQ(outcome.exitCode(), 7);
  EXPECT_EQ(outcome.said, "rank 0 ended with exit code 7\n");
  close(ranks[0]);
  close(ranks[1]);
}

TEST(LocalRanks, RankZeroGoneIsAnErrorForThoseWhoWaitForItsId) {
  Parent parent([] {
    return runLocalRanks(2, [](LocalRank& local) {
      if (local.rank() == 0) {
        return 0;  // ends without making an id
      }
      local.takeUniqueId();
      return 0;
    });
  });
  const Outcome outcome = parent.wait();
  EXPECT_EQ(outcome.exitCode(), kExitFailure);
  EXPECT_NE(outcome.said.find("rank 1: rank 0 ended before it made the unique id."), std::string::npos)
      << outcome.said;
}

TEST(LocalRanks, InterruptEndsAllRanksThenTheParent) {
  for (const int number : {SIGINT, SIGTERM, SIGHUP}) {
    StartLine line;
    Parent parent([&] {
      signal(number, SIG_DFL);  // whatever the test runner ignores
      return runLocalRanks(3, [&](LocalRank&) {
        line.arrive();
        return sleepForever();
      });
    });
    line.await(3);
    kill(parent.pid(), number);
    const Outcome outcome = parent.wait();
    ASSERT_TRUE(WIFSIGNALED(outcome.status)) << outcome.said;
    EXPECT_EQ(WTERMSIG(outcome.status), number);
  }
}

TEST(LocalRanks, RanksThatIgnoreTermAreKilled) {
  StartLine line;
  Parent parent([&] {
    return runLocalRanks(2, [&](LocalRank&) {
      signal(SIGTERM, SIG_IGN);
      line.arrive();
      return sleepForever();
    });
  });
  line.await(2);
  kill(parent.pid(), SIGTERM);
  const Outcome outcome = parent.wait();
  EXPECT_TRUE(WIFSIGNALED(outcome.status));
  EXPECT_LT(outcome.seconds, 30);
}

TEST(LocalRanks, RanksDieWithAKilledParent) {
  StartLine line;
  Parent parent([&] {
    return runLocalRanks(3, [&](LocalRank&) {
      line.arrive();
      return sleepForever();
    });
  });
  line.await(3);
  kill(parent.pid(), SIGKILL);
  const Outcome outcome = parent.wait();  // returns only when no rank holds the error output
  EXPECT_TRUE(WIFSIGNALED(outcome.status));
}

TEST(LocalRanks, NoRanksIsAnError) {
  EXPECT_THROW(runLocalRanks(0, [](LocalRank&) { return 0; }), UsageError);
}

nlohmann::json sampleChart() {
  return {{"title", "busbw <of> \"tests\" & more"},
          {"panels",
           {{{"kind", "lines"},
             {"xScale", "log2"},
             {"yScale", "log10"},
             {"xUnit", "bytes"},
             {"series", {{{"name", "out of place"}, {"x", {8, 1024, 65536}}, {"y", {0.01, nullptr, 3}}}}}},
            {{"kind", "bars"},
             {"stacked", true},
             {"categories", {"stage 0", "stage 1"}},
             {"series", {{{"name", "m"}, {"values", {3, 2}}}, {{"name", "v"}, {"values", {1, nullptr}}}}}}}}};
}

class Plot : public testing::Test {
 protected:
  // A fault of the script and what it says.
  static std::string fault(const nlohmann::json& chart, const std::string& path) {
    try {
      plot(chart, path);
    } catch (const ToolError& error) {
      return error.what();
    }
    return "";
  }
  std::filesystem::path folder_ =
      std::filesystem::temp_directory_path() / ("peal-plot-" + std::to_string(getpid()));
  void SetUp() override { std::filesystem::create_directory(folder_); }
  void TearDown() override { std::filesystem::remove_all(folder_); }
};

TEST_F(Plot, DrawsSvgAndPng) {
  for (const char* name : {"chart.svg", "chart.png"}) {
    const std::string path = folder_ / name;
    ASSERT_EQ(fault(sampleChart(), path), "");
    std::ifstream file(path);
    std::string text((std::istreambuf_iterator<char>(file)), {});
    EXPECT_GT(text.size(), 5000U);
    EXPECT_EQ(text.find(path.ends_with("svg") ? "<?xml" : "PNG"), path.ends_with("svg") ? 0U : 1U);
    if (path.ends_with("svg")) {
      EXPECT_NE(text.find("out of place"), std::string::npos);
      EXPECT_NE(text.find("</svg>"), std::string::npos);
    }
  }
}

TEST_F(Plot, FaultsAreSentences) {
  EXPECT_NE(fault(sampleChart(), folder_ / "chart.txt").find("must end in .svg, .png or .pdf"),
            std::string::npos);
  EXPECT_NE(fault(sampleChart(), "/nonexistent/chart.svg").find("No such file or directory"),
            std::string::npos);
  EXPECT_NE(fault({{"title", "x"}}, folder_ / "chart.svg").find("lacks 'panels'"), std::string::npos);
  nlohmann::json pie = sampleChart();
  pie["panels"][0]["kind"] = "pie";
  EXPECT_NE(fault(pie, folder_ / "chart.svg").find("panel kind \"pie\""), std::string::npos);
}

}  // namespace
}  // namespace peal::tools
