#include "lib/topology/cpu_set.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <iterator>
#include <utility>

namespace peal {
namespace {

constexpr int kLargest = 65535;  // a bound for hostile files: far above any machine

// The number at the front of text, which it is taken from.
std::optional<int> takeNumber(std::string_view& text) {
  int value = 0;
  const auto [end, fault] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (fault != std::errc() || value < 0 || value > kLargest) {
    return std::nullopt;
  }
  text.remove_prefix(static_cast<size_t>(end - text.data()));
  return value;
}

}  // namespace

CpuSet CpuSet::of(std::vector<int> cpus) {
  std::sort(cpus.begin(), cpus.end());
  cpus.erase(std::unique(cpus.begin(), cpus.end()), cpus.end());
  return {std::move(cpus)};
}

bool CpuSet::contains(int cpu) const { return std::binary_search(cpus.begin(), cpus.end(), cpu); }

bool CpuSet::contains(const CpuSet& other) const {
  return !other.empty() && std::includes(cpus.begin(), cpus.end(), other.cpus.begin(), other.cpus.end());
}

CpuSet CpuSet::operator&(const CpuSet& other) const {
  CpuSet common;
  std::set_intersection(cpus.begin(), cpus.end(), other.cpus.begin(), other.cpus.end(),
                        std::back_inserter(common.cpus));
  return common;
}

std::string CpuSet::text() const {
  std::string text;
  for (size_t first = 0; first < cpus.size();) {
    size_t last = first;
    while (last + 1 < cpus.size() && cpus[last + 1] == cpus[last] + 1) {
      ++last;
    }
    text += text.empty() ? "" : ",";
    text += first == last ? fmt::format("{}", cpus[first]) : fmt::format("{}-{}", cpus[first], cpus[last]);
    first = last + 1;
  }
  return text;
}

std::optional<CpuSet> parseCpuSet(std::string_view text) {
  std::vector<int> cpus;
  while (!text.empty()) {
    const std::optional<int> first = takeNumber(text);
    std::optional<int> last = first;
    if (first && !text.empty() && text.front() == '-') {
      text.remove_prefix(1);
      last = takeNumber(text);
    }
    if (!first || !last || *last < *first) {
      return std::nullopt;
    }
    for (int cpu = *first; cpu <= *last; ++cpu) {
      cpus.push_back(cpu);
    }
    if (!text.empty()) {
      if (text.front() != ',' || text.size() == 1) {
        return std::nullopt;
      }
      text.remove_prefix(1);
    }
  }
  return CpuSet::of(std::move(cpus));
}

}  // namespace peal
