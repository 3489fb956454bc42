#include "tests/train/command.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <fstream>
#include <thread>

namespace peal::train {
namespace {

using Clock = std::chrono::steady_clock;

// Waits for the child without a signal handler: true when it has ended.
bool endsBy(pid_t pid, Clock::time_point deadline, int* status) {
  while (waitpid(pid, status, WNOHANG) != pid) {
    if (Clock::now() > deadline) {
      return false;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return true;
}

}  // namespace

Command::Command(std::vector<std::string> arguments, std::vector<std::string> environment) {
  outputFd_ = memfd_create("output", MFD_CLOEXEC);
  std::vector<char*> pointers;
  for (std::string& argument : arguments) {
    pointers.push_back(argument.data());
  }
  pointers.push_back(nullptr);
  const pid_t parent = getpid();
  pid_ = fork();
  if (pid_ == 0) {
    setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) {
      _exit(126);
    }
    dup2(outputFd_, STDOUT_FILENO);
    dup2(outputFd_, STDERR_FILENO);
    for (std::string& variable : environment) {
      putenv(variable.data());
    }
    execv(pointers[0], pointers.data());
    _exit(127);
  }
  EXPECT_GT(pid_, 0) << "fork: errno " << errno;
  setpgid(pid_, pid_);
}

Command::~Command() {
  if (pid_ > 0) {
    kill(-pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  close(outputFd_);
}

std::vector<pid_t> Command::children() const {
  const std::string task = std::to_string(pid_);
  std::ifstream file("/proc/" + task + "/task/" + task + "/children");
  std::vector<pid_t> pids;
  for (pid_t pid; file >> pid;) {
    pids.push_back(pid);
  }
  return pids;
}

CommandResult Command::wait(std::chrono::seconds deadline) {
  CommandResult result;
  int status = 0;
  if (!endsBy(pid_, Clock::now() + deadline, &status)) {
    result.overdue = true;
    kill(-pid_, SIGKILL);
    waitpid(pid_, &status, 0);
  }
  result.seconds = std::chrono::duration<double>(Clock::now() - start_).count();
  result.exitCode = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
  result.leftSomething = kill(-pid_, 0) == 0;
  kill(-pid_, SIGKILL);
  pid_ = -1;
  result.output = output();
  return result;
}

std::string Command::output() const {
  std::string text;
  char part[4096];
  for (ssize_t got; (got = pread(outputFd_, part, sizeof part, static_cast<off_t>(text.size()))) > 0;) {
    text.append(part, static_cast<size_t>(got));
  }
  return text;
}

}  // namespace peal::train
