// A folder of a test below the system's temporary one. It goes when the test ends, and when the test is
// killed: a process of its own, in no group and no tree of the test's, waits for the test's end of a pipe to
// close.
#pragma once
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <filesystem>
#include <string>
#include <thread>
#include <utility>

namespace peal::test {

class ScratchFolder {
 public:
  explicit ScratchFolder(const std::string& prefix) {
    std::string name = (std::filesystem::temp_directory_path() / (prefix + "XXXXXX")).string();
    int ends[2] = {-1, -1};
    if (mkdtemp(name.data()) == nullptr || pipe2(ends, O_CLOEXEC) != 0) {
      ADD_FAILURE() << "no folder " << name << ": errno " << errno;
      return;
    }
    path_ = name;
    alive_ = ends[1];
    const pid_t child = fork();
    if (child == 0) {
      watch(ends[0]);
    } else if (child > 0) {
      waitpid(child, nullptr, 0);
    } else {
      ADD_FAILURE() << "nobody watches " << name << ": errno " << errno;
    }
    close(ends[0]);
  }
  ~ScratchFolder() {
    std::error_code fault;
    std::filesystem::remove_all(path_, fault);
    EXPECT_FALSE(fault) << path_ << ": " << fault.message();
    close(alive_);
  }
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;

  const std::filesystem::path& path() const { return path_; }
  std::string operator/(const std::string& name) const { return (path_ / name).string(); }

 private:
  // What the test started may write for a moment after its death.
  static constexpr int kTries = 25;
  static constexpr std::chrono::milliseconds kPause{200};

  // In a child: leaves a grandchild behind, which nobody waits for.
  [[noreturn]] void watch(int ended) const {
    if (fork() != 0) {
      _exit(0);
    }
    setsid();
    close(alive_);  // or it would wait for itself
    const int nowhere = open("/dev/null", O_RDWR);
    for (int standard = 0; standard <= 2; ++standard) {
      dup2(nowhere, standard);
    }
    // Of what the test has open nothing stays, other folders' pipes above all.
    dup2(ended, 3);
    close_range(4, ~0U, 0);
    char byte;
    while (read(3, &byte, 1) < 0 && errno == EINTR) {
    }
    std::error_code fault;
    for (int i = 0; i < kTries && std::filesystem::exists(path_, fault); ++i) {
      std::filesystem::remove_all(path_, fault);
      std::this_thread::sleep_for(fault ? kPause : std::chrono::milliseconds(0));
    }
    _exit(0);
  }

  std::filesystem::path path_;
  int alive_ = -1;
};

}  // namespace peal::test
