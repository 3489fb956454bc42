// An operation as the host executor runs it, and what every part of the executor shares about the
// communicator it belongs to. Plain data; the communicator (lib/comm/) fills it in and owns it.
#pragma once
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "algorithms/choice.h"
#include "algorithms/chunk.h"
#include "algorithms/grouping.h"
#include "lib/base/result.h"
#include "lib/reduce/reduce.h"
#include "transports/transport.h"

namespace peal {

// A failed operation: the error, and whose fault it is (-1: nobody's in particular).
struct Fault {
  Error error;
  int culpritRank = -1;
};

// One communicator as the executor sees it. Used by one thread at a time, `abort` excepted.
struct HostContext {
  Endpoint* endpoint = nullptr;  // nullptr in a communicator of one rank
  Endpoint* polled = nullptr;    // the same if it needs poll(), else nullptr
  int rank = 0;
  int size = 1;
  // How the ranks lie on nodes; nullptr: all on one. Owned by the communicator.
  const Grouping* grouping = nullptr;
  int64_t timeoutMs = 0;
  int64_t spinUs = 0;
  // Every rank can copy from every other's memory, whatever it is: messages of direct algorithms need not fit
  // a slot.
  bool reachesAll = false;
  bool oversubscribed = false;               // more ranks here than processors: do not spin for long
  int metByYield = 0;                        // waits in a row that the first yield ended
  bool crowded = false;                      // the same of any rank's node, so that all ranks know the same
  bool peerIsFar = false;                    // as last seen: peerIsFar()
  uint32_t askedIfFar = 0;                   // how often that was asked
  const std::atomic<bool>* abort = nullptr;  // stored (release) by Communicator; loaded (acquire) in waits
  std::string name;                          // for messages: "communicator 'x' (rank 1 of 4)"
  pealCommStats_t stats{};                   // of finished operations
  // Scratch of the ports, so that no call allocates: one entry per rank.
  std::vector<Arrival> arrivals;
  std::vector<const void*> sources;
  std::vector<int> holders;          // of the sources of a sum: whose message each is; this rank: own data
  std::vector<std::byte*> landings;  // what a peer lent and this rank has written, and it was not told yet
  // References of the running operation that a peer may still be reading, per peer: see HostPort.
  struct Reference {
    const std::byte* begin = nullptr;
    const std::byte* end = nullptr;
    uint64_t number = 0;  // of its message on the link: read once Link::released(number)
  };
  static constexpr size_t kReferencesKept = 64;  // the most slots a link can have (PEAL_SLOTS)
  struct OpenReferences {
    std::array<Reference, kReferencesKept> ring{};
    size_t next = 0;
    bool any = false;
  };
  std::vector<OpenReferences> references;
  std::vector<std::byte> pulled;  // made when first needed: pieces of what peers offered
  std::vector<uint8_t> lanes;     // of a pass over sends and receives, per peer: see point_to_point.cpp

