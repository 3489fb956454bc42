// Direct algorithms: every rank exchanges with every other at once. Fewest steps, and the only ones that
// sum in rank order with a single rounding. Where memory is mapped the port hands over references, and
// peers' buffers are read in place.
//
// One call handles one round; the executor calls it for each round in turn. Called by executors
// and the recorder, host and device code alike. Knows only its port: no memory, type or thread.
//
// N ranks; S elements in the round; b(i) elements in chunk i, about S/N; rank r.
//
//   algorithm              steps   elements sent by rank r     roundings   slots per link
//   oneShotAllReduce       1       (N-1) S                     1           1
//   twoShotAllReduce       2       S - b(r) + (N-1) b(r)       1           1
//   stagedTwoShot          2       S - b(r) + (N-1) b(r)       1           1 + 2d
//   directReduceScatter    1       S - b(r)                    1           1
//   directAllGather        1       (N-1) b(r)                  0           1
//   directBroadcast        1       root (N-1) S, others 0      0           1
//   directReduce           1       S, root 0                   1           1
//
// Steps, roundings and slots as in ring.h; d: how many rounds earlier stages run ahead (pipeline.h). With
// N = 1 nothing is sent. Every sum is in rank order, so the
// result equals a plain loop over ranks. sendAll stages once, so a rank writes S or b(r) elements where
// the table counts them for each receiver.
// In place (in == out) each is legal, with one condition: oneShotAllReduce must not send references then.
// Every rank would wait for the others to have read its `in` before it overwrites it, while reading theirs
// in that same verb. The others never overwrite a part of `in` that may still be unread.
//
// Thakur, Rabenseifner, Gropp, "Optimization of collective communication operations in MPICH", IJHPCA
// 2005 (pairwise exchange); one-shot and two-shot as named by microsoft/mscclpp and NVIDIA TensorRT-LLM.
#pragma once
#include "algorithms/port.h"

namespace peal {

// The k-th peer of this rank, k = 1 .. N-1. Ranks start with different peers, so that no peer is
// everybody's first.
template <Port P>
PEAL_HD int staggeredPeer(const P& port, int k) {
  return (port.rank() + k) % port.size();
}

// round.blocks.parts == 1. Everybody reduces everything: least latency, for small messages.
template <Port P>
PEAL_HD_CALL void oneShotAllReduce(P& port, Round round) {
  const Chunk c = round.chunk(0);
  if (port.size() == 1) {
    port.copyFinish(c);
    return;
  }
  port.sendAll(c);
  port.recvReduceAll(c);
}

// round.blocks.parts == N; rank r ends with the reduced chunk r, the only one written to `out`.
template <Port P>
PEAL_HD_CALL void directReduceScatter(P& port, Round round) {
  const int n = port.size(), own = port.rank();
  if (n == 1) {
    port.copyFinish(round.chunk(0));
    return;
  }
  for (int k = 1; k < n; ++k) {
    const int peer = staggeredPeer(port, k);
    port.send(peer, round.chunk(peer));
  }
  port.recvReduceAll(round.chunk(own));
}

// round.blocks.parts == N. A reduce-scatter, then every rank hands its finished chunk to all. The finished
// chunk is kept and at once sent on: that is where an epilogue belongs.
template <Port P>
PEAL_HD_CALL void twoShotAllReduce(P& port, Round round) {
  const int n = port.size(), own = port.rank();
  directReduceScatter(port, round);
  if (n == 1) {
    return;
  }
  port.sendOutAll(round.chunk(own));
  for (int k = 1; k < n; ++k) {
    const int peer = staggeredPeer(port, k);
    port.recv(peer, round.chunk(peer));
  }
}

constexpr int kTwoShotStages = 3;

// One stage of a round of the same: while peers finish a round, this rank has handed over its inputs of the
// next. Finished chunks go to each peer by itself: the memory of messages to all would be waited for by ranks
// that run ahead. round.blocks.parts == N.
template <Port P>
PEAL_HD_CALL void stagedTwoShot(P& port, Round round, int stage) {
  const int n = port.size(), own = port.rank();
  if (n == 1) {
    if (stage == 0) {
      port.copyFinish(round.chunk(0));
    }
    return;
  }
  if (stage == 1) {
    port.recvReduceAll(round.chunk(own));
  }
  for (int k = 1; k < n; ++k) {
    const int peer = staggeredPeer(port, k);
    if (stage == 0) {
      port.send(peer, round.chunk(peer));
    } else if (stage == 1) {
      port.sendOut(peer, round.chunk(own));
    } else {
      port.recv(peer, round.chunk(peer));
    }
  }
}

// round.blocks.parts == N; rank r starts with chunk r of `in` and ends with all chunks in `out`. The copy
// comes last: while it runs the others read this rank's reference, and in place, where it waits for them,
// they no longer wait for this rank.
template <Port P>
PEAL_HD_CALL void directAllGather(P& port, Round round) {
  const int n = port.size(), own = port.rank();
  if (n > 1) {
    port.sendAll(round.chunk(own));
  }
  for (int k = 1; k < n; ++k) {
    const int peer = staggeredPeer(port, k);
    port.recv(peer, round.chunk(peer));
  }
  port.copy(round.chunk(own));
}

// round.blocks.parts == 1.
template <Port P>
PEAL_HD_CALL void directBroadcast(P& port, Round round, int root) {
  const Chunk c = round.chunk(0);
  if (port.rank() != root) {
    port.recv(root, c);
    return;
  }
  if (port.size() > 1) {
    port.sendAll(c);
  }
  port.copy(c);
}

// round.blocks.parts == 1; only the root's `out` is written.
template <Port P>
PEAL_HD_CALL void directReduce(P& port, Round round, int root) {
  const Chunk c = round.chunk(0);
  if (port.size() == 1) {
    port.copyFinish(c);
  } else if (port.rank() == root) {
    port.recvReduceAll(c);
  } else {
    port.send(root, c);
  }
}

}  // namespace peal
