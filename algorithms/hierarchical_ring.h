// Hierarchical algorithms with a ring between the nodes: every rank sends to the next node and receives from
// the one before only, and no node sends any chunk more than once each way.
//
// One call handles one round. Called by the host executor and the recorder. Knows only its port and where
// ranks lie (grouping.h): no memory, type or thread. Agents, a(r) and A(r) are those of hierarchical.h.
//
// R nodes of G ranks each, node indices modulo R; N ranks; S elements in the round; b(i) elements in chunk i,
// about S/N. Reduce-scatter: the partial sum of a chunk of node D's starts at its agent on node D+1, which
// adds its node's inputs up; each node's agent adds its own node's to what came and passes it on, up to the
// owner on D. All-gather is the same way without sums: the owner's chunk goes to its agent on D+1, each
// agent hands it to its node and passes it on, up to node D-1. All-reduce is both. f(r) elements in F(r)
// messages of those are of chunks that rank r is agent of, but for the next node's, which need not go there:
// with even nodes S/N and R-2.
//
//   algorithm                      steps  elements sent by rank r                roundings
//                                         inside a node          between nodes
//   hierarchicalRingReduceScatter  R T    S - a(r) - b(r)        a(r)            R
//   hierarchicalRingAllGather      R T    (G-1) (a(r) + b(r))    f(r) + b(r)     0
//   hierarchicalRingAllReduce      2R T   both                   both            R
//
// Each needs 2 slots, between two nodes 1.
// With even nodes T is 1, and a node sends what it does by hierarchical.h. With uneven ones it sends S at
// most in an all-gather; there a node that owns most of the array sends all it owns to each of the others.
// Roundings and steps: if both G and R exceed 1, exact for even nodes.
//
// Slots. Owners' local ranks are taken in T turns of as many as the smallest node has: so in each step every
// rank is agent of one chunk at most, and a link carries one message at most, which is received in the same
// step (inside) or in the next one (between). A message between nodes finds its slot free if the last but one
// before it has been received: two steps ago at the latest, so no cycle of ranks waits for slots.
//
// Order of sums: what came, then the own node's ranks in rank order, from node D+1 round to D. The same on
// every run, and one owner computes what all get; not rank order. In place (in == out) each is legal.
//
// Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations", JPDC 2009, over
// the nodes of Cho et al., "BlueConnect: decomposing all-reduce for deep learning on heterogeneous network
// hierarchy", MLSys 2019.
#pragma once
#include "algorithms/hierarchical.h"

namespace peal {

// The local ranks of owners that are handled together: [first, first + count).
struct RingTurn {
  int first;
  int count;

