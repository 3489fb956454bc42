#include "lib/topology/files.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <utility>

namespace peal {

std::optional<std::string> readFile(const std::string& path) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) {
    return std::nullopt;
  }
  std::string text;
  std::array<char, 4096> part;
  ssize_t got = 0;
  while ((got = read(fd, part.data(), part.size())) > 0) {
    text.append(part.data(), static_cast<size_t>(got));
  }
  close(fd);
  return got < 0 ? std::nullopt : std::optional<std::string>(std::move(text));
}

std::string trimmed(const std::string& text) {
  constexpr const char* kSpace = " \t\r\n";
  const size_t first = text.find_first_not_of(kSpace);
  return first == std::string::npos ? "" : text.substr(first, text.find_last_not_of(kSpace) - first + 1);
}

std::string readLine(const std::string& path) { return trimmed(readFile(path).value_or("")); }

std::vector<std::string> namesIn(const std::string& folder) {
  std::vector<std::string> names;
  std::error_code fault;
  for (std::filesystem::directory_iterator entry(folder, fault), end; !fault && entry != end;
       entry.increment(fault)) {
    names.push_back(entry->path().filename().string());
  }
  // strverscmp: eth2 before eth10.
  std::sort(names.begin(), names.end(),
            [](const std::string& a, const std::string& b) { return strverscmp(a.c_str(), b.c_str()) < 0; });
  return names;
}

std::string resolved(const std::string& path) {
  std::error_code fault;
  const std::filesystem::path real = std::filesystem::canonical(path, fault);
  return fault ? "" : real.string();
}

}  // namespace peal
