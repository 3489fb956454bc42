// Hierarchical algorithms: over shared memory inside a node, and between nodes no byte twice.
//
// One call handles one stage of one round (pipeline.h). Called by executors and the recorder, host and device
// code alike. Knows only its port and where ranks lie (grouping.h): no memory, type or thread.
//
// R nodes of G ranks each; N ranks; S elements in the round; b(i) elements in chunk i, about S/N. For uneven
// nodes read G as the node's own. Each node has an agent for every chunk of another node's rank: the rank
// whose local rank is the owner's, modulo the node's size. So with even nodes rails form: ranks with the same
// local rank exchange with each other only. a(r): elements of the chunks that rank r is agent of, A(r) how
// many; with even nodes S/N and R-1.
//
// Reduce-scatter: inside a node each rank hands its agent of a chunk its input; the agent sums its node's
// inputs and sends the partial sum to the owner, which adds all partial sums and its own node's inputs at
// once. All-gather is the way back: each owner sends its chunk to its agent on every node, and that to the
// others there. All-reduce is both. Everything is summed in fp32 and rounded once at each of the two places.
//
//   algorithm                  steps     elements sent by rank r                            roundings  slots
//                                        inside a node              between nodes
//   hierarchicalReduceScatter  R         S - a(r) - b(r)            a(r)                    2          1 + d
//   hierarchicalAllGather      R         (G-1) (a(r) + b(r))        b(r)              0          1 + d
//   hierarchicalAllReduce      2R        both                       both                    2          1 + 2d
//   hierarchicalBroadcast      R+G-2     S, ends of the chains 0    S to the next node      0          1
//   hierarchicalReduce         R         S, heads 0                 S from each node's head R          1
//
// So with even nodes all-reduce sends 2 (R-1)/R S/G per rank and 2 (R-1)/R S per node over the network: what
// a ring over the nodes would. d: how many rounds earlier stages run ahead. Steps and roundings: if both G
// and R exceed 1, exact for even nodes; uneven ones have as many steps as their agents take turns.
//
// Order of sums: nodes by number, of the own node every rank by itself, in rank order, of the others the
// partial sum in rank order; in the reduction's chain the own node's ranks, then what came. The same on every
// run, and one owner computes what all get; not rank order.
// In place (in == out) each is legal.
//
// Cho et al., "BlueConnect: decomposing all-reduce for deep learning on heterogeneous network hierarchy",
// MLSys 2019 (reduce-scatter inside, exchange between, all-gather inside).
#pragma once
#include "algorithms/grouping.h"
#include "algorithms/port.h"

