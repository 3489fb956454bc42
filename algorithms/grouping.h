// How the ranks of a communicator lie on nodes: any number per node, uneven or not, in any order of ranks.
//
// Plain data and arithmetic, host and device code alike: a view of a table that somebody else owns. Made by
// the communicator (groupRanks) from what it knows about nodes; read by algorithms, recorder and tuner.
// Nodes are numbered by their lowest rank; the ranks of a node by rank, which is their local rank.
//
//   6 ranks by node 3 + 3:      node 0: 0 1 2   node 1: 3 4 5
//   6 ranks round robin on 2:   node 0: 0 2 4   node 1: 1 3 5
//
// A view without a table (Grouping::apart) is every rank on a node of its own: how algorithms between nodes
// run flat.
#pragma once
#include <cstddef>
#include <span>

#include "algorithms/platform.h"

namespace peal {

struct Grouping {
  int ranks = 0;
  int nodes = 0;
  const int* nodeOf = nullptr;   // of each rank
  const int* localOf = nullptr;  // of each rank
  const int* members = nullptr;  // node 0's ranks, then node 1's ...
  const int* starts = nullptr;   // nodes + 1 places in members

  static constexpr PEAL_HD Grouping apart(int ranks) { return {ranks, ranks}; }

  constexpr PEAL_HD int node(int rank) const { return nodeOf == nullptr ? rank : nodeOf[rank]; }
  constexpr PEAL_HD int local(int rank) const { return localOf == nullptr ? 0 : localOf[rank]; }
  constexpr PEAL_HD int nodeSize(int node) const {
    return starts == nullptr ? 1 : starts[node + 1] - starts[node];
  }
  constexpr PEAL_HD int rank(int node, int local) const {
    return members == nullptr ? node : members[starts[node] + local];
  }
  constexpr PEAL_HD bool sameNode(int a, int b) const { return node(a) == node(b); }

  constexpr PEAL_HD int smallestNode() const {
    int least = ranks;
    for (int i = 0; i < nodes; ++i) {
      least = nodeSize(i) < least ? nodeSize(i) : least;
    }
    return least;
  }
  constexpr PEAL_HD int largestNode() const {
    int most = 0;
    for (int i = 0; i < nodes; ++i) {
      most = nodeSize(i) > most ? nodeSize(i) : most;
    }
    return most;
  }
  constexpr PEAL_HD bool even() const { return smallestNode() == largestNode(); }
};

// Integers in the table of a grouping of that many ranks.
constexpr PEAL_HD size_t groupingTableSize(size_t ranks) { return 4 * ranks + 1; }

// labels: of each rank, equal for ranks of one node and different for others: any numbers (for instance the
// lowest rank of its node). table: groupingTableSize(labels.size()) integers that outlive the grouping.
constexpr Grouping groupRanks(std::span<const int> labels, std::span<int> table) {
  const int ranks = static_cast<int>(labels.size());
  int* const nodesOf = table.data();
  int* const localsOf = nodesOf + ranks;
  int* const members = localsOf + ranks;
  int* const starts = members + ranks;
  int nodes = 0, placed = 0;
  for (int first = 0; first < ranks; ++first) {
    bool known = false;
    for (int earlier = 0; earlier < first && !known; ++earlier) {
      known = labels[static_cast<size_t>(earlier)] == labels[static_cast<size_t>(first)];
    }
    if (known) {
      continue;
    }
    starts[nodes] = placed;
    for (int rank = first; rank < ranks; ++rank) {
      if (labels[static_cast<size_t>(rank)] == labels[static_cast<size_t>(first)]) {
        nodesOf[rank] = nodes;
        localsOf[rank] = placed - starts[nodes];
        members[placed++] = rank;
      }
    }
    ++nodes;
  }
  starts[nodes] = placed;
  return {ranks, nodes, nodesOf, localsOf, members, starts};
}

}  // namespace peal
