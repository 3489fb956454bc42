// Ring algorithms: every rank sends to the next rank and receives from the one before.
//
// One call handles one round; the executor calls it for each round in turn. Called by executors
// and the recorder, host and device code alike. Knows only its port: no memory, type or thread.
//
// N ranks; S elements in the round; b(i) elements in chunk i, about S/N; rank r, indices modulo N.
//
//   algorithm            steps     elements sent by rank r       roundings   slots per link
//   ringReduceScatter    N-1       S - b(r)                      N-1         2 (N = 2: 1)
//   ringAllGather        N-1       S - b(r+1)                    0           2 (N = 2: 1)
//   ringAllReduce        2(N-1)    2S - b(r) - b(r+1)            N-1         2
//   ringBroadcast        N-1       S, the last of the chain 0    0           1
//   ringReduce           N-1       S, the root 0                 N-1         1
//
// Steps: the longest chain of messages that wait for each other. Roundings: how often an element is
// rounded to its type on its way when that type is narrower than what sums are formed in. Slots per link:
// the fewest that cannot deadlock; a ring in which every rank forwards needs one slot for the message it
// holds and one for the message it makes. More slots pipeline consecutive rounds.
// The sum of chunk c is ((x(c+1) + x(c+2)) + ...) + x(c); of ringReduce, from root + 1 round to root: the
// same on every run, but not rank order. In place (in == out) each is legal: a chunk of `in` is
// overwritten only after its last use, and a message sent by reference was read by then.
//
// Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations", JPDC 2009.
#pragma once
#include "algorithms/port.h"

namespace peal {

template <Port P>
PEAL_HD int ringNext(const P& port) {
  return (port.rank() + 1) % port.size();
}

template <Port P>
PEAL_HD int ringPrevious(const P& port) {
  return (port.rank() + port.size() - 1) % port.size();
}

// round.blocks.parts == N; rank r ends with the reduced chunk r, the only one written to `out`. Chunk c
// starts at rank c + 1 and travels once around, so that it ends where it belongs.
template <Port P>
PEAL_HD_CALL void ringReduceScatter(P& port, Round round) {
  const int n = port.size(), own = port.rank();
  if (n == 1) {
    port.copyFinish(round.chunk(0));
    return;
  }
  const int next = ringNext(port), previous = ringPrevious(port);
  port.send(next, round.chunk(own - 1));
  for (int k = 2; k < n; ++k) {
    port.recvReduceSend(previous, next, round.chunk(own - k));
  }
  port.recvReduceCopy(previous, round.chunk(own));
}

// round.blocks.parts == N; rank r starts with chunk r of `in` and ends with all chunks in `out`.
template <Port P>
PEAL_HD_CALL void ringAllGather(P& port, Round round) {
  const int n = port.size(), own = port.rank();
  if (n == 1) {
    port.copy(round.chunk(0));
    return;
  }
  const int next = ringNext(port), previous = ringPrevious(port);
  port.copySend(next, round.chunk(own));
  for (int k = 1; k < n - 1; ++k) {
    port.recvCopySend(previous, next, round.chunk(own - k));
  }
  port.recv(previous, round.chunk(own + 1));
}

// round.blocks.parts == N. The two above joined at the pivot, where the finished chunk is kept and at once
// sent on; that is where an epilogue (the average, an optimizer) belongs.
template <Port P>
PEAL_HD_CALL void ringAllReduce(P& port, Round round) {
  const int n = port.size(), own = port.rank();
  if (n == 1) {
    port.copyFinish(round.chunk(0));
    return;
  }
  const int next = ringNext(port), previous = ringPrevious(port);
  port.send(next, round.chunk(own - 1));
  for (int k = 2; k < n; ++k) {
    port.recvReduceSend(previous, next, round.chunk(own - k));
  }
  port.recvReduceCopySend(previous, next, round.chunk(own));
  for (int k = 1; k < n - 1; ++k) {
    port.recvCopySend(previous, next, round.chunk(own - k));
  }
  port.recv(previous, round.chunk(own + 1));
}

// round.blocks.parts == 1. A chain from the root round to the rank before it; rounds follow each other
// through it without waiting for its end.
template <Port P>
PEAL_HD_CALL void ringBroadcast(P& port, Round round, int root) {
  const Chunk c = round.chunk(0);
  const int next = ringNext(port), previous = ringPrevious(port);
  if (port.size() == 1) {
    port.copy(c);
  } else if (port.rank() == root) {
    port.copySend(next, c);
  } else if (next == root) {
    port.recv(previous, c);
  } else {
    port.recvCopySend(previous, next, c);
  }
}

// round.blocks.parts == 1. A chain from the rank after the root round to the root; only the root's `out`
// is written.
template <Port P>
PEAL_HD_CALL void ringReduce(P& port, Round round, int root) {
  const Chunk c = round.chunk(0);
  const int next = ringNext(port), previous = ringPrevious(port);
  if (port.size() == 1) {
    port.copyFinish(c);
  } else if (port.rank() == root) {
    port.recvReduceCopy(previous, c);
  } else if (previous == root) {
    port.send(next, c);
  } else {
    port.recvReduceSend(previous, next, c);
  }
}

}  // namespace peal
