// What each algorithm costs, as closed formulas: exact, also for uneven blocks.
//
// The checker holds every algorithm to them, and the tuner predicts with them. Plain arithmetic, no memory
// and no types: multiply elements by the type's size for bytes. The tables in ring.h, direct.h,
// hierarchical.h, hierarchical_ring.h and tree.h say the same in words.
#pragma once
#include <cstdint>

#include "algorithms/chunk.h"
#include "algorithms/direct.h"
#include "algorithms/hierarchical_ring.h"
#include "algorithms/tree.h"

namespace peal {

enum class CollectiveKind : uint8_t { AllReduce, ReduceScatter, AllGather, Broadcast, Reduce };

enum class AlgorithmId : uint8_t {
  RingAllReduce,
  RingReduceScatter,
  RingAllGather,
  RingBroadcast,
  RingReduce,
  OneShotAllReduce,
  TwoShotAllReduce,
  DirectReduceScatter,
  DirectAllGather,
  DirectBroadcast,
  DirectReduce,
  HierarchicalAllReduce,
  HierarchicalReduceScatter,
  HierarchicalAllGather,
  HierarchicalBroadcast,
  HierarchicalReduce,
  DoublingAllReduce,
  TreeBroadcast,
  TreeReduce,
  StagedTwoShot,
  HierarchicalRingAllReduce,
  HierarchicalRingReduceScatter,
  HierarchicalRingAllGather,
};

constexpr int kAlgorithmCount = 23;
constexpr int kFlatAlgorithmCount = 11;  // the first ones, which know neither nodes nor stages

// How the operation's array is cut: one block per rank, or one block in all.
enum class Cut : uint8_t { PerRank, Whole };

// The order in which a rank's element is summed. Ring: cyclic, ending at the rank that owns the element
// (reduce: the root). Rank: 0 to N-1. Fixed: another one, the same on every run.
enum class SumOrder : uint8_t { None, Ring, Rank, Fixed };

// Whether an in-place call may send references to `in` (port.h), or must stage its bytes.
enum class InPlaceSend : uint8_t { ReferenceOrBytes, BytesOnly };

struct AlgorithmTraits {
  const char* name;  // the function's
  CollectiveKind collective;
  Cut cut;
  SumOrder order;
  InPlaceSend inPlaceSend;
  int steps;       // longest chain of messages that wait for each other, in one round
  int roundings;   // of one element to its type, when sums are formed in a wider one
  int slots;       // fewest slots per link that cannot deadlock
  int stages = 1;  // of a round (pipeline.h)
  // No: steps and roundings are the most there can be (uneven nodes).
  bool exact = true;
};

// ---- flat -------------------------------------------------------------------------------------------------

constexpr AlgorithmTraits flatTraits(AlgorithmId algorithm, int ranks) {
  constexpr InPlaceSend kAny = InPlaceSend::ReferenceOrBytes;
  constexpr Cut kPerRank = Cut::PerRank, kWhole = Cut::Whole;
  using enum CollectiveKind;
  const int hops = ranks - 1;
  const int some = ranks > 1 ? 1 : 0;
  // A rank that forwards in a closed ring holds one message while it makes the next.
  const int forwarding = ranks > 2 ? 2 : 1;
  switch (algorithm) {
    case AlgorithmId::RingAllReduce:
      return {"ringAllReduce", AllReduce, kPerRank, SumOrder::Ring, kAny, 2 * hops, hops, 1 + some};
    case AlgorithmId::RingReduceScatter:
      return {"ringReduceScatter", ReduceScatter, kPerRank, SumOrder::Ring, kAny, hops, hops, forwarding};
    case AlgorithmId::RingAllGather:
      return {"ringAllGather", AllGather, kPerRank, SumOrder::None, kAny, hops, 0, forwarding};
    case AlgorithmId::RingBroadcast:
      return {"ringBroadcast", Broadcast, kWhole, SumOrder::None, kAny, hops, 0, 1};
    case AlgorithmId::RingReduce:
      return {"ringReduce", Reduce, kWhole, SumOrder::Ring, kAny, hops, hops, 1};
    case AlgorithmId::OneShotAllReduce:
      return {"oneShotAllReduce", AllReduce, kWhole, SumOrder::Rank, InPlaceSend::BytesOnly, some, some, 1};
    case AlgorithmId::TwoShotAllReduce:
      return {"twoShotAllReduce", AllReduce, kPerRank, SumOrder::Rank, kAny, 2 * some, some, 1};
    case AlgorithmId::DirectReduceScatter:
      return {"directReduceScatter", ReduceScatter, kPerRank, SumOrder::Rank, kAny, some, some, 1};
    case AlgorithmId::DirectAllGather:
      return {"directAllGather", AllGather, kPerRank, SumOrder::None, kAny, some, 0, 1};
    case AlgorithmId::DirectBroadcast:
      return {"directBroadcast", Broadcast, kWhole, SumOrder::None, kAny, some, 0, 1};
    default:
      return {"directReduce", Reduce, kWhole, SumOrder::Rank, kAny, some, some, 1};
  }
}

// ---- over nodes -------------------------------------------------------------------------------------------

// The most turns that the ranks of a node take as agents (hierarchical.h): R-1 for even nodes.
constexpr int agentTurns(const Grouping& nodes) {
  int most = 0;
  for (int node = 0; node < nodes.nodes; ++node) {
    int turns = 0;
    for (int other = 0; other < nodes.nodes; ++other) {
      turns += other == node ? 0 : (nodes.nodeSize(other) + nodes.nodeSize(node) - 1) / nodes.nodeSize(node);
    }
    most = turns > most ? turns : most;
  }
  return most;
}

// T of hierarchical_ring.h.
constexpr int ringTurns(const Grouping& nodes) {
  return (nodes.largestNode() + nodes.smallestNode() - 1) / nodes.smallestNode();
}

constexpr int logBelow(int n) {
  int log = 0;
  for (int power = powerBelow(n); power > 1; power /= 2) {
    ++log;
  }
  return log;
}

// ahead: how many rounds earlier stages run ahead (pipeline.h).
constexpr AlgorithmTraits traitsOf(AlgorithmId algorithm, const Grouping& nodes, int ahead = 0) {
  constexpr InPlaceSend kAny = InPlaceSend::ReferenceOrBytes;
  using enum CollectiveKind;
  const int r = nodes.nodes, g = nodes.largestNode();
  const int some = nodes.ranks > 1 ? 1 : 0, inside = g > 1 ? 1 : 0, between = r > 1 ? 1 : 0;
  const bool even = nodes.even();
  const int turns = inside != 0 ? agentTurns(nodes) + 1 : between;
  const int sums = inside + between;
  const int log = logBelow(r), power = powerBelow(r);
  const int rest = r > power ? 1 : 0, around = rest + (2 * r > 3 * power ? 1 : 0);
  const int queued = between * ahead;
  const int ring = r - 1 + inside, forwarding = r > 2 ? 2 : 1;
  switch (algorithm) {
    case AlgorithmId::HierarchicalAllReduce:
      return {"hierarchicalAllReduce",
              AllReduce,
              Cut::PerRank,
              SumOrder::Fixed,
              kAny,
              2 * turns,
              sums,
              1 + 2 * queued,
              kHierarchicalAllReduceStages,
              even};
    case AlgorithmId::HierarchicalReduceScatter:
      return {"hierarchicalReduceScatter",
              ReduceScatter,
              Cut::PerRank,
              SumOrder::Fixed,
              kAny,
              turns,
              sums,
              1 + queued,
              kReduceScatterStages,
              even};
    case AlgorithmId::HierarchicalAllGather:
      return {"hierarchicalAllGather", AllGather, Cut::PerRank, SumOrder::None, kAny, turns, 0, 1 + queued,
              kAllGatherStages,        even};
    case AlgorithmId::HierarchicalBroadcast:
      return {"hierarchicalBroadcast", Broadcast, Cut::Whole, SumOrder::None, kAny, r + g - 2, 0, 1, 1, even};
    case AlgorithmId::HierarchicalReduce:
      return {"hierarchicalReduce",
              Reduce,
              Cut::Whole,
              SumOrder::Fixed,
              kAny,
              r - 1 + inside,
              r - 1 + inside,
              1,
              1,
              even};
    case AlgorithmId::DoublingAllReduce:
      return {"doublingAllReduce",
              AllReduce,
              Cut::Whole,
              SumOrder::Fixed,
              kAny,
              2 * inside + around + log,
              some * (inside + rest + log),
              1,
              1,
              even};
    case AlgorithmId::TreeBroadcast:
      return {"treeBroadcast", Broadcast, Cut::Whole, SumOrder::None, kAny, inside + log, 0, 1, 1, even};
    case AlgorithmId::TreeReduce:
      return {"treeReduce", Reduce, Cut::Whole, SumOrder::Fixed, kAny, inside + log, inside + log, 1, 1,
              even};
    case AlgorithmId::StagedTwoShot:
      return {"stagedTwoShot", AllReduce, Cut::PerRank,         SumOrder::Rank, kAny,
              2 * some,        some,      1 + 2 * some * ahead, kTwoShotStages};
    case AlgorithmId::HierarchicalRingAllReduce:
      return {"hierarchicalRingAllReduce",
              AllReduce,
              Cut::PerRank,
              SumOrder::Fixed,
              kAny,
              2 * ring * ringTurns(nodes),
              ring,
              forwarding,
              1,
              even};
    case AlgorithmId::HierarchicalRingReduceScatter:
      return {"hierarchicalRingReduceScatter",
              ReduceScatter,
              Cut::PerRank,
              SumOrder::Fixed,
              kAny,
              ring * ringTurns(nodes),
              ring,
              forwarding,
              1,
              even};
    case AlgorithmId::HierarchicalRingAllGather:
      return {"hierarchicalRingAllGather",
              AllGather,
              Cut::PerRank,
              SumOrder::None,
              kAny,
              ring * ringTurns(nodes),
              0,
              forwarding,
              1,
              even};
    default:
      return flatTraits(algorithm, nodes.ranks);
  }
}

constexpr AlgorithmTraits traitsOf(AlgorithmId algorithm, int ranks) {
  return traitsOf(algorithm, Grouping::apart(ranks));
}

// ---- what one rank sends ----------------------------------------------------------------------------------

struct Traffic {
  size_t messages = 0;  // in each round; to each receiver counted
  size_t elements = 0;  // in all rounds together; to each receiver counted

