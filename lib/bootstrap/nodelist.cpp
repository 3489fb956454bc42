#include "lib/bootstrap/nodelist.h"

#include <algorithm>
#include <charconv>

namespace peal {
namespace {

// Takes a whole number >= 0 from the front.
std::optional<int> takeNumber(std::string_view& text) {
  int value = 0;
  const auto [end, fault] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (fault != std::errc() || value < 0) {
    return std::nullopt;
  }
  text.remove_prefix(static_cast<size_t>(end - text.data()));
  return value;
}

bool take(std::string_view& text, std::string_view what) {
  if (text.substr(0, what.size()) != what) {
    return false;
  }
  text.remove_prefix(what.size());
  return true;
}

}  // namespace

std::optional<std::string> firstHost(std::string_view nodeList) {
  std::string host;
  // A name may have several brackets ("rack[1-2]n[1-4]"); of each the first choice counts.
  while (!nodeList.empty() && nodeList.front() != ',') {
    if (nodeList.front() != '[') {
      host += nodeList.front();
      nodeList.remove_prefix(1);
      continue;
    }
    const size_t close = nodeList.find(']');
    if (close == std::string_view::npos) {
      return std::nullopt;
    }
    const std::string_view inside = nodeList.substr(1, close - 1);
    host += inside.substr(0, inside.find_first_of("-,"));
    nodeList.remove_prefix(close + 1);
  }
  return host.empty() ? std::nullopt : std::optional(host);
}

std::optional<int> tasksOnNode(std::string_view tasksPerNode, int nodeIndex) {
  int node = 0;
  while (true) {
    const std::optional<int> tasks = takeNumber(tasksPerNode);
    if (!tasks) {
      return std::nullopt;
    }
    int repeated = 1;
    if (take(tasksPerNode, "(x")) {
      const std::optional<int> times = takeNumber(tasksPerNode);
      if (!times || !take(tasksPerNode, ")")) {
        return std::nullopt;
      }
      repeated = *times;
    }
    if (nodeIndex - node < repeated) {
      return tasks;
    }
    node += repeated;
    if (!take(tasksPerNode, ",")) {
      return std::nullopt;
    }
  }
}

}  // namespace peal
