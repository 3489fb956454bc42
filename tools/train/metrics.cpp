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
  const int how = earlier == Earlier::Kept ? O_RDWR | O_APPEND : O_WRONLY | O_TRUNC;
  fd_ = open(path.c_str(), how | O_CREAT | O_CLOEXEC, 0666);
  isCsv_ = path.ends_with(".csv");
  if (fd_ < 0) {
    throw tools::UsageError(fmt::format("cannot write the metrics '{}': {}", path, std::strerror(errno)));
  }
  if (dropHalfLine() == 0 && isCsv_) {
    writeText(fmt::format("{}\n", fmt::join(kColumns, ",")));
  }
}

// A disk that was full has cut the last line of the run before. Returns the size that is left.
off_t MetricsFile::dropHalfLine() const {
  struct stat status {};
  if (fstat(fd_, &status) != 0 || !S_ISREG(status.st_mode)) {
    return 0;
  }
  off_t size = status.st_size;
  for (char last = 0; size > 0 && pread(fd_, &last, 1, size - 1) == 1 && last != '\n';) {
    --size;
  }
  if (size != status.st_size && ftruncate(fd_, size) != 0) {
    throw tools::UsageError(fmt::format("cannot take the half line from the end of the metrics '{}': {}",
                                        path_, std::strerror(errno)));
  }
  return size;
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