  constexpr bool operator==(const Traffic&) const = default;
  constexpr Traffic operator+(const Traffic& other) const {
    return {messages + other.messages, elements + other.elements};
  }
  constexpr Traffic operator*(size_t times) const { return {messages * times, elements * times}; }
};

// By link class.
struct LinkTraffic {
  Traffic inside;   // to ranks of the own node
  Traffic between;  // to ranks of other nodes
  constexpr Traffic all() const { return inside + between; }
};

// One message to each rank but the own, of the receiver's block.
constexpr LinkTraffic blocksToAll(const Blocks& blocks, const Grouping& nodes, int rank) {
  LinkTraffic sent;
  for (int peer = 0; peer < nodes.ranks; ++peer) {
    if (peer != rank) {
      Traffic& to = nodes.sameNode(peer, rank) ? sent.inside : sent.between;
      to = to + Traffic{1, blocks.block(peer).count};
    }
  }
  return sent;
}

// One message of so many elements to each rank but the own.
constexpr LinkTraffic sameToAll(size_t elements, const Grouping& nodes, int rank) {
  const Traffic one{1, elements};
  const size_t locals = static_cast<size_t>(nodes.nodeSize(nodes.node(rank)) - 1);
  return {one * locals, one * (static_cast<size_t>(nodes.ranks - 1) - locals)};
}

constexpr LinkTraffic toOne(Traffic traffic, const Grouping& nodes, int rank, int peer) {
  return nodes.sameNode(rank, peer) ? LinkTraffic{traffic, {}} : LinkTraffic{{}, traffic};
}

constexpr LinkTraffic operator+(const LinkTraffic& a, const LinkTraffic& b) {
  return {a.inside + b.inside, a.between + b.between};
}

// A(r) messages of a(r) elements (hierarchical.h): the chunks of other nodes that the rank is agent of.
constexpr Traffic agentShare(const Blocks& blocks, const Grouping& nodes, int rank) {
  Traffic share;
  const int node = nodes.node(rank), size = nodes.nodeSize(node);
  for (int other = 0; other < nodes.nodes; ++other) {
    for (int local = nodes.local(rank); other != node && local < nodes.nodeSize(other); local += size) {
      share = share + Traffic{1, blocks.block(nodes.rank(other, local)).count};
    }
  }
  return share;
}

constexpr LinkTraffic hierarchicalScatter(const Blocks& blocks, const Grouping& nodes, int rank) {
  const Traffic share = agentShare(blocks, nodes, rank);
  return {{static_cast<size_t>(nodes.ranks - 1) - share.messages,
           blocks.total - blocks.block(rank).count - share.elements},
          share};
}

constexpr LinkTraffic hierarchicalGather(const Blocks& blocks, const Grouping& nodes, int rank) {
  const Traffic own{1, blocks.block(rank).count};
  const size_t locals = static_cast<size_t>(nodes.nodeSize(nodes.node(rank)) - 1);
  return {(own + agentShare(blocks, nodes, rank)) * locals, own * static_cast<size_t>(nodes.nodes - 1)};
}

// To the next node go the rank's own chunk and those that it is agent of, but for that node's.
constexpr LinkTraffic ringGather(const Blocks& blocks, const Grouping& nodes, int rank) {
  const int node = nodes.node(rank), size = nodes.nodeSize(node), next = nodeAfter(nodes, node);
  LinkTraffic sent = hierarchicalGather(blocks, nodes, rank);
  sent.between = {};
  for (int other = 0; nodes.nodes > 1 && other < nodes.nodes; ++other) {
    for (int local = nodes.local(rank); other != next && local < nodes.nodeSize(other); local += size) {
      sent.between = sent.between + Traffic{1, blocks.block(nodes.rank(other, local)).count};
    }
  }
  return sent;
}

constexpr LinkTraffic doublingTraffic(Traffic one, const Grouping& nodes, int rank) {
  const int node = nodes.node(rank), power = powerBelow(nodes.nodes);
  if (nodes.local(rank) != 0) {
    return {one, {}};
  }
  const int exchanges = node < power ? logBelow(nodes.nodes) + (node + power < nodes.nodes ? 1 : 0) : 1;
  return {one * static_cast<size_t>(nodes.nodeSize(node) - 1), one * static_cast<size_t>(exchanges)};
}

// Chains and trees from a root: what the rank passes on towards the leaves.
constexpr LinkTraffic broadcastTraffic(bool tree, Traffic one, const Grouping& nodes, int rank, int root) {
  const int node = nodes.node(rank), size = nodes.nodeSize(node);
  const int head = headOf(nodes, node, root), place = treePlace(nodes, node, root);
  LinkTraffic sent;
  if (tree && rank == head) {
    sent.inside = one * static_cast<size_t>(size - 1);
    for (int bit = 1; bit < nodes.nodes; bit *= 2) {
      sent.between = sent.between + one * (isTreeChild(nodes, place, bit) ? 1 : 0);
    }
  } else if (!tree) {
    const int next = nodes.rank(node, (nodes.local(rank) + 1) % size);
    sent.inside = one * (next != head ? 1 : 0);
    sent.between = one * (rank == head && place + 1 < nodes.nodes ? 1 : 0);
  }
  return sent;
}

constexpr LinkTraffic reduceTraffic(Traffic one, const Grouping& nodes, int rank, int root) {
  if (rank == root) {
    return {};
  }
  return rank == headOf(nodes, nodes.node(rank), root) ? LinkTraffic{{}, one} : LinkTraffic{one, {}};
}

// `root` matters only to broadcast and reduce.
constexpr LinkTraffic trafficOf(AlgorithmId algorithm, const Blocks& blocks, const Grouping& nodes, int rank,
                                int root) {
  const size_t total = blocks.total;
  const size_t own = blocks.block(rank).count;
  const int nextRank = (rank + 1) % nodes.ranks;
  const size_t next = blocks.block(nextRank).count;
  const size_t peers = static_cast<size_t>(nodes.ranks - 1);
  const Traffic whole{1, total};
  switch (algorithm) {
    case AlgorithmId::RingAllReduce:
      return toOne({2 * peers, 2 * total - own - next}, nodes, rank, nextRank);
    case AlgorithmId::RingReduceScatter:
      return toOne({peers, total - own}, nodes, rank, nextRank);
    case AlgorithmId::RingAllGather:
      return toOne({peers, total - next}, nodes, rank, nextRank);
    case AlgorithmId::RingBroadcast:
      return nextRank == root ? LinkTraffic{} : toOne(whole, nodes, rank, nextRank);
    case AlgorithmId::RingReduce:
      return rank == root ? LinkTraffic{} : toOne(whole, nodes, rank, nextRank);
    case AlgorithmId::OneShotAllReduce:
      return sameToAll(total, nodes, rank);
    case AlgorithmId::TwoShotAllReduce:
    case AlgorithmId::StagedTwoShot:
      return blocksToAll(blocks, nodes, rank) + sameToAll(own, nodes, rank);
    case AlgorithmId::DirectReduceScatter:
      return blocksToAll(blocks, nodes, rank);
    case AlgorithmId::DirectAllGather:
      return sameToAll(own, nodes, rank);
    case AlgorithmId::DirectBroadcast:
      return rank == root ? sameToAll(total, nodes, rank) : LinkTraffic{};
    case AlgorithmId::DirectReduce:
      return rank == root ? LinkTraffic{} : toOne(whole, nodes, rank, root);
    case AlgorithmId::HierarchicalReduceScatter:
    case AlgorithmId::HierarchicalRingReduceScatter:
      return hierarchicalScatter(blocks, nodes, rank);
    case AlgorithmId::HierarchicalRingAllGather:
      return ringGather(blocks, nodes, rank);
    case AlgorithmId::HierarchicalRingAllReduce:
      return hierarchicalScatter(blocks, nodes, rank) + ringGather(blocks, nodes, rank);
    case AlgorithmId::HierarchicalAllGather:
      return hierarchicalGather(blocks, nodes, rank);
    case AlgorithmId::HierarchicalAllReduce:
      return hierarchicalScatter(blocks, nodes, rank) + hierarchicalGather(blocks, nodes, rank);
    case AlgorithmId::DoublingAllReduce:
      return doublingTraffic(whole, nodes, rank);
    case AlgorithmId::HierarchicalBroadcast:
    case AlgorithmId::TreeBroadcast:
      return broadcastTraffic(algorithm == AlgorithmId::TreeBroadcast, whole, nodes, rank, root);
    case AlgorithmId::HierarchicalReduce:
    case AlgorithmId::TreeReduce:
      break;
  }
  return reduceTraffic(whole, nodes, rank, root);
}

constexpr Traffic trafficOf(AlgorithmId algorithm, const Blocks& blocks, int ranks, int rank, int root) {
  return trafficOf(algorithm, blocks, Grouping::apart(ranks), rank, root).all();
}

static_assert(trafficOf(AlgorithmId::RingAllReduce, Blocks{10, 4, nullptr}, 4, 0, 0).elements == 14);
static_assert(trafficOf(AlgorithmId::TwoShotAllReduce, Blocks{10, 4, nullptr}, 4, 0, 0).elements == 16);

}  // namespace peal
