// Log: one line to the error output for people who look for a fault. Level from PEAL_LOG.
// An error that is returned to the caller is logged once, where it was detected.
#pragma once
#include <string>

namespace peal {

enum class LogLevel { None, Error, Warn, Info, Debug };

LogLevel logLevel();
// Writes "peal [pid] level: text" in a single write, so that lines of several processes do not mix.
void log(LogLevel level, const std::string& text);

}  // namespace peal
