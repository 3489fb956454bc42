#include "lib/base/patterns.h"

#include <algorithm>

namespace peal {

std::vector<NamePattern> parsePatterns(std::string_view text) {
  std::vector<NamePattern> patterns;
  while (!text.empty()) {
    const size_t comma = std::min(text.find(','), text.size());
    std::string_view entry = text.substr(0, comma);
    text.remove_prefix(std::min(comma + 1, text.size()));
    NamePattern pattern;
    if (!patterns.empty()) {
      pattern.exclude = patterns.front().exclude;
      pattern.whole = patterns.front().whole;
    }
    while (!entry.empty() && (entry.front() == '^' || entry.front() == '=')) {
      (entry.front() == '^' ? pattern.exclude : pattern.whole) = true;
      entry.remove_prefix(1);
    }
    if (!entry.empty()) {
      pattern.name = entry;
      patterns.push_back(pattern);
    }
  }
  return patterns;
}

bool selects(const std::vector<NamePattern>& patterns,
             const std::function<bool(const NamePattern&)>& matches) {
  bool included = false;
  bool anyInclude = false;
  for (const NamePattern& pattern : patterns) {
    if (pattern.exclude && matches(pattern)) {
      return false;
    }
    anyInclude = anyInclude || !pattern.exclude;
    included = included || (!pattern.exclude && matches(pattern));
  }
  return included || !anyInclude;
}

}  // namespace peal
