#include "lib/base/log.h"

#include <fmt/format.h>
#include <unistd.h>

#include <array>

#include "lib/base/config.h"

namespace peal {
namespace {

constexpr std::array<const char*, 5> kLevelNames{"none", "error", "warn", "info", "debug"};

}  // namespace

LogLevel logLevel() {
  static const LogLevel level = [] {
    const Result<Configuration>& table = configuration();
    if (table) {
      for (size_t i = 0; i < kLevelNames.size(); ++i) {
        if (table->text(Knob::LogLevel) == kLevelNames[i]) {
          return static_cast<LogLevel>(i);
        }
      }
    }
    return LogLevel::Warn;
  }();
  return level;
}

void log(LogLevel level, const std::string& text) {
  if (level == LogLevel::None || level > logLevel()) {
    return;
  }
  const std::string line =
      fmt::format("peal [{}] {}: {}\n", getpid(), kLevelNames[static_cast<size_t>(level)], text);
  // Nothing can be done about a closed error output, and the caller has the error in hand.
  [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, line.data(), line.size());
}

}  // namespace peal
