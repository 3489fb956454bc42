// The ways of cutting an array on which algorithms are checked.
#pragma once
#include <deque>
#include <vector>

#include "algorithms/cost.h"

namespace peal::test {

// Owns the block starts that its shapes point to.
class Shapes {
 public:
  struct Shape {
    Blocks blocks;
    size_t chunkCount;
  };

  Shapes(Cut cut, int ranks) {
    const size_t n = static_cast<size_t>(ranks);
    if (cut == Cut::Whole) {
      for (const size_t total : {0, 1, 37}) {
        add(total, 1, 37);
      }
      add(37, 1, 8);   // five rounds, the last one shorter
      add(37, 1, 36);  // a last round of one element
      return;
    }
    add(0, ranks, 1);
    add(n / 2, ranks, 3);              // fewer elements than ranks
    add(3 * n + n / 2 + 1, ranks, 5);  // blocks of 3 and 4, one round
    add(3 * n + 1, ranks, 3);          // two rounds, in the last one element
    addBlocks(ranks, ranks <= 16 ? 1 : 3, [](size_t i) { return i % 4 == 1 ? size_t{0} : i * 7 % 5 + 1; });
    addBlocks(ranks, 4, [n](size_t i) { return i == n / 2 ? size_t{7} : size_t{0}; });
  }

  auto begin() const { return shapes_.begin(); }
  auto end() const { return shapes_.end(); }

 private:
  void add(size_t total, int parts, size_t chunkCount) {
    shapes_.push_back({Blocks{total, parts, nullptr}, chunkCount});
  }

  template <class Count>
  void addBlocks(int ranks, size_t chunkCount, Count count) {
    std::vector<size_t>& starts = starts_.emplace_back(1, 0);
    for (int i = 0; i < ranks; ++i) {
      starts.push_back(starts.back() + count(static_cast<size_t>(i)));
    }
    shapes_.push_back({Blocks{starts.back(), ranks, starts.data()}, chunkCount});
  }

  std::vector<Shape> shapes_;
  std::deque<std::vector<size_t>> starts_;  // a deque: growing it must not move what shapes point to
};

inline constexpr AlgorithmId kFlatAlgorithms[kFlatAlgorithmCount] = {
    AlgorithmId::RingAllReduce,    AlgorithmId::RingReduceScatter,   AlgorithmId::RingAllGather,
    AlgorithmId::RingBroadcast,    AlgorithmId::RingReduce,          AlgorithmId::OneShotAllReduce,
    AlgorithmId::TwoShotAllReduce, AlgorithmId::DirectReduceScatter, AlgorithmId::DirectAllGather,
    AlgorithmId::DirectBroadcast,  AlgorithmId::DirectReduce};

inline constexpr AlgorithmId kNodeAlgorithms[kAlgorithmCount - kFlatAlgorithmCount] = {
    AlgorithmId::HierarchicalAllReduce,
    AlgorithmId::HierarchicalReduceScatter,
    AlgorithmId::HierarchicalAllGather,
    AlgorithmId::HierarchicalBroadcast,
    AlgorithmId::HierarchicalReduce,
    AlgorithmId::DoublingAllReduce,
    AlgorithmId::TreeBroadcast,
    AlgorithmId::TreeReduce,
    AlgorithmId::StagedTwoShot,
    AlgorithmId::HierarchicalRingAllReduce,
    AlgorithmId::HierarchicalRingReduceScatter,
    AlgorithmId::HierarchicalRingAllGather};

// Ranks on nodes; owns the table.
class Placement {
 public:
  explicit Placement(std::vector<int> labels)
      : table_(groupingTableSize(labels.size())), nodes_(groupRanks(labels, table_)) {}
  Placement(const Placement&) = delete;
  Placement& operator=(const Placement&) = delete;
  const Grouping& operator*() const { return nodes_; }
  const Grouping* operator->() const { return &nodes_; }

  // Node after node, so many ranks on each.
  static std::vector<int> byNode(const std::vector<int>& sizes) {
    std::vector<int> labels;
    for (size_t node = 0; node < sizes.size(); ++node) {
      labels.insert(labels.end(), static_cast<size_t>(sizes[node]), static_cast<int>(node));
    }
    return labels;
  }
  // Rank after rank on the next node that has room.
  static std::vector<int> roundRobin(std::vector<int> sizes) {
    std::vector<int> labels;
    for (bool placed = true; placed;) {
      placed = false;
      for (size_t node = 0; node < sizes.size(); ++node) {
        if (sizes[node]-- > 0) {
          labels.push_back(static_cast<int>(node));
          placed = true;
        }
      }
    }
    return labels;
  }

 private:
  std::vector<int> table_;
  Grouping nodes_;
};

inline bool hasRoot(AlgorithmId algorithm) {
  const CollectiveKind collective = traitsOf(algorithm, 1).collective;
  return collective == CollectiveKind::Broadcast || collective == CollectiveKind::Reduce;
}

// Every root of few ranks; of many, the first, the last and one between.
inline std::vector<int> rootsOf(AlgorithmId algorithm, int ranks) {
  if (!hasRoot(algorithm)) {
    return {0};
  }
  std::vector<int> roots;
  for (int root = 0; root < ranks; ++root) {
    if (ranks <= 16 || root == 0 || root == ranks - 1 || root == ranks * 2 / 3) {
      roots.push_back(root);
    }
  }
  return roots;
}

}  // namespace peal::test
