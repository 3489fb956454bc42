// Which algorithm a collective runs, and from which blocks its rounds are cut: the same text for every
// executor, on host and device.
#pragma once
#include <cstddef>

#include "algorithms/choice.h"
#include "algorithms/direct.h"
#include "algorithms/ring.h"
#include "peal/peal.h"

namespace peal {

// Collectives in which every rank has a block of its own, by the API's meaning.
PEAL_HD constexpr bool isScattered(int kind) {
  return kind == pealStatReduceScatter || kind == pealStatAllGather;
}

// The array of a call with `count` elements (per rank where it is scattered), cut into one block per rank or
// left whole. starts: size + 1 block starts of a v-form, else nullptr.
PEAL_HD constexpr Blocks blocksOf(int kind, Algorithm algorithm, size_t count, const size_t* starts,
                                  int size) {
  if (isScattered(kind)) {
    return starts == nullptr ? Blocks{count * static_cast<size_t>(size), size, nullptr}
                             : Blocks{starts[size], size, starts};
  }
  const bool perRank = kind == pealStatAllReduce && algorithm != Algorithm::OneShot;
  return {count, perRank ? size : 1, nullptr};
}

// kind: pealStatAllReduce .. pealStatBarrier, without send and recv.
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

}  // namespace peal
