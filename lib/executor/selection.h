// Which algorithm a collective runs, and from which blocks its rounds are cut: the same text for every
// executor, on host and device.
#pragma once
#include <cstddef>

#include "algorithms/choice.h"
#include "algorithms/direct.h"
#include "algorithms/hierarchical_ring.h"
#include "algorithms/ring.h"
#include "algorithms/tree.h"
#include "peal/peal.h"

namespace peal {

// Collectives in which every rank has a block of its own, by the API's meaning.
PEAL_HD constexpr bool isScattered(int kind) {
  return kind == pealStatReduceScatter || kind == pealStatAllGather;
}

// The array of a call with `count` elements (per rank where it is scattered), cut into one block per rank or
// left whole. starts: size + 1 block starts of a v-form, or of an all-reduce with an epilogue; else nullptr.
PEAL_HD constexpr Blocks blocksOf(int kind, Algorithm algorithm, size_t count, const size_t* starts,
                                  int size) {
  if (starts != nullptr) {
    return {starts[size], size, starts};
  }
  if (isScattered(kind)) {
    return {count * static_cast<size_t>(size), size, nullptr};
  }
  const bool whole = algorithm == Algorithm::OneShot || algorithm == Algorithm::Tree;
  const bool perRank = kind == pealStatAllReduce && !whole;
  return {count, perRank ? size : 1, nullptr};
}

// Flat algorithms. kind: pealStatAllReduce .. pealStatBarrier, without send and recv.
template <Port P>
PEAL_HD void runRound(P& port, int kind, Algorithm algorithm, int root, const Round& round) {
  const bool ring = algorithm == Algorithm::Ring;
  switch (kind) {
    case pealStatAllReduce:
      if (ring) {
        ringAllReduce(port, round);
      } else if (algorithm == Algorithm::TwoShot) {
        twoShotAllReduce(port, round);
      } else {
        oneShotAllReduce(port, round);
      }
      return;
    case pealStatReduceScatter:
      return ring ? ringReduceScatter(port, round) : directReduceScatter(port, round);
    case pealStatAllGather:
      return ring ? ringAllGather(port, round) : directAllGather(port, round);
    case pealStatBroadcast:
      return ring ? ringBroadcast(port, round, root) : directBroadcast(port, round, root);
    case pealStatReduce:
      return ring ? ringReduce(port, round, root) : directReduce(port, round, root);
    default:  // a barrier is an all-reduce of nothing: no rank passes before all have sent
      return oneShotAllReduce(port, round);
  }
}

// Two-shot all-reduce runs ahead in stages; rounds that follow each other whole stage their results once.
PEAL_HD constexpr bool isStagedTwoShot(int kind, const Choice& choice) {
  return choice.algorithm == Algorithm::TwoShot && kind == pealStatAllReduce && choice.ahead > 0;
}

// Of a round (pipeline.h). Hierarchical algorithms are the direct ones where there is only one node.
PEAL_HD constexpr int stagesOf(int kind, const Choice& choice, const Grouping* nodes) {
  if (isStagedTwoShot(kind, choice)) {
    return kTwoShotStages;
  }
  if (choice.algorithm != Algorithm::Hierarchical || nodes == nullptr) {
    return 1;
  }
  return kind == pealStatAllReduce       ? kHierarchicalAllReduceStages
         : kind == pealStatReduceScatter ? kReduceScatterStages
         : kind == pealStatAllGather     ? kAllGatherStages
                                         : 1;
}

template <SumPort P>
PEAL_HD void runTree(P& port, int kind, int root, const Round& round, const Grouping& nodes) {
  if (kind == pealStatBroadcast) {
    treeBroadcast(port, round, root, nodes);
  } else if (kind == pealStatReduce) {
    treeReduce(port, round, root, nodes);
  } else {  // all-reduce, and a barrier
    doublingAllReduce(port, round, nodes);
  }
}

template <SumPort P>
PEAL_HD void runHierarchical(P& port, int kind, int root, const Round& round, const Grouping& nodes,
                             int stage) {
  switch (kind) {
    case pealStatAllReduce:
      return hierarchicalAllReduce(port, round, nodes, stage);
    case pealStatReduceScatter:
      return hierarchicalReduceScatter(port, round, nodes, stage);
    case pealStatAllGather:
      return hierarchicalAllGather(port, round, nodes, stage);
    case pealStatBroadcast:
      return hierarchicalBroadcast(port, round, root, nodes);
    case pealStatReduce:
      return hierarchicalReduce(port, round, root, nodes);
    default:
      return doublingAllReduce(port, round, nodes);
  }
}

// On the host only. A root's forms are chains over the nodes already.
template <SumPort P>
void runHierarchicalRing(P& port, int kind, int root, const Round& round, const Grouping& nodes) {
  switch (kind) {
    case pealStatAllReduce:
      return hierarchicalRingAllReduce(port, round, nodes);
    case pealStatReduceScatter:
      return hierarchicalRingReduceScatter(port, round, nodes);
    case pealStatAllGather:
      return hierarchicalRingAllGather(port, round, nodes);
    default:
      return runHierarchical(port, kind, root, round, nodes, 0);
  }
}

// Any algorithm, on the host. nodes: nullptr for one node. Trees run flat there; reduce-scatter and
// all-gather have none.
template <SumPort P>
void runStage(P& port, int kind, const Choice& choice, int root, const Round& round, const Grouping* nodes,
              int stage) {
  const Algorithm algorithm = choice.algorithm;
  if (algorithm == Algorithm::Tree && !isScattered(kind)) {
    runTree(port, kind, root, round, nodes != nullptr ? *nodes : Grouping::apart(port.size()));
  } else if (algorithm == Algorithm::Hierarchical && nodes != nullptr) {
    runHierarchical(port, kind, root, round, *nodes, stage);
  } else if (algorithm == Algorithm::HierarchicalRing && nodes != nullptr) {
    runHierarchicalRing(port, kind, root, round, *nodes);
  } else if (isStagedTwoShot(kind, choice)) {
    stagedTwoShot(port, round, stage);
  } else {
    const bool levels = algorithm == Algorithm::Hierarchical || algorithm == Algorithm::HierarchicalRing;
    runRound(port, kind, levels ? Algorithm::TwoShot : algorithm, root, round);
  }
}

}  // namespace peal