  constexpr PEAL_HD bool has(int local) const { return local >= first && local < first + count; }
  // The owners' local rank that a node of so many ranks has this one as agent for; -1: none.
  constexpr PEAL_HD int handledBy(int local, int size) const {
    const int past = ((local - first) % size + size) % size;
    return past < count ? first + past : -1;
  }
};

// run(turn) for each of the T turns.
template <class Run>
PEAL_HD void eachRingTurn(const Grouping& nodes, Run&& run) {
  const int count = nodes.smallestNode(), most = nodes.largestNode();
  for (int first = 0; first < most; first += count) {
    run(RingTurn{first, count});
  }
}

// The rank of that node whose chunk the rank `handler` of this rank's node is agent of; -1: none.
constexpr PEAL_HD int ringOwner(const Grouping& nodes, RingTurn turn, int handler, int ownersNode) {
  const int local = turn.handledBy(nodes.local(handler), nodes.nodeSize(nodes.node(handler)));
  return local >= 0 && local < nodes.nodeSize(ownersNode) ? nodes.rank(ownersNode, local) : -1;
}

constexpr PEAL_HD int nodeAfter(const Grouping& nodes, int node) { return (node + 1) % nodes.nodes; }
constexpr PEAL_HD int nodeBefore(const Grouping& nodes, int node) {
  return (node + nodes.nodes - 1) % nodes.nodes;
}

// One step: the chunks of the node `ownersNode` are summed on this rank's node and passed on, or kept if they
// are its own.
template <SumPort P>
PEAL_HD_CALL void ringSumStep(P& port, const Round& round, const Grouping& nodes, RingTurn turn,
                              int ownersNode) {
  const int own = port.rank(), node = nodes.node(own);
  for (int i = 1; i < nodes.nodeSize(node); ++i) {
    const int peer = localPeer(port, nodes, i);
    const int owner = ringOwner(nodes, turn, peer, ownersNode);
    if (owner >= 0) {
      port.send(peer, round.chunk(owner));
    }
  }
  const int owner = ringOwner(nodes, turn, own, ownersNode);
  if (owner < 0) {
    return;
  }
  const Chunk c = round.chunk(owner);
  if (nodeAfter(nodes, ownersNode) != node && nodes.nodes > 1) {
    port.hold(agentOf(nodes, nodeBefore(nodes, node), owner), c);
  }
  holdNode(port, nodes, c);
  if (owner == own) {
    port.sumCopy(c);
  } else {
    port.sumSend(agentOf(nodes, nodeAfter(nodes, node), owner), c);
  }
}

template <SumPort P>
PEAL_HD_CALL void ringSumTurn(P& port, const Round& round, const Grouping& nodes, RingTurn turn) {
  const int node = nodes.node(port.rank());
  for (int k = 1; k <= nodes.nodes; ++k) {
    ringSumStep(port, round, nodes, turn, (node + nodes.nodes - k) % nodes.nodes);
  }
}

// One step: a chunk of each agent comes from the node before, goes on unless the next node has it, and is
// spread inside.
template <SumPort P>
PEAL_HD_CALL void ringSpreadStep(P& port, const Round& round, const Grouping& nodes, RingTurn turn,
                                 int ownersNode) {
  const int own = port.rank(), node = nodes.node(own);
  const int size = nodes.nodeSize(node), owner = ringOwner(nodes, turn, own, ownersNode);
  if (owner >= 0) {
    const int before = agentOf(nodes, nodeBefore(nodes, node), owner);
    if (nodeAfter(nodes, node) == ownersNode) {
      port.recv(before, round.chunk(owner));
    } else {
      port.recvCopySend(before, agentOf(nodes, nodeAfter(nodes, node), owner), round.chunk(owner));
    }
    for (int i = 1; i < size; ++i) {
      port.sendOut(localPeer(port, nodes, i), round.chunk(owner));
    }
  }
  for (int i = 1; i < size; ++i) {
    const int peer = localPeer(port, nodes, i);
    const int theirs = ringOwner(nodes, turn, peer, ownersNode);
    if (theirs >= 0) {
      port.recv(peer, round.chunk(theirs));
    }
  }
}

// From where the own chunk is in `out`.
template <SumPort P>
PEAL_HD_CALL void ringSpreadTurn(P& port, const Round& round, const Grouping& nodes, RingTurn turn) {
  const int own = port.rank(), node = nodes.node(own), size = nodes.nodeSize(node);
  if (turn.has(nodes.local(own))) {
    if (nodes.nodes > 1) {
      port.sendOut(agentOf(nodes, nodeAfter(nodes, node), own), round.chunk(own));
    }
    for (int i = 1; i < size; ++i) {
      port.sendOut(localPeer(port, nodes, i), round.chunk(own));
    }
  }
  for (int i = 1; i < size; ++i) {
    const int peer = localPeer(port, nodes, i);
    if (turn.has(nodes.local(peer))) {
      port.recv(peer, round.chunk(peer));
    }
  }
  for (int k = 1; k < nodes.nodes; ++k) {
    ringSpreadStep(port, round, nodes, turn, (node + nodes.nodes - k) % nodes.nodes);
  }
}

// round.blocks.parts == N; rank r ends with the reduced chunk r, the only one written to `out`.
template <SumPort P>
PEAL_HD_CALL void hierarchicalRingReduceScatter(P& port, Round round, const Grouping& nodes) {
  if (port.size() == 1) {
    port.copyFinish(round.chunk(0));
    return;
  }
  eachRingTurn(nodes, [&](RingTurn turn) { ringSumTurn(port, round, nodes, turn); });
}

// round.blocks.parts == N; rank r starts with chunk r of `in` and ends with all chunks in `out`.
template <SumPort P>
PEAL_HD_CALL void hierarchicalRingAllGather(P& port, Round round, const Grouping& nodes) {
  port.copy(round.chunk(port.rank()));
  eachRingTurn(nodes, [&](RingTurn turn) { ringSpreadTurn(port, round, nodes, turn); });
}

// round.blocks.parts == N. The two above: the finished chunk appears at its owner between them.
template <SumPort P>
PEAL_HD_CALL void hierarchicalRingAllReduce(P& port, Round round, const Grouping& nodes) {
  hierarchicalRingReduceScatter(port, round, nodes);
  eachRingTurn(nodes, [&](RingTurn turn) { ringSpreadTurn(port, round, nodes, turn); });
}

}  // namespace peal
