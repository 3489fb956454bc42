#include "tools/train/metrics.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>
#include <vector>

#include "tools/common/error.h"

namespace peal::train {
namespace {

constexpr const char* kColumns[] = {"event",
                                    "step",
                                    "loss",
                                    "lossPerToken",
                                    "characters",
                                    "gradientNorm",
                                    "clipFactor",
                                    "skipped",
                                    "learningRate",
                                    "tokens",
                                    "seconds",
                                    "communicationSeconds",
                                    "waitSeconds",
                                    "hiddenShare",
                                    "tokensPerSecondPerRank",
                                    "flopsPerSecondPerRank"};

}  // namespace

MetricsFile::MetricsFile(const std::string& path, Earlier earlier) : path_(path) {
  if (path.empty()) {
    return;
  }
  const int keep = earlier == Earlier::Kept ? O_APPEND : O_TRUNC;
  fd_ = open(path.c_str(), O_WRONLY | O_CREAT | keep | O_CLOEXEC, 0666);
  isCsv_ = path.ends_with(".csv");
  if (fd_ < 0) {
    throw tools::UsageError(fmt::format("cannot write the metrics '{}': {}", path, std::strerror(errno)));
  }
  struct stat status {};
  const bool isEmpty = fstat(fd_, &status) != 0 || status.st_size == 0;
  if (isCsv_ && isEmpty) {
    writeText(fmt::format("{}\n", fmt::join(kColumns, ",")));
  }
}

MetricsFile::~MetricsFile() {
  if (fd_ >= 0) {
    close(fd_);
  }
}

void MetricsFile::write(const nlohmann::json& line) {
  if (fd_ < 0) {
    return;
  }
  if (!isCsv_) {  // a sample of tokens may end within a character
    writeText(line.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n");
    return;
  }
  if (line.at("event") != "step" && line.at("event") != "heldOut") {
    return;
  }
  std::vector<std::string> cells;
  for (const char* column : kColumns) {
    const auto cell = line.find(column);
    cells.push_back(cell == line.end() || cell->is_null() ? ""
                    : cell->is_string()                   ? cell->get<std::string>()
                                                          : cell->dump());
  }
  writeText(fmt::format("{}\n", fmt::join(cells, ",")));
}

void MetricsFile::writeText(const std::string& text) {
  for (size_t done = 0; done < text.size();) {
    const ssize_t wrote = ::write(fd_, text.data() + done, text.size() - done);
    if (wrote < 0 && errno != EINTR) {
      throw tools::ToolError(fmt::format("cannot write the metrics '{}': {}", path_, std::strerror(errno)));
    }
    done += wrote > 0 ? static_cast<size_t>(wrote) : 0;
  }
}

}  // namespace peal::train
