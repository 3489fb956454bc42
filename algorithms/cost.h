// What each algorithm costs, as closed formulas: exact, also for uneven blocks.
//
// The checker holds every algorithm to them; tuner and bench compute with them. Plain arithmetic, no
// memory and no types: multiply elements by the type's size for bytes. The tables in ring.h and direct.h
// say the same in words.
#pragma once
#include <cstdint>

#include "algorithms/chunk.h"

namespace peal {

enum class Collective : uint8_t { AllReduce, ReduceScatter, AllGather, Broadcast, Reduce };

enum class Algorithm : uint8_t {
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

struct Traits {
  const char* name;  // the function's
  Collective collective;
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

constexpr Traits traits(Algorithm algorithm, int ranks) {
  constexpr InPlaceSend kAny = InPlaceSend::ReferenceOrBytes;
  const int hops = ranks - 1;
  const int some = ranks > 1 ? 1 : 0;
  // A rank that forwards in a closed ring holds one message while it makes the next.
  const int forwarding = ranks > 2 ? 2 : 1;
  switch (algorithm) {
    case Algorithm::RingAllReduce:
      return {"ringAllReduce", Collective::AllReduce, Cut::PerRank, SumOrder::Ring, kAny, 2 * hops, hops,
              1 + some};
    case Algorithm::RingReduceScatter:
      return {"ringReduceScatter", Collective::ReduceScatter, Cut::PerRank, SumOrder::Ring, kAny, hops, hops,
              forwarding};
    case Algorithm::RingAllGather:
      return {"ringAllGather", Collective::AllGather, Cut::PerRank, SumOrder::None, kAny, hops, 0,
              forwarding};
    case Algorithm::RingBroadcast:
      return {"ringBroadcast", Collective::Broadcast, Cut::Whole, SumOrder::None, kAny, hops, 0, 1};
    case Algorithm::RingReduce:
      return {"ringReduce", Collective::Reduce, Cut::Whole, SumOrder::Ring, kAny, hops, hops, 1};
    case Algorithm::OneShotAllReduce:
      return {"oneShotAllReduce",
              Collective::AllReduce,
              Cut::Whole,
              SumOrder::Rank,
              InPlaceSend::BytesOnly,
              some,
              some,
              1};
    case Algorithm::TwoShotAllReduce:
      return {
          "twoShotAllReduce", Collective::AllReduce, Cut::PerRank, SumOrder::Rank, kAny, 2 * some, some, 1};
    case Algorithm::DirectReduceScatter:
      return {"directReduceScatter",
              Collective::ReduceScatter,
              Cut::PerRank,
              SumOrder::Rank,
              kAny,
              some,
              some,
              1};
    case Algorithm::DirectAllGather:
      return {"directAllGather", Collective::AllGather, Cut::PerRank, SumOrder::None, kAny, some, 0, 1};
    case Algorithm::DirectBroadcast:
      return {"directBroadcast", Collective::Broadcast, Cut::Whole, SumOrder::None, kAny, some, 0, 1};
    case Algorithm::DirectReduce:
      break;
  }
  return {"directReduce", Collective::Reduce, Cut::Whole, SumOrder::Rank, kAny, some, some, 1};
}

// `root` matters only to broadcast and reduce.
constexpr Traffic traffic(Algorithm algorithm, const Blocks& blocks, int ranks, int rank, int root) {
  const size_t peers = static_cast<size_t>(ranks - 1);
  const size_t total = blocks.total;
  const size_t own = blocks.block(rank).count;
  const size_t next = blocks.block(rank + 1).count;
  const Traffic none{0, 0};
  switch (algorithm) {
    case Algorithm::RingAllReduce:
      return {2 * peers, 2 * total - own - next};
    case Algorithm::RingReduceScatter:
    case Algorithm::DirectReduceScatter:
      return {peers, total - own};
    case Algorithm::RingAllGather:
      return {peers, total - next};
    case Algorithm::RingBroadcast:
      return (rank + 1) % ranks == root ? none : Traffic{1, total};
    case Algorithm::OneShotAllReduce:
      return {peers, peers * total};
    case Algorithm::TwoShotAllReduce:
      return {2 * peers, total - own + peers * own};
    case Algorithm::DirectAllGather:
      return {peers, peers * own};
    case Algorithm::DirectBroadcast:
      return rank == root ? Traffic{peers, peers * total} : none;
    case Algorithm::RingReduce:
    case Algorithm::DirectReduce:
      break;
  }
  return rank == root ? none : Traffic{1, total};
}

static_assert(traffic(Algorithm::RingAllReduce, Blocks{10, 4, nullptr}, 4, 0, 0).elements == 14);
static_assert(traffic(Algorithm::TwoShotAllReduce, Blocks{10, 4, nullptr}, 4, 0, 0).elements == 16);

}  // namespace peal
