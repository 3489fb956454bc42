// Runs peal-train as a user would: a process of its own in a process group of its own, its output caught,
// with a deadline after which the whole group is killed.
#pragma once
#include <sys/types.h>

#include <chrono>
#include <string>
#include <vector>

#include "tests/support/limits.h"

namespace peal::train {

struct CommandResult {
  int exitCode = -1;  // 128 + signal if a signal ended it
  bool overdue = false;
  bool leftSomething = false;  // a process of its group was still there after its end
  double seconds = 0;          // from start() to its end
  std::string output;          // standard and error output
};

class Command {
 public:
  // arguments[0] is the program. environment: "NAME=value" on top of the test's own.
  explicit Command(std::vector<std::string> arguments, std::vector<std::string> environment = {});
  Command(const Command&) = delete;
  Command& operator=(const Command&) = delete;
  ~Command();

  pid_t pid() const { return pid_; }
  // Its children, in the order of their start.
  std::vector<pid_t> children() const;
  // Waits for the end, or kills at the deadline.
  CommandResult wait(std::chrono::seconds deadline = test::kHangs);

 private:
  std::string output() const;

  pid_t pid_ = -1;
  int outputFd_ = -1;
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

}  // namespace peal::train
