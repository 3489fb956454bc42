// How a block plays the algorithms that know nodes, hierarchical ones and trees: over the device port, for
// messages of the protocol Simple. Included by the kernels that run them: collective_levels.cu and the
// optimizer's.
#pragma once
#include "algorithms/pipeline.h"
#include "lib/executor/cuda/device_port.cuh"
#include "lib/executor/selection.h"

namespace peal::cuda {

// A call, so that the loop of rounds keeps few registers from the steps.
template <class P>
PEAL_DEVICE_CALL void playStage(P& port, const CollectiveArgs& args, const Round& round,
                                const Grouping& nodes, int stage) {
  if (args.algorithm == Algorithm::Tree) {
    runTree(port, args.kind, args.root, round, nodes);
  } else {
    runHierarchical(port, args.kind, args.root, round, nodes, stage);
  }
}

// This channel's rounds: the first one and every stride-th after it. On one node every rank is one of its
// own: trees run flat there, and hierarchical algorithms are not asked for.
template <class P>
PEAL_DEVICE_CALL void playStages(P& port, const CollectiveArgs& args, const Round& first, size_t stride) {
  static_assert(SumPort<P>);
  const Grouping nodes = args.comm.nodes > 1 ? port.nodes() : Grouping::apart(port.size());
  const size_t longest = first.blocks.longest();
  // One also for an empty array: its digest is compared too.
  const size_t rounds = longest > first.begin ? (longest - first.begin - 1) / stride + 1
                        : first.begin == 0    ? 1
                                              : 0;
  const int stages = stagesOf(args.kind, {.algorithm = args.algorithm}, &nodes);
  runStages(rounds, stages, args.ahead, [&](int stage, size_t round) {
    playStage(port, args, {first.blocks, first.begin + round * stride, first.chunkCount}, nodes, stage);
  });
}

PEAL_DEVICE bool knowsNodes(Algorithm algorithm) {
  return algorithm == Algorithm::Hierarchical || algorithm == Algorithm::Tree;
}

}  // namespace peal::cuda
