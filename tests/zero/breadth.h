// How much of a test runs under sanitizers, which are ten times slower: what they look for, races and bad
// memory, a few ranks show; sums that depend on the number of ranks are the other builds' business, which try
// them all.
#pragma once
#include <algorithm>
#include <cstddef>
#include <vector>

namespace peal::zero::test {

#ifdef PEAL_SANITIZED
inline constexpr int kMostRanks = 3;
inline constexpr int kMostLateRanks = 1;
inline constexpr int kMostGroupedRanks = 4;  // the fewest that make two groups of two
inline constexpr size_t kEveryByte = 7;      // of files that are damaged byte by byte: every seventh
inline constexpr int kKills = 12;
#else
inline constexpr int kMostRanks = 128;
inline constexpr int kMostLateRanks = 128;
inline constexpr int kMostGroupedRanks = 128;
inline constexpr size_t kEveryByte = 1;
inline constexpr int kKills = 50;
#endif

// The ranks from this one on are late in turn.
inline int firstLateRank(int ranks) { return std::max(0, ranks - kMostLateRanks); }

inline std::vector<int> rankCounts(std::vector<int> all) {
  std::erase_if(all, [](int ranks) { return ranks > kMostRanks; });
  return all;
}

}  // namespace peal::zero::test
