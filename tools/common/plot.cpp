#include "tools/common/plot.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <thread>

#include "tools/common/error.h"

extern char** environ;

namespace peal::tools {
namespace {

constexpr const char* kPython = "/usr/bin/python3";  // Debian's: the one that python3-matplotlib serves
constexpr const char* kScript = "libexec/peal/peal-plot.py";
constexpr std::chrono::seconds kDrawTime{120};

// The build tree and the install tree both have libexec/peal/ beside or above the folder of the program.
std::string findScript() {
  std::error_code fault;
  const std::filesystem::path program = std::filesystem::read_symlink("/proc/self/exe", fault);
  for (std::filesystem::path folder = program.parent_path(); !fault; folder = folder.parent_path()) {
    if (std::filesystem::exists(folder / kScript, fault)) {
      return folder / kScript;
    }
    if (folder == folder.parent_path()) {
      break;
    }
  }
  throw ToolError(fmt::format("cannot draw: {} is in no folder above {}. Is the installation whole?", kScript,
                              program.string()));
}

// An anonymous file: unlike a pipe it cannot fill up or raise SIGPIPE.
class Scratch {
 public:
  Scratch() : fd_(memfd_create("peal-plot", MFD_CLOEXEC)) {
    if (fd_ < 0) {
      throw ToolError(fmt::format("cannot draw: memfd_create: {}", strerror(errno)));
    }
  }
  ~Scratch() { close(fd_); }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  int fd() const { return fd_; }

  void fill(std::string_view text) {
    while (!text.empty()) {
      const ssize_t wrote = write(fd_, text.data(), text.size());
      if (wrote < 0) {
        throw ToolError(fmt::format("cannot draw: write: {}", strerror(errno)));
      }
      text.remove_prefix(static_cast<size_t>(wrote));
    }
    lseek(fd_, 0, SEEK_SET);
  }

  // What was written, without the line ends at its end.
  std::string text() const {
    std::string all;
    std::array<char, 4096> part;
    off_t at = 0;
    for (ssize_t got = 0; (got = pread(fd_, part.data(), part.size(), at)) > 0; at += got) {
      all.append(part.data(), static_cast<size_t>(got));
    }
    while (!all.empty() && all.back() == '\n') {
      all.pop_back();
    }
    return all;
  }

 private:
  int fd_;
};

pid_t start(const std::string& script, const std::string& outputPath, const Scratch& chart,
            const Scratch& errors) {
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, chart.fd(), STDIN_FILENO);
  posix_spawn_file_actions_adddup2(&actions, errors.fd(), STDERR_FILENO);
  std::array<const char*, 4> arguments{kPython, script.c_str(), outputPath.c_str(), nullptr};
  pid_t pid = 0;
  const int fault =
      posix_spawn(&pid, kPython, &actions, nullptr, const_cast<char**>(arguments.data()), environ);
  posix_spawn_file_actions_destroy(&actions);
  if (fault != 0) {
    throw ToolError(fmt::format("cannot draw: starting {}: {}. Install python3 and python3-matplotlib.",
                                kPython, strerror(fault)));
  }
  return pid;
}

int waitFor(pid_t pid) {
  const auto giveUp = std::chrono::steady_clock::now() + kDrawTime;
  int status = 0;
  while (waitpid(pid, &status, WNOHANG) == 0) {
    if (std::chrono::steady_clock::now() >= giveUp) {
      kill(pid, SIGKILL);
      waitpid(pid, &status, 0);
      throw ToolError(fmt::format("cannot draw: {} was not done after {} s.", kScript, kDrawTime.count()));
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return status;
}

}  // namespace

void checkPlotPath(const std::string& outputPath) {
  const std::string ending = std::filesystem::path(outputPath).extension();
  if (ending != ".svg" && ending != ".png" && ending != ".pdf") {
    throw UsageError(
        fmt::format("cannot draw to \"{}\": the name must end in .svg, .png or .pdf.", outputPath));
  }
  const std::filesystem::path folder = std::filesystem::path(outputPath).parent_path();
  if (access(folder.empty() ? "." : folder.c_str(), W_OK) != 0) {
    throw UsageError(fmt::format("cannot draw to \"{}\": its folder: {}.", outputPath, std::strerror(errno)));
  }
}

void plot(const nlohmann::json& chart, const std::string& outputPath) {
  checkPlotPath(outputPath);
  const std::string script = findScript();
  Scratch description;
  Scratch errors;
  description.fill(chart.dump());
  const int status = waitFor(start(script, outputPath, description, errors));
  if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
    const std::string said = errors.text();
    throw ToolError(said.empty() ? fmt::format("cannot draw: {} ended with status {}.", kScript, status)
                                 : said);
  }
}

}  // namespace peal::tools
