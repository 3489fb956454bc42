#include "lib/bootstrap/process_tree.h"

#include <fmt/format.h>
#include <unistd.h>

#include <charconv>
#include <fstream>
#include <iterator>
#include <sstream>

namespace peal {
namespace {

constexpr size_t kAncestorsMost = 64;

std::string readWhole(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

// Field `number` (from 1) of /proc/<id>/stat, for fields after the name; "" if there is none.
std::string statField(int processId, int number) {
  const std::string stat = readWhole(fmt::format("/proc/{}/stat", processId));
  // The name stands in parentheses and may hold anything, so count from the last one.
  const size_t close = stat.rfind(')');
  if (close == std::string::npos) {
    return "";
  }
  std::istringstream fields(stat.substr(close + 1));
  std::string field;
  for (int i = 3; i <= number; ++i) {
    if (!(fields >> field)) {
      return "";
    }
  }
  return field;
}

int parentOf(int processId) {
  const std::string field = statField(processId, 4);
  int parent = 0;
  (void)std::from_chars(field.data(), field.data() + field.size(), parent);
  return parent;
}

}  // namespace

std::vector<Ancestor> ancestors() {
  std::vector<Ancestor> all;
  for (int id = getppid(); id > 0 && all.size() < kAncestorsMost; id = parentOf(id)) {
    const std::string startTime = statField(id, 22);
    if (startTime.empty()) {
      break;
    }
    all.push_back({id, startTime});
  }
  return all;
}

bool startedWith(int processId, const std::string& variable) {
  const std::string environment = readWhole(fmt::format("/proc/{}/environ", processId));
  const std::string wanted = variable + "=";
  for (size_t at = 0; at < environment.size();) {
    if (environment.compare(at, wanted.size(), wanted) == 0) {
      return true;
    }
    const size_t end = environment.find('\0', at);
    at = end == std::string::npos ? environment.size() : end + 1;
  }
  return false;
}

}  // namespace peal
