#include "tools/train/metrics.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>

#include "tools/common/error.h"

namespace peal::train {

MetricsFile::MetricsFile(const std::string& path) : path_(path) {
  if (path.empty()) {
    return;
  }
  fd_ = open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (fd_ < 0) {
    throw tools::UsageError(fmt::format("cannot write the metrics '{}': {}", path, std::strerror(errno)));
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
  const std::string text = line.dump() + "\n";
  for (size_t done = 0; done < text.size();) {
    const ssize_t wrote = ::write(fd_, text.data() + done, text.size() - done);
    if (wrote < 0 && errno != EINTR) {
      throw tools::ToolError(fmt::format("cannot write the metrics '{}': {}", path_, std::strerror(errno)));
    }
    done += wrote > 0 ? static_cast<size_t>(wrote) : 0;
  }
}

}  // namespace peal::train