  void sizeScratch(size_t ranks) {
    arrivals.resize(ranks);
    sources.resize(ranks);
    holders.resize(ranks);
    landings.resize(ranks);
    references.resize(ranks);
    lanes.resize(ranks);
  }
};

// What happens to a rank's finished sums before they travel on, at the pivot of an all-reduce. Called by the
// thread that runs the operation.
class HostEpilogue {
 public:
  virtual ~HostEpilogue() = default;
  // Digest::kAdamw or kApply: all ranks have the same kind.
  virtual uint8_t digestOp() const = 0;
  // Before the first message. False: the operation does nothing at all, on every rank or on none.
  virtual bool begin() = 0;
  // Once for every element of this rank's block, in the order of their places. values: finished sums in
  // memory of the executor, and what is to travel on in their place. The caller's result has what it had
  // until apply returns.
  virtual void apply(std::byte* values, Chunk c) = 0;
};

// A collective call with everything resolved.
struct Collective {
  int kind = pealStatAllReduce;  // pealStatAllReduce .. pealStatBarrier, without send and recv
  const void* send = nullptr;
  void* recv = nullptr;
  size_t count = 0;  // as the caller gave it: per rank for reduce-scatter and all-gather
  // v-forms, and all-reduces with an epilogue: size + 1 block starts; else empty.
  std::vector<size_t> starts;
  pealDataType_t type = pealInt8;
  ReduceOp op;
  bool hasOp = false;
  int root = -1;
  Choice choice;
  uint32_t sequence = 0;
  HostEpilogue* epilogue = nullptr;  // of an all-reduce; outlives the call
};

// A send or a receive of a group.
struct PointToPoint {
  bool isSend = false;
  const std::byte* send = nullptr;
  std::byte* recv = nullptr;
  size_t count = 0;
  pealDataType_t type = pealInt8;
  int peer = 0;
  uint32_t sequence = 0;  // of this pair and direction
  // How far it has come.
  size_t doneBytes = 0;
  bool started = false;  // an empty one still is one message
};

// From this size of an array on its parts have left the cache when they are read again, and non-temporal
// stores save reading them before they are written.
constexpr size_t kStreamingLeastBytes = size_t{8} << 20;
constexpr Store storeFor(size_t arrayBytes) {
  return arrayBytes >= kStreamingLeastBytes ? Store::Streaming : Store::Cached;
}

// The same where bytes are only moved, each twice in a rank's caches: as its own or a peer's, and as the
// result. Processors with much second-level cache have a third level so far away that streaming pays once the
// second is full; others keep more in the third.
Store storeForCopy(size_t arrayBytes);

// Whether the other one of two ranks is far away (Link::lookIfFar). That changes, so there is a look now and
// then.
inline bool peerIsFar(HostContext& context) {
  constexpr uint32_t kAskedPerLook = 1024;
  if (context.size == 2 && ++context.askedIfFar % kAskedPerLook == 0) [[unlikely]] {
    context.peerIsFar = context.endpoint->link(1 - context.rank).lookIfFar();
  }
  return context.peerIsFar;
}

// From this size on slots are filled past the caches of the rank that fills them, where the ranks of a node
// have a processor each: whoever empties them takes the bytes from memory more quickly than from another
// core's cache, and where cores are far apart several times so (DESIGN.md, D22).
constexpr size_t kStreamedSlotLeastBytes = 16384;
// And from this size on for a single peer that is far away at present.
constexpr size_t kFarSlotLeastBytes = 1024;
inline Store storeForSlot(HostContext& context, size_t sizeBytes) {
  if (sizeBytes < kFarSlotLeastBytes || context.polled != nullptr || context.oversubscribed) {
    return Store::Cached;
  }
  return sizeBytes >= kStreamedSlotLeastBytes || peerIsFar(context) ? Store::Streaming : Store::Cached;
}

// Shorter messages always go through a slot, so slots must be that large for a communicator that has no other
// limit to its messages.
constexpr size_t kDirectLeastSlotBytes = 16384;

// "all_reduce", "broadcast", ... for a pealStat... value.
const char* collectiveName(int kind);
// "all_reduce #17 (count 1024, float, sum)".
std::string describe(const Digest& digest);
// What two digests disagree on: "count is 5 on rank 0 and 7 on rank 2"; empty if nothing.
std::string disagreement(const Digest& mine, int myRank, const Digest& theirs, int theirRank);

// What is wrong with a message that is not the expected one: of another call, or of another size.
Error unexpectedArrival(const HostContext& context, const Digest& mine, int from, size_t sizeBytes,
                        const Arrival& arrival);

// Runs to the end on the calling thread.
std::optional<Fault> runCollective(HostContext& context, const Collective& collective);
// All together: none waits for another of the list to finish.
std::optional<Fault> runPointToPoint(HostContext& context, std::vector<PointToPoint>& operations);

}  // namespace peal
