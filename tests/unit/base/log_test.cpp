// Log lines: which levels are written, and their form.
#include "lib/base/log.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <string>

namespace {

using peal::LogLevel;

struct Logged {
  pid_t pid;
  std::string text;
};

// What a process with PEAL_LOG=level writes when it logs one line at every level. The level is read once per
// process, so each case has its own. level nullptr: unset.
Logged logAll(const char* level) {
  std::array<int, 2> ends{};
  EXPECT_EQ(pipe(ends.data()), 0);
  const pid_t child = fork();
  if (child == 0) {
    dup2(ends[1], STDERR_FILENO);
    if (level == nullptr) {
      unsetenv("PEAL_LOG");
    } else {
      setenv("PEAL_LOG", level, 1);
    }
    for (const LogLevel at :
         {LogLevel::None, LogLevel::Error, LogLevel::Warn, LogLevel::Info, LogLevel::Debug}) {
      peal::log(at, "line " + std::to_string(static_cast<int>(at)));
    }
    _exit(0);
  }
  close(ends[1]);
  Logged logged{child, {}};
  std::array<char, 4096> buffer{};
  for (ssize_t got = 0; (got = read(ends[0], buffer.data(), buffer.size())) > 0;) {
    logged.text.append(buffer.data(), static_cast<size_t>(got));
  }
  close(ends[0]);
  int status = 0;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  return logged;
}

std::string expectedLines(pid_t pid, int upTo) {
  const std::array<const char*, 5> names{"none", "error", "warn", "info", "debug"};
  std::string text;
  for (int i = 1; i <= upTo; ++i) {
    text += "peal [" + std::to_string(pid) + "] " + names[static_cast<size_t>(i)] + ": line " +
            std::to_string(i) + "\n";
  }
  return text;
}

TEST(Log, WritesUpToTheLevelAndNoFurther) {
  const std::array<const char*, 5> levels{"none", "error", "warn", "info", "debug"};
  for (int i = 0; i < 5; ++i) {
    const Logged logged = logAll(levels[static_cast<size_t>(i)]);
    EXPECT_EQ(logged.text, expectedLines(logged.pid, i)) << levels[static_cast<size_t>(i)];
  }
}

TEST(Log, WarnsByDefault) {
  const Logged logged = logAll(nullptr);
  EXPECT_EQ(logged.text, expectedLines(logged.pid, 2));
}

TEST(Log, AConfigurationInErrorStillWarns) {
  const Logged logged = logAll("loud");
  EXPECT_EQ(logged.text, expectedLines(logged.pid, 2));
}

}  // namespace
