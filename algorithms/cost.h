// What each algorithm costs, as closed formulas: exact, also for uneven blocks.
//
// The checker holds every algorithm to them. Plain arithmetic, no memory and no types: multiply elements by
// the type's size for bytes. The tables in ring.h and direct.h
// say the same in words.
#pragma once
#include <cstdint>

#include "algorithms/chunk.h"

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
};

constexpr int kAlgorithmCount = 11;

// How the operation's array is cut: one block per rank, or one block in all.
enum class Cut : uint8_t { PerRank, Whole };

// The order in which a rank's element is summed. Ring: cyclic, ending at the rank that owns the element
// (reduce: the root). Rank: 0 to N-1.
enum class SumOrder : uint8_t { None, Ring, Rank };

// Whether an in-place call may send references to `in` (port.h), or must stage its bytes.
enum class InPlaceSend : uint8_t { ReferenceOrBytes, BytesOnly };

struct AlgorithmTraits {
  const char* name;  // the function's
  CollectiveKind collective;
  Cut cut;
  SumOrder order;
  InPlaceSend inPlaceSend;
  int steps;      // longest chain of messages that wait for each other, in one round
  int roundings;  // of one element to its type, when sums are formed in a wider one
  int slots;      // fewest slots per link that cannot deadlock
};

// What one rank sends.
struct Traffic {
  size_t messages;  // in each round; to each receiver counted
  size_t elements;  // in all rounds together; to each receiver counted
};

constexpr AlgorithmTraits traitsOf(AlgorithmId algorithm, int ranks) {
  constexpr InPlaceSend kAny = InPlaceSend::ReferenceOrBytes;
  const int hops = ranks - 1;
  const int some = ranks > 1 ? 1 : 0;
  // A rank that forwards in a closed ring holds one message while it makes the next.
  const int forwarding = ranks > 2 ? 2 : 1;
  switch (algorithm) {
    case AlgorithmId::RingAllReduce:
      return {"ringAllReduce", CollectiveKind::AllReduce, Cut::PerRank, SumOrder::Ring, kAny, 2 * hops, hops,
              1 + some};
    case AlgorithmId::RingReduceScatter:
      return {
          "ringReduceScatter", CollectiveKind::ReduceScatter, Cut::PerRank, SumOrder::Ring, kAny, hops, hops,
          forwarding};
    case AlgorithmId::RingAllGather:
      return {"ringAllGather", CollectiveKind::AllGather, Cut::PerRank, SumOrder::None, kAny, hops, 0,
              forwarding};
    case AlgorithmId::RingBroadcast:
      return {"ringBroadcast", CollectiveKind::Broadcast, Cut::Whole, SumOrder::None, kAny, hops, 0, 1};
    case AlgorithmId::RingReduce:
      return {"ringReduce", CollectiveKind::Reduce, Cut::Whole, SumOrder::Ring, kAny, hops, hops, 1};
    case AlgorithmId::OneShotAllReduce:
      return {"oneShotAllReduce",
              CollectiveKind::AllReduce,
              Cut::Whole,
              SumOrder::Rank,
              InPlaceSend::BytesOnly,
              some,
              some,
              1};
    case AlgorithmId::TwoShotAllReduce:
      return {"twoShotAllReduce",
              CollectiveKind::AllReduce,
              Cut::PerRank,
              SumOrder::Rank,
              kAny,
              2 * some,
              some,
              1};
    case AlgorithmId::DirectReduceScatter:
      return {"directReduceScatter",
              CollectiveKind::ReduceScatter,
              Cut::PerRank,
              SumOrder::Rank,
              kAny,
              some,
              some,
              1};
    case AlgorithmId::DirectAllGather:
      return {"directAllGather", CollectiveKind::AllGather, Cut::PerRank, SumOrder::None, kAny, some, 0, 1};
    case AlgorithmId::DirectBroadcast:
      return {"directBroadcast", CollectiveKind::Broadcast, Cut::Whole, SumOrder::None, kAny, some, 0, 1};
    case AlgorithmId::DirectReduce:
      break;
  }
  return {"directReduce", CollectiveKind::Reduce, Cut::Whole, SumOrder::Rank, kAny, some, some, 1};
}

// `root` matters only to broadcast and reduce.
constexpr Traffic trafficOf(AlgorithmId algorithm, const Blocks& blocks, int ranks, int rank, int root) {
  const size_t peers = static_cast<size_t>(ranks - 1);
  const size_t total = blocks.total;
  const size_t own = blocks.block(rank).count;
  const size_t next = blocks.block(rank + 1).count;
  const Traffic none{0, 0};
  switch (algorithm) {
    case AlgorithmId::RingAllReduce:
      return {2 * peers, 2 * total - own - next};
    case AlgorithmId::RingReduceScatter:
    case AlgorithmId::DirectReduceScatter:
      return {peers, total - own};
    case AlgorithmId::RingAllGather:
      return {peers, total - next};
    case AlgorithmId::RingBroadcast:
      return (rank + 1) % ranks == root ? none : Traffic{1, total};
    case AlgorithmId::OneShotAllReduce:
      return {peers, peers * total};
    case AlgorithmId::TwoShotAllReduce:
      return {2 * peers, total - own + peers * own};
    case AlgorithmId::DirectAllGather:
      return {peers, peers * own};
    case AlgorithmId::DirectBroadcast:
      return rank == root ? Traffic{peers, peers * total} : none;
    case AlgorithmId::RingReduce:
    case AlgorithmId::DirectReduce:
      break;
  }
  return rank == root ? none : Traffic{1, total};
}

static_assert(trafficOf(AlgorithmId::RingAllReduce, Blocks{10, 4, nullptr}, 4, 0, 0).elements == 14);
static_assert(trafficOf(AlgorithmId::TwoShotAllReduce, Blocks{10, 4, nullptr}, 4, 0, 0).elements == 16);

}  // namespace peal
