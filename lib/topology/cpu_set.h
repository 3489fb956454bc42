// A set of processor numbers, written as Linux writes it: "0-3,8".
//
// Plain data, ascending and without doubles once made by CpuSet::of or parseCpuSet. Pure.
#pragma once
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace peal {

struct CpuSet {
  std::vector<int> cpus;

  static CpuSet of(std::vector<int> cpus);  // in any order

  bool operator==(const CpuSet&) const = default;
  bool empty() const { return cpus.empty(); }
  int count() const { return static_cast<int>(cpus.size()); }
  bool contains(int cpu) const;
  bool contains(const CpuSet& other) const;  // all of them; of an empty set: false
  CpuSet operator&(const CpuSet& other) const;
  std::string text() const;
};

// Nothing if the text is no such list, or names a processor above 65535.
std::optional<CpuSet> parseCpuSet(std::string_view text);

}  // namespace peal
