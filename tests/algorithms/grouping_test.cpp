// How ranks lie on nodes, against a plain reference.
#include "algorithms/grouping.h"

#include <gtest/gtest.h>

#include <map>
#include <vector>

namespace peal::test {
namespace {

void expectPlain(const std::vector<int>& labels) {
  std::vector<int> table(groupingTableSize(labels.size()), -1);
  const Grouping grouping = groupRanks(labels, table);
  std::vector<int> order;  // labels by their lowest rank
  std::map<int, std::vector<int>> members;
  for (size_t rank = 0; rank < labels.size(); ++rank) {
    if (members[labels[rank]].empty()) {
      order.push_back(labels[rank]);
    }
    members[labels[rank]].push_back(static_cast<int>(rank));
  }
  ASSERT_EQ(grouping.ranks, static_cast<int>(labels.size()));
  ASSERT_EQ(grouping.nodes, static_cast<int>(order.size()));
  size_t least = labels.size(), most = 0;
  for (int node = 0; node < grouping.nodes; ++node) {
    const std::vector<int>& want = members[order[static_cast<size_t>(node)]];
    ASSERT_EQ(grouping.nodeSize(node), static_cast<int>(want.size()));
    least = std::min(least, want.size());
    most = std::max(most, want.size());
    for (size_t local = 0; local < want.size(); ++local) {
      const int rank = want[local];
      EXPECT_EQ(grouping.rank(node, static_cast<int>(local)), rank);
      EXPECT_EQ(grouping.node(rank), node);
      EXPECT_EQ(grouping.local(rank), static_cast<int>(local));
      EXPECT_TRUE(grouping.sameNode(rank, want[0]));
    }
  }
  EXPECT_EQ(grouping.smallestNode(), static_cast<int>(least));
  EXPECT_EQ(grouping.largestNode(), static_cast<int>(most));
  EXPECT_EQ(grouping.even(), least == most);
}

TEST(Grouping, NumbersNodesByTheirLowestRankAndTheirRanksInOrder) {
  expectPlain({0});
  expectPlain({0, 0, 0, 3, 3, 3});
  expectPlain({0, 1, 0, 1, 0, 1});
  expectPlain({5, 5, 5, -2});
  expectPlain({9, 1, 1, 4, 9, 4, 4, 0});
  expectPlain({3, 2, 1, 0});
}

TEST(Grouping, IsConstant) {
  static constexpr int kLabels[] = {7, 3, 7, 7};
  static constexpr auto kNodeOfTwo = [] {
    int table[groupingTableSize(4)] = {};
    const Grouping grouping = groupRanks(kLabels, table);
    return grouping.node(1) * 10 + grouping.local(2);
  }();
  static_assert(kNodeOfTwo == 11);
}

}  // namespace
}  // namespace peal::test
