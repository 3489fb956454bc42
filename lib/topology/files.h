// Small reads of /sys and /proc, where a missing or unreadable file is an answer, not an error.
#pragma once
#include <optional>
#include <string>
#include <vector>

namespace peal {

std::optional<std::string> readFile(const std::string& path);
std::string trimmed(const std::string& text);                 // without space at either end
std::string readLine(const std::string& path);                // trimmed; empty if unreadable
std::vector<std::string> namesIn(const std::string& folder);  // ascending, numbers in them by value
std::string resolved(const std::string& path);                // without links; empty if there is nothing

}  // namespace peal
