// Lists of names as people write them for interfaces and devices: "eth0,eth1" are prefixes, '=' asks for the
// whole name, '^' excludes.
//
// Used by whoever chooses among interfaces (bootstrap) and devices (transports). Pure.
#pragma once
#include <functional>
#include <string_view>
#include <vector>

namespace peal {

// One entry of such a list. Points into the text that was parsed.
struct NamePattern {
  std::string_view name;
  bool exclude = false;
  bool whole = false;

  bool matches(std::string_view candidate) const {
    return whole ? candidate == name : candidate.substr(0, name.size()) == name;
  }
};

// '^' and '=' before the first entry hold for all; a later entry may add its own.
std::vector<NamePattern> parsePatterns(std::string_view text);

// Whether the list selects what `matches` matches: something includes it, or nothing includes at all, and
// nothing excludes it.
bool selects(const std::vector<NamePattern>& patterns,
             const std::function<bool(const NamePattern&)>& matches);

}  // namespace peal
