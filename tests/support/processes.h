// Runs a test's body in several child processes, with a deadline, and collects how each ended.
//
// A body may use EXPECT_* and ASSERT_* (a failure there becomes exit code 1), must return its exit code, and
// never outlives the deadline: the parent kills what is left. Fork before the parent makes threads.
#pragma once
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/limits.h"

// Only in programs built with the address sanitizer: reports leaks of a process that ends by _exit().
extern "C" int __lsan_do_recoverable_leak_check() __attribute__((weak));

namespace peal::test {

inline constexpr int kLeakExitCode = 99;
// A child's word: it may be in a state in which the leak sanitizer, which starts a helper, cannot look.
inline bool leaksCanBeChecked = true;

// How a child ended.
struct ChildResult {
  int exitCode = -1;     // -1: it did not exit by itself
  int signal = 0;        // the signal that ended it
  bool overdue = false;  // the parent killed it at the deadline
  std::string message;   // all that it said
};

// PEAL_TEST_NODES=2: the children count as being on so many nodes, by turns, and go over the network.
inline int pretendedNodes() {
  const char* nodes = getenv("PEAL_TEST_NODES");
  return nodes != nullptr ? atoi(nodes) : 1;
}

// What a body sees of its process.
class Child {
 public:
  Child(int index, int pipe) : index_(index), pipe_(pipe) {}
  int index() const { return index_; }
  // Hands text to the parent: ChildResult::message. At most a few KiB in all.
  void say(const std::string& text) const {
    if (write(pipe_, text.data(), text.size()) < 0) {
      perror("Child::say");
    }
  }

 private:
  int index_;
  int pipe_;
};

// Whether a thread of the library runs in this process: its name says so.
inline bool hasLibraryThread() {
  std::error_code fault;  // a thread may end while it is looked at
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task", fault)) {
    std::ifstream comm(task.path() / "comm");
    std::string name;
    if (std::getline(comm, name) && name.starts_with("peal-")) {
      return true;
    }
  }
  return false;
}

// An earlier test's rendezvous ends in its own time. A fork meanwhile would copy the locks that it holds; the
// thread sanitizer refuses to start threads after such a fork.
inline void awaitLibraryThreads() {
  const auto end = std::chrono::steady_clock::now() + kAtOnce;
  while (hasLibraryThread() && std::chrono::steady_clock::now() < end) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

// Children that run at the same time. Destroying it kills and reaps the ones that are left.
class Processes {
 public:
  using Body = std::function<int(const Child&)>;

  Processes(int count, const Body& body) {
    awaitLibraryThreads();
    for (int i = 0; i < count; ++i) {
      start(i, body);
    }
  }
  Processes(const Processes&) = delete;
  Processes& operator=(const Processes&) = delete;
  ~Processes() {
    for (const Running& child : running_) {
      if (!child.reaped) {
        ::kill(child.pid, SIGKILL);
        waitpid(child.pid, nullptr, 0);
      }
      close(child.pipe);
    }
  }

  pid_t pid(int index) const { return running_.at(static_cast<size_t>(index)).pid; }
  void kill(int index, int signal = SIGKILL) const { ::kill(pid(index), signal); }

  // Waits until that child has said something.
  bool waitForMessage(int index, std::chrono::milliseconds limit) const {
    pollfd entry{running_.at(static_cast<size_t>(index)).pipe, POLLIN, 0};
    return poll(&entry, 1, static_cast<int>(limit.count())) > 0 && (entry.revents & POLLIN) != 0;
  }

  // Waits for all; kills those that are left after `limit`.
  std::vector<ChildResult> wait(std::chrono::milliseconds limit) {
    const auto end = std::chrono::steady_clock::now() + limit;
    std::vector<ChildResult> results(running_.size());
    for (size_t i = 0; i < running_.size(); ++i) {
      ChildResult& result = results[i];
      // A pipe ends when its child has ended, whichever way.
      while (!readSome(running_[i].pipe, leftMs(end), result.message)) {
        if (leftMs(end) == 0) {
          ::kill(running_[i].pid, SIGKILL);
          result.overdue = true;
          readSome(running_[i].pipe, 1000, result.message);
          break;
        }
      }
      int status = 0;
      waitpid(running_[i].pid, &status, 0);
      running_[i].reaped = true;
      result.exitCode = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
      result.signal = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
    }
    return results;
  }

 private:
  struct Running {
    pid_t pid = -1;
    int pipe = -1;
    bool reaped = false;
  };

  void start(int index, const Body& body) {
    int ends[2];
    if (pipe(ends) != 0) {
      ADD_FAILURE() << "pipe: errno " << errno;
      return;
    }
    fflush(nullptr);
    const pid_t parent = getpid();
    const pid_t pid = fork();
    if (pid != 0) {
      close(ends[1]);
      EXPECT_GT(pid, 0) << "fork: errno " << errno;
      running_.push_back({pid, ends[0], pid < 0});
      return;
    }
    prctl(PR_SET_PDEATHSIG, SIGKILL);  // nobody is left behind when the test itself is killed
    if (getppid() != parent) {
      _exit(1);
    }
    close(ends[0]);
    for (const Running& other : running_) {
      close(other.pipe);
    }
    pretendNode(index);
    int code = body(Child(index, ends[1]));
    if (code == 0 && ::testing::Test::HasFailure()) {
      code = 1;
    }
    if (__lsan_do_recoverable_leak_check != nullptr && leaksCanBeChecked &&
        __lsan_do_recoverable_leak_check() != 0 && code == 0) {
      code = kLeakExitCode;
    }
    fflush(nullptr);
    _exit(code);
  }

  static void pretendNode(int index) {
    if (const int nodes = pretendedNodes(); nodes > 1) {
      setenv("PEAL_HOST_ID", ("pretended node " + std::to_string(index % nodes)).c_str(), 1);
    }
  }

  static int leftMs(std::chrono::steady_clock::time_point end) {
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(end - std::chrono::steady_clock::now()).count();
    return left > 0 ? static_cast<int>(left) : 0;
  }

  // Appends what the pipe has; true at its end.
  static bool readSome(int pipe, int timeoutMs, std::string& text) {
    pollfd entry{pipe, POLLIN, 0};
    if (poll(&entry, 1, timeoutMs) <= 0) {
      return false;
    }
    char buffer[4096];
    const ssize_t got = read(pipe, buffer, sizeof buffer);
    if (got > 0) {
      text.append(buffer, static_cast<size_t>(got));
    }
    return got == 0 || (got < 0 && errno != EINTR && errno != EAGAIN);
  }

  std::vector<Running> running_;
};

// Runs body(child) in `count` processes and waits for all of them.
inline std::vector<ChildResult> runProcesses(int count, std::chrono::milliseconds limit,
                                             const Processes::Body& body) {
  return Processes(count, body).wait(limit);
}

// The usual verdict: every child returned 0 in time.
inline void expectAllSucceeded(const std::vector<ChildResult>& results) {
  for (size_t i = 0; i < results.size(); ++i) {
    EXPECT_FALSE(results[i].overdue) << "process " << i
                                     << " was killed at the deadline; it said: " << results[i].message;
    EXPECT_EQ(results[i].signal, 0) << "process " << i << " said: " << results[i].message;
    EXPECT_EQ(results[i].exitCode, 0) << "process " << i << " said: " << results[i].message;
  }
}

}  // namespace peal::test