namespace peal {

// Who handles rank `owner`'s chunk on another node.
constexpr PEAL_HD int agentOf(const Grouping& nodes, int node, int owner) {
  return nodes.rank(node, nodes.local(owner) % nodes.nodeSize(node));
}

// The other ranks of this rank's node, k = 1 .. G-1, each starting with another one.
template <Port P>
PEAL_HD int localPeer(const P& port, const Grouping& nodes, int k) {
  const int node = nodes.node(port.rank());
  return nodes.rank(node, (nodes.local(port.rank()) + k) % nodes.nodeSize(node));
}

// The inputs of this rank's node as terms, in rank order.
template <SumPort P>
PEAL_HD void holdNode(P& port, const Grouping& nodes, Chunk c) {
  const int own = port.rank(), node = nodes.node(own);
  for (int local = 0; local < nodes.nodeSize(node); ++local) {
    const int rank = nodes.rank(node, local);
    if (rank == own) {
      port.holdIn(c);
    } else {
      port.hold(rank, c);
    }
  }
}

// Partial sums of the chunks of other nodes, to their owners. The ranks of a node take turns together: in
// each turn every one is agent of at most one chunk, so one slot per link inside is enough.
template <SumPort P>
PEAL_HD_CALL void sumForOthers(P& port, const Round& round, const Grouping& nodes) {
  const int own = port.rank(), node = nodes.node(own), local = nodes.local(own);
  const int size = nodes.nodeSize(node);
  for (int k = 1; k < nodes.nodes; ++k) {
    const int other = (node + k) % nodes.nodes;
    for (int first = 0; first < nodes.nodeSize(other); first += size) {
      const int turn = nodes.nodeSize(other) - first;  // chunks left: locals below it are agents
      for (int i = 1; i < size; ++i) {
        const int agent = localPeer(port, nodes, i);
        if (nodes.local(agent) < turn) {
          port.send(agent, round.chunk(nodes.rank(other, first + nodes.local(agent))));
        }
      }
      if (local < turn) {
        const int owner = nodes.rank(other, first + local);
        holdNode(port, nodes, round.chunk(owner));
        port.sumSend(owner, round.chunk(owner));
      }
    }
  }
}

// The own node's inputs and the others' partial sums meet at the owner.
template <SumPort P>
PEAL_HD_CALL void sumOwn(P& port, const Round& round, const Grouping& nodes) {
  const int own = port.rank(), node = nodes.node(own);
  for (int i = 1; i < nodes.nodeSize(node); ++i) {
    const int peer = localPeer(port, nodes, i);
    port.send(peer, round.chunk(peer));
  }
  for (int other = 0; other < nodes.nodes; ++other) {
    if (other == node) {
      holdNode(port, nodes, round.chunk(own));
    } else {
      port.hold(agentOf(nodes, other, own), round.chunk(own));
    }
  }
  port.sumCopy(round.chunk(own));
}

// Inside the node: everybody's own chunk, already on its way, then those that agents receive, in turns as
// above.
template <SumPort P>
PEAL_HD_CALL void spreadInside(P& port, const Round& round, const Grouping& nodes) {
  const int own = port.rank(), node = nodes.node(own), local = nodes.local(own);
  const int size = nodes.nodeSize(node);
  for (int i = 1; i < size; ++i) {
    const int peer = localPeer(port, nodes, i);
    port.recv(peer, round.chunk(peer));
  }
  for (int k = 1; k < nodes.nodes; ++k) {
    const int other = (node - k + nodes.nodes) % nodes.nodes;
    for (int first = 0; first < nodes.nodeSize(other); first += size) {
      const int turn = nodes.nodeSize(other) - first;
      if (local < turn) {
        const int owner = nodes.rank(other, first + local);
        port.recv(owner, round.chunk(owner));
        for (int i = 1; i < size; ++i) {
          port.sendOut(localPeer(port, nodes, i), round.chunk(owner));
        }
      }
      for (int i = 1; i < size; ++i) {
        const int agent = localPeer(port, nodes, i);
        if (nodes.local(agent) < turn) {
          port.recv(agent, round.chunk(nodes.rank(other, first + nodes.local(agent))));
        }
      }
    }
  }
}

constexpr int kReduceScatterStages = 2;
constexpr int kAllGatherStages = 2;
constexpr int kHierarchicalAllReduceStages = 3;

// round.blocks.parts == N; rank r ends with the reduced chunk r, the only one written to `out`.
template <SumPort P>
PEAL_HD_CALL void hierarchicalReduceScatter(P& port, Round round, const Grouping& nodes, int stage) {
  if (port.size() == 1) {
    if (stage == 0) {
      port.copyFinish(round.chunk(0));
    }
  } else if (stage == 0) {
    sumForOthers(port, round, nodes);
  } else {
    sumOwn(port, round, nodes);
  }
}

// round.blocks.parts == N; rank r starts with chunk r of `in` and ends with all chunks in `out`.
template <SumPort P>
PEAL_HD_CALL void hierarchicalAllGather(P& port, Round round, const Grouping& nodes, int stage) {
  const int own = port.rank(), node = nodes.node(own);
  if (stage == 0) {
    for (int k = 1; k < nodes.nodes; ++k) {
      port.send(agentOf(nodes, (node + k) % nodes.nodes, own), round.chunk(own));
    }
    return;
  }
  for (int i = 1; i < nodes.nodeSize(node); ++i) {
    port.send(localPeer(port, nodes, i), round.chunk(own));
  }
  spreadInside(port, round, nodes);
  port.copy(round.chunk(own));
}

// round.blocks.parts == N. The two above: stage 1 ends where the finished chunk appears at its owner.
template <SumPort P>
PEAL_HD_CALL void hierarchicalAllReduce(P& port, Round round, const Grouping& nodes, int stage) {
  const int own = port.rank(), node = nodes.node(own);
  if (port.size() == 1) {
    if (stage == 0) {
      port.copyFinish(round.chunk(0));
    }
  } else if (stage == 0) {
    sumForOthers(port, round, nodes);
  } else if (stage == 1) {
    sumOwn(port, round, nodes);
    for (int k = 1; k < nodes.nodes; ++k) {
      port.sendOut(agentOf(nodes, (node + k) % nodes.nodes, own), round.chunk(own));
    }
  } else {
    for (int i = 1; i < nodes.nodeSize(node); ++i) {
      port.sendOut(localPeer(port, nodes, i), round.chunk(own));
    }
    spreadInside(port, round, nodes);
  }
}

// The rank of a node that speaks for it in a rooted collective: the root, elsewhere its agent.
constexpr PEAL_HD int headOf(const Grouping& nodes, int node, int root) {
  return node == nodes.node(root) ? root : agentOf(nodes, node, root);
}

// round.blocks.parts == 1. A chain over the nodes from the root's on, and from each node's head a chain
// through it: rounds follow each other without waiting for the end, and every byte enters a node once.
template <SumPort P>
PEAL_HD_CALL void hierarchicalBroadcast(P& port, Round round, int root, const Grouping& nodes) {
  const Chunk c = round.chunk(0);
  const int own = port.rank(), node = nodes.node(own), size = nodes.nodeSize(node);
  const int head = headOf(nodes, node, root), next = localPeer(port, nodes, 1);
  if (own != head) {
    const int previous = localPeer(port, nodes, size - 1);
    if (next == head) {
      port.recv(previous, c);
    } else {
      port.recvCopySend(previous, next, c);
    }
    return;
  }
  if (own == root) {
    port.copy(c);
  } else {
    port.recv(headOf(nodes, (node + nodes.nodes - 1) % nodes.nodes, root), c);
  }
  const int nextNode = (node + 1) % nodes.nodes;
  if (nextNode != nodes.node(root)) {
    port.sendOut(headOf(nodes, nextNode, root), c);
  }
  if (size > 1) {
    port.sendOut(next, c);
  }
}

// round.blocks.parts == 1; only the root's `out` is written. Each head sums its node, and the chain of heads
// ends at the root.
template <SumPort P>
PEAL_HD_CALL void hierarchicalReduce(P& port, Round round, int root, const Grouping& nodes) {
  const Chunk c = round.chunk(0);
  const int own = port.rank(), node = nodes.node(own);
  const int head = headOf(nodes, node, root);
  if (port.size() == 1) {
    port.copyFinish(c);
    return;
  }
  if (own != head) {
    port.send(head, c);
    return;
  }
  holdNode(port, nodes, c);
  const int nextNode = (node + 1) % nodes.nodes;
  if (nextNode != nodes.node(root)) {
    port.hold(headOf(nodes, nextNode, root), c);
  }
  if (own == root) {
    port.sumCopy(c);
  } else {
    port.sumSend(headOf(nodes, (node + nodes.nodes - 1) % nodes.nodes, root), c);
  }
}

}  // namespace peal
