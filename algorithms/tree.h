// Logarithmic algorithms for small messages: recursive doubling for all-reduce, binomial trees for broadcast
// and reduce. Few messages over the network and few steps; every byte goes as often as there are steps.
//
// One call handles one round. Called by executors and the recorder, host and device code alike. Knows only
// its port and where ranks lie: no memory, type or thread. Over nodes one rank of each speaks for it; with
// Grouping::apart every rank speaks for itself, and the same texts run flat.
//
// R nodes of G ranks; S elements in the round; P the last power of two up to R, q = log2 P; e = 1 if R > P,
// else 0; f = e, and 1 more if R > 3P/2; i = 1 if G > 1, else 0.
//
//   algorithm           steps           sent by the rank that speaks for its node           roundings   slots
//                                       inside a node  between nodes
//   doublingAllReduce   2i + f + q      (G-1) S        q S or less, see below               i + e + q   1
//   treeBroadcast       i + q           (G-1) S        S to each child, (R-1) S in all      0           1
//   treeReduce          i + q           0              S, the root 0                        i + q       1
//
// The others of a node send S to it where something is reduced, and nothing else. Steps and roundings are
// exact for even nodes. Doubling: nodes from P on first send to the node P below, which sends S more, the
// result; they send S in all.
// Sums: doubling adds the sum of the lower nodes and that of the higher in this order at both ends, so all
// ranks compute the same bits; in a tree the own node's ranks in rank order, then the children from the
// nearest. The same on every run, not rank order. In place (in == out) each is legal.
//
// Thakur, Rabenseifner, Gropp, IJHPCA 2005 (recursive doubling, binomial trees). A double binary tree
// (Sanders, Speck, Träff 2009) sends 2 S in twice the steps. By the model it would win by a quarter at most,
// on many nodes and between the sizes of doubling and of hierarchical.h: docs/ALGORITHMS.md has numbers.
#pragma once
#include "algorithms/hierarchical.h"

namespace peal {

// The highest power of two that is at most n; n >= 1.
constexpr PEAL_HD int powerBelow(int n) {
  int power = 1;
  while (power <= n / 2) {
    power *= 2;
  }
  return power;
}

// round.blocks.parts == 1. The part of doublingAllReduce between the ranks that speak for nodes 0 .. P-1.
template <SumPort P>
PEAL_HD_CALL void doubleBetween(P& port, Chunk c, const Grouping& nodes) {
  const int node = nodes.node(port.rank()), power = powerBelow(nodes.nodes);
  holdNode(port, nodes, c);
  if (node + power < nodes.nodes) {
    port.hold(nodes.rank(node + power, 0), c);
  }
  if (power == 1) {
    port.sumCopy(c);
    return;
  }
  port.sumKeep(c);
  for (int bit = 1; bit < power; bit *= 2) {
    const int peer = nodes.rank(node ^ bit, 0);
    port.holdOut(c);
    port.sumSend(peer, c);
    if ((node & bit) == 0) {
      port.holdOut(c);
      port.hold(peer, c);
    } else {
      port.hold(peer, c);
      port.holdOut(c);
    }
    if (bit * 2 < power) {
      port.sumKeep(c);
    } else {
      port.sumCopy(c);
    }
  }
  if (node + power < nodes.nodes) {
    port.sendOut(nodes.rank(node + power, 0), c);
  }
}

// round.blocks.parts == 1.
template <SumPort P>
PEAL_HD_CALL void doublingAllReduce(P& port, Round round, const Grouping& nodes) {
  const Chunk c = round.chunk(0);
  const int own = port.rank(), node = nodes.node(own), power = powerBelow(nodes.nodes);
  const int speaker = nodes.rank(node, 0);
  if (port.size() == 1) {
    port.copyFinish(c);
    return;
  }
  if (own != speaker) {
    port.send(speaker, c);
    port.recv(speaker, c);
    return;
  }
  if (node < power) {
    doubleBetween(port, c, nodes);
  } else {
    const int partner = nodes.rank(node - power, 0);
    holdNode(port, nodes, c);
    port.sumSend(partner, c);
    port.recv(partner, c);
  }
  for (int k = 1; k < nodes.nodeSize(node); ++k) {
    port.sendOut(localPeer(port, nodes, k), c);
  }
}

// Of the binomial tree over nodes, counted from the root's: node v's children are v + 1, v + 2, v + 4 ...
// below the lowest bit of v; its parent is v without that bit.
constexpr PEAL_HD int treePlace(const Grouping& nodes, int node, int root) {
  return (node - nodes.node(root) + nodes.nodes) % nodes.nodes;
}
constexpr PEAL_HD int treeHead(const Grouping& nodes, int place, int root) {
  return headOf(nodes, (place + nodes.node(root)) % nodes.nodes, root);
}
constexpr PEAL_HD bool isTreeChild(const Grouping& nodes, int place, int bit) {
  return (place & (2 * bit - 1)) == 0 && place + bit < nodes.nodes;
}

// round.blocks.parts == 1. The farthest child first: it has the most to pass on.
template <SumPort P>
PEAL_HD_CALL void treeBroadcast(P& port, Round round, int root, const Grouping& nodes) {
  const Chunk c = round.chunk(0);
  const int own = port.rank(), node = nodes.node(own);
  const int head = headOf(nodes, node, root), place = treePlace(nodes, node, root);
  if (own != head) {
    port.recv(head, c);
    return;
  }
  if (own == root) {
    port.copy(c);
  } else {
    port.recv(treeHead(nodes, place & (place - 1), root), c);
  }
  for (int bit = powerBelow(nodes.nodes); bit > 0; bit /= 2) {
    if (isTreeChild(nodes, place, bit)) {
      port.sendOut(treeHead(nodes, place + bit, root), c);
    }
  }
  for (int k = 1; k < nodes.nodeSize(node); ++k) {
    port.sendOut(localPeer(port, nodes, k), c);
  }
}

// round.blocks.parts == 1; only the root's `out` is written.
template <SumPort P>
PEAL_HD_CALL void treeReduce(P& port, Round round, int root, const Grouping& nodes) {
  const Chunk c = round.chunk(0);
  const int own = port.rank(), node = nodes.node(own);
  const int head = headOf(nodes, node, root), place = treePlace(nodes, node, root);
  if (port.size() == 1) {
    port.copyFinish(c);
    return;
  }
  if (own != head) {
    port.send(head, c);
    return;
  }
  holdNode(port, nodes, c);
  for (int bit = 1; bit < nodes.nodes; bit *= 2) {
    if (isTreeChild(nodes, place, bit)) {
      port.hold(treeHead(nodes, place + bit, root), c);
    }
  }
  if (own == root) {
    port.sumCopy(c);
  } else {
    port.sumSend(treeHead(nodes, place & (place - 1), root), c);
  }
}

}  // namespace peal
