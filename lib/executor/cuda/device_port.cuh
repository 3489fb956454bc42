// The device port: the verbs of algorithms/port.h for one thread block, over one channel of the boxes to
// every peer. lib/executor/host/host_port.h is its model.
//
// Every verb is one step, run by all threads of the block with the same arguments:
//   prepare   single threads wait for the messages and the free slots that the step needs, check the messages
//             and note in shared memory where data come from and go to; each peer belongs to one thread for
//             its messages and to one, of another warp, for its slots
//   barrier
//   move      the block moves the data (Simple: move.cuh; LL and LL128: units that carry flags)
//   barrier   all have read and written
//   hand over the same single threads release what was received and post what was sent
// The counters of a link are changed in "hand over" only, by the thread that they belong to, and read between
// the barriers by all; the notes are written in "prepare" and read between the barriers. So two barriers a
// step are enough, and no more are needed between steps.
//
// After a fault every verb returns at once, for all threads alike: they learn of it by a barrier.
// Owns nothing. Made by a kernel at its start; end() is its last call.
#pragma once
#include <cstddef>
#include <cstdint>

#include "algorithms/port.h"
#include "lib/executor/cuda/device.h"
#include "lib/executor/cuda/lines.cuh"
#include "lib/executor/cuda/move.cuh"
#include "lib/executor/cuda/view.h"
#include "lib/executor/cuda/wait.cuh"
#include "peal/peal.h"

namespace peal::cuda {

// A block's shared memory. [p] belongs to peer p.
struct PortState {
  uint64_t sent[kMostRanks], received[kMostRanks];  // messages of this protocol, since the box was made
  // The step's notes.
  const void* sources[kMostRanks];
  void* destinations[kMostRanks];
  // References that a peer may still be reading; [p][slot]. Only the slot's thread of p touches them.
  struct Reference {
    const std::byte* begin;
    uint64_t bytes, number;
  };
  Reference references[kMostRanks][kMostSlots];
  size_t starts[kMostRanks + 1];  // of the array's blocks
};

// What happens to a finished chunk of `out` before it travels on, at the pivot of an all-reduce: nothing.
// Another epilogue has kActive true, and is called by all threads of the block, after a barrier and before
// one, with the chunk's address and place in the array. Simple only.
struct NoEpilogue {
  static constexpr bool kActive = false;
};

// The element of collectives that only copy. Their kernel serves all types.
struct CopiedElement {};

template <class Element>
inline constexpr bool kReduces = true;
template <>
inline constexpr bool kReduces<CopiedElement> = false;

// What a verb does, as data, so that there is one copy of the code that does it.
constexpr int kNone = -1, kAll = -2;  // in place of a peer
enum class Own : uint8_t { None, In, Out };
enum class Keep : uint8_t { No, Yes };
enum class Finish : uint8_t { No, Yes };
struct Step {
  int from = kNone, to = kNone;
  Own own = Own::None;         // what of this rank goes into the value
  Keep keep = Keep::No;        // write the value to out
  Finish finish = Finish::No;  // the average's division
};

// What a unit of LL and LL128 is summed in: its lanes, of whichever type.
struct UnitSum {
  uint32_t word[16];

  template <class UnitLanes>
  PEAL_DEVICE UnitLanes as() const {
    static_assert(sizeof(UnitLanes) <= sizeof(UnitSum));
    UnitLanes lanes;
    memcpy(&lanes, word, sizeof lanes);
    return lanes;
  }
  template <class UnitLanes>
  PEAL_DEVICE void set(const UnitLanes& lanes) {
    memcpy(word, &lanes, sizeof lanes);
  }
};
template <class Element>
using UnitLanes = Lanes<Element, static_cast<int>(kUnitBytes) / kBitsBytes<Element>>;

template <class Element, Protocol kProtocol, class Epilogue = NoEpilogue>
class DevicePort {
  static_assert(!Epilogue::kActive || kProtocol == Protocol::Simple);

 public:
  PEAL_DEVICE DevicePort(const CollectiveArgs& args, PortState& state, const Epilogue& epilogue = {})
      : args_(args), state_(state), epilogue_(epilogue) {}

  // First call: counters come from device memory, and the starts of `blocks` go to shared memory, so that no
  // chunk costs a division.
  PEAL_DEVICE_CALL void begin(const Blocks& blocks);
  // Waits until no peer reads this rank's buffers any more, and puts the counters back.
  PEAL_DEVICE_CALL void end();
  // The same for all threads.
  PEAL_DEVICE bool failed() const { return failed_; }

  PEAL_DEVICE int rank() const { return args_.comm.rank; }
  PEAL_DEVICE int size() const { return args_.comm.ranks; }

  PEAL_DEVICE void send(int to, Chunk c) { step({.to = to, .own = Own::In}, c); }
  PEAL_DEVICE void copySend(int to, Chunk c) { step({.to = to, .own = Own::In, .keep = Keep::Yes}, c); }
  PEAL_DEVICE void sendOut(int to, Chunk c) { step({.to = to, .own = Own::Out}, c); }
  PEAL_DEVICE void recv(int from, Chunk c) { step({.from = from, .keep = Keep::Yes}, c); }
  PEAL_DEVICE void recvCopySend(int from, int to, Chunk c) {
    step({.from = from, .to = to, .keep = Keep::Yes}, c);
  }
  PEAL_DEVICE void recvReduceSend(int from, int to, Chunk c) {
    step({.from = from, .to = to, .own = Own::In}, c);
  }
  PEAL_DEVICE void recvReduceCopy(int from, Chunk c) {
    step({.from = from, .own = Own::In, .keep = Keep::Yes, .finish = Finish::Yes}, c);
  }
  PEAL_DEVICE void recvReduceCopySend(int from, int to, Chunk c) {
    step({.from = from, .to = to, .own = Own::In, .keep = Keep::Yes, .finish = Finish::Yes}, c);
  }
  PEAL_DEVICE void copy(Chunk c) { step({.own = Own::In, .keep = Keep::Yes}, c); }
  PEAL_DEVICE void copyFinish(Chunk c) {
    step({.own = Own::In, .keep = Keep::Yes, .finish = Finish::Yes}, c);
  }
  PEAL_DEVICE void sendAll(Chunk c) { step({.to = kAll, .own = Own::In}, c); }
  PEAL_DEVICE void sendOutAll(Chunk c) { step({.to = kAll, .own = Own::Out}, c); }
  PEAL_DEVICE void recvReduceAll(Chunk c) {
    step({.from = kAll, .own = Own::In, .keep = Keep::Yes, .finish = Finish::Yes}, c);
  }

 private:
  // A step with everything worked out that does not depend on other ranks: the same for all threads.
  struct Plan {
    size_t bytes;  // of the message
    const std::byte* own;
    std::byte* kept;  // nullptr: nothing is written, or it is there already
    // What peers read in place, where each of them sees the buffer, and how far in; nullptr: nothing.
    const std::byte* referenced;
    const uint64_t* readableAt;
    size_t readableOffset;
    uint64_t place;           // of the payload in a slot (Simple)
    int sources, ownSource;   // ownSource: its index, -1 for none
    int staged;               // destinations that are slots; `kept` comes after them
    int rawSource, divideBy;  // as in MoveArgs
    PEAL_DEVICE int destinations() const { return staged + (kept != nullptr ? 1 : 0); }
  };

  PEAL_DEVICE_CALL void step(Step s, Chunk c) {
    if (failed_) {
      return;
    }
    const Plan plan = planOf(s, c);
    failed_ = syncBlockOr(!prepare(s, plan));
    if (failed_) {
      return;
    }
    if constexpr (kProtocol == Protocol::Simple) {
      if (Epilogue::kActive && s.finish == Finish::Yes) {
        moveFinished(plan, c);
      } else {
        moveBulk(plan, c);
      }
      syncBlock();
    } else {
      failed_ = syncBlockOr(!moveLines(s, plan));
      if (failed_) {
        return;
      }
    }
    handOver(s, plan);
  }
  PEAL_DEVICE Plan planOf(const Step& s, Chunk c) const;
  PEAL_DEVICE const uint64_t* readableAt(const Step& s, size_t sizeBytes) const;
  PEAL_DEVICE_CALL bool prepare(const Step& s, const Plan& plan);
  PEAL_DEVICE bool awaitArrival(int peer, const Plan& plan, const void*& source);
  PEAL_DEVICE bool awaitCredit(int peer, const Plan& plan, void*& destination);
  PEAL_DEVICE bool awaitReaders(int peer, const std::byte* begin, size_t sizeBytes);
  PEAL_DEVICE_CALL void moveBulk(const Plan& plan, Chunk c);
  PEAL_DEVICE_CALL void moveFinished(const Plan& plan, Chunk c);
  PEAL_DEVICE_CALL bool moveLines(const Step& s, const Plan& plan);
  PEAL_DEVICE bool gather(const Step& s, const Plan& plan, size_t base, uint32_t sizeBytes, Vec16& value);
  PEAL_DEVICE void combineUnit(const Plan& plan, int source, Vec16 unit, UnitSum& sum) const;
  PEAL_DEVICE_CALL void handOver(const Step& s, const Plan& plan);

  PEAL_DEVICE size_t elementBytes() const {
    if constexpr (std::is_same_v<Element, CopiedElement> || std::is_same_v<Element, AnyElement>) {
      return typeBytes_;
    } else {
      return sizeof(typename Element::Bits);
    }
  }
  PEAL_DEVICE Header expected(size_t sizeBytes) const {
    return {{digest_.word[0], digest_.word[1], digest_.word[2], sizeBytes}};
  }
  // Whether a message is the one that this rank expects; else reports the fault.
  PEAL_DEVICE bool agrees(int peer, const Header& expects, const Header& arrived) const {
    const FaultKind fault = disagreement(expects, arrived);
    if (fault != FaultKind::None) {
      report(args_.comm, fault, peer, expects, arrived);
    }
    return fault == FaultKind::None;
  }
  PEAL_DEVICE ChannelBoxes boxes(int peer) const { return boxesOf(args_.comm, peer); }
  // Of entry k of a step with all peers, in rank order without this rank.
  PEAL_DEVICE int otherIndex(int peer) const { return peer < rank() ? peer : peer - 1; }
  PEAL_DEVICE int otherRank(int index) const { return index < rank() ? index : index + 1; }

  // Calls work(peer) in the thread that peer's messages, or slots, belong to; `peers`: one, kAll or kNone.
  template <class Work>
  PEAL_DEVICE void forMessagesOf(int peers, const Work& work) const {
    forOwned(peers, 0, work);
  }
  template <class Work>
  PEAL_DEVICE void forSlotsOf(int peers, const Work& work) const {
    forOwned(peers, 32, work);
  }
  template <class Work>
  PEAL_DEVICE void forOwned(int peers, uint32_t shift, const Work& work) const {
    if (peers == kNone) {
      return;
    }
    const uint32_t threads = blockThreads();
    if (peers != kAll) {
      if (threadIndex() == (static_cast<uint32_t>(peers) + shift) % threads) {
        work(peers);
      }
      return;
    }
    PEAL_KEEP_LOOP
    for (uint32_t peer = (threadIndex() + threads - shift) % threads; peer < static_cast<uint32_t>(size());
         peer += threads) {
      if (static_cast<int>(peer) != rank()) {
        work(static_cast<int>(peer));
      }
    }
  }

  const CollectiveArgs& args_;
  PortState& state_;
  const Epilogue epilogue_;
  Header digest_{};
  uint64_t sequence_ = 0;
  uint64_t scalarBits_ = 0;
  size_t typeBytes_ = 0;
  bool failed_ = false;
  bool referencesOpen_ = false;
};

// Bytes of an element of this type.
PEAL_DEVICE size_t bytesOfType(int type) {
  switch (type) {
    case pealInt32:
    case pealUint32:
    case pealFloat32:
      return 4;
    case pealInt64:
    case pealUint64:
    case pealFloat64:
      return 8;
    case pealFloat16:
    case pealBfloat16:
      return 2;
    default:
      return 1;
  }
}

template <class Element, Protocol kProtocol, class Epilogue>
PEAL_DEVICE_CALL void DevicePort<Element, kProtocol, Epilogue>::begin(const Blocks& blocks) {
  const CommView& comm = args_.comm;
  const ChannelState& channel = comm.channels[blockIndex()];
  typeBytes_ = bytesOfType(args_.digest.type);
  if (comm.shape.slots > kMostSlots || comm.ranks > kMostRanks || args_.chunkCount == 0 ||
      args_.chunkCount * elementBytes() > comm.shape.payloadBytes(kProtocol)) {
    halt();
  }
  sequence_ = loadGlobal(&channel.sequence);
  DigestWords digest = args_.digest;
  digest.sequence = static_cast<uint32_t>(sequence_);
  digest_ = headerOf(digest, 0);
  if constexpr (kReduces<Element>) {
    scalarBits_ = args_.scalarBits;
    if (args_.preMultiply != 0 && args_.scalar != nullptr) {
      withElement<Element>(args_.digest.type, [&](auto element) {
        using Bits = typename decltype(element)::Bits;
        scalarBits_ = loadGlobal(static_cast<const Bits*>(args_.scalar));
      });
    }
  }
  for (uint32_t i = threadIndex(); i <= static_cast<uint32_t>(blocks.parts); i += blockThreads()) {
    state_.starts[i] = blocks.start(static_cast<int>(i));
  }
  forMessagesOf(kAll, [&](int peer) {
    state_.received[peer] = loadGlobal(&channel.links[peer].received[static_cast<int>(kProtocol)]);
  });
  forSlotsOf(kAll, [&](int peer) {
    state_.sent[peer] = loadGlobal(&channel.links[peer].sent[static_cast<int>(kProtocol)]);
    if constexpr (kProtocol == Protocol::Simple) {
      PEAL_KEEP_LOOP
      for (int slot = 0; slot < comm.shape.slots; ++slot) {
        state_.references[peer][slot].bytes = 0;
      }
    }
  });
  failed_ = syncBlockOr(threadIndex() == 0 && stoppedByOthers(comm, digest_));
}

template <class Element, Protocol kProtocol, class Epilogue>
PEAL_DEVICE_CALL void DevicePort<Element, kProtocol, Epilogue>::end() {
  ChannelState& channel = args_.comm.channels[blockIndex()];
  forMessagesOf(kAll, [&](int peer) {
    storeGlobal(&channel.links[peer].received[static_cast<int>(kProtocol)], state_.received[peer]);
  });
  forSlotsOf(kAll, [&](int peer) {
    if (referencesOpen_ && !failed_) {
      awaitReaders(peer, nullptr, SIZE_MAX);
    }
    storeGlobal(&channel.links[peer].sent[static_cast<int>(kProtocol)], state_.sent[peer]);
  });
  if (threadIndex() == 0) {
    storeGlobal(&channel.sequence, sequence_ + 1);
  }
}

// ---- what a step does ----

// Where each peer reads the value that this step sends, as an array over the peers; nullptr: it must be
// copied into a slot.
template <class Element, Protocol kProtocol, class Epilogue>
PEAL_DEVICE const uint64_t* DevicePort<Element, kProtocol, Epilogue>::readableAt(const Step& s,
                                                                                 size_t sizeBytes) const {
  if (kProtocol != Protocol::Simple || s.to == kNone || sizeBytes < kReferenceLeastBytes) {
    return nullptr;
  }
  const uint64_t* at = nullptr;
  if (s.own == Own::Out || s.keep == Keep::Yes) {
    at = args_.outAt;
  } else if (s.from == kNone && args_.preMultiply == 0) {
    // One-shot all-reduce in place: every rank would wait for the others to have read its `in` before it
    // overwrites it, while reading theirs in that same step.
    const bool rewritten = s.to == kAll && args_.kind == pealStatAllReduce && args_.in == args_.out;
    at = rewritten ? nullptr : args_.inAt;
  }
  if (at == nullptr) {
    return nullptr;
  }
  if (s.to != kAll) {
    return at[s.to] != 0 ? at : nullptr;
  }
  PEAL_KEEP_LOOP
  for (int peer = 0; peer < size(); ++peer) {
    if (peer != rank() && at[peer] == 0) {
      return nullptr;
    }
  }
  return at;
}

template <class Element, Protocol kProtocol, class Epilogue>
PEAL_DEVICE typename DevicePort<Element, kProtocol, Epilogue>::Plan
DevicePort<Element, kProtocol, Epilogue>::planOf(const Step& s, Chunk c) const {
  const size_t inOffset = (c.offset - args_.inStart) * elementBytes();
  const size_t outOffset = (c.offset - args_.outStart) * elementBytes();
  const bool multiplies = s.own == Own::In && args_.preMultiply != 0;
  const bool divides = s.finish == Finish::Yes && args_.op == pealAvg;
  Plan plan{};
  plan.bytes = c.count * elementBytes();
  plan.own = s.own == Own::In ? args_.in + inOffset : args_.out + outOffset;
  if (s.keep == Keep::Yes) {
    const bool there = s.from == kNone && !multiplies && !divides && plan.own == args_.out + outOffset;
    plan.kept = there ? nullptr : args_.out + outOffset;
  }
  plan.place = placeFor(s.own != Own::None ? plan.own : args_.out + outOffset);
  const int received = s.from == kNone ? 0 : s.from == kAll ? size() - 1 : 1;
  plan.ownSource = s.own == Own::None ? -1 : s.from == kAll ? rank() : received;
  plan.sources = received + (s.own == Own::None ? 0 : 1);
  plan.readableAt = readableAt(s, plan.bytes);
  if (plan.readableAt != nullptr) {
    const bool input = plan.readableAt == args_.inAt;
    plan.referenced = input ? args_.in + inOffset : args_.out + outOffset;
    plan.readableOffset = input ? inOffset : outOffset;
  } else {
    plan.staged = s.to == kNone ? 0 : s.to == kAll ? size() - 1 : 1;
  }
  plan.rawSource = multiplies ? plan.ownSource : -1;
  plan.divideBy = divides ? size() : 0;
  return plan;
}

// ---- waiting ----

template <class Element, Protocol kProtocol, class Epilogue>
PEAL_DEVICE_CALL bool DevicePort<Element, kProtocol, Epilogue>::prepare(const Step& s, const Plan& plan) {
  bool ready = true;
  forMessagesOf(s.from, [&](int peer) {
    ready = ready && awaitArrival(peer, plan, state_.sources[s.from == kAll ? peer : 0]);
  });
  forSlotsOf(s.to, [&](int peer) {
    ready = ready && awaitCredit(peer, plan, state_.destinations[s.to == kAll ? otherIndex(peer) : 0]);
  });
  if (referencesOpen_ && plan.kept != nullptr) {
    forSlotsOf(kAll, [&](int peer) { ready = ready && awaitReaders(peer, plan.kept, plan.bytes); });
  }
  if (threadIndex() == 0) {
    if (plan.ownSource >= 0) {
      state_.sources[plan.ownSource] = plan.own;
    }
    if (plan.kept != nullptr) {
      state_.destinations[plan.staged] = plan.kept;
    }
  }
  return ready;
}

template <class Element, Protocol kProtocol, class Epilogue>
PEAL_DEVICE bool DevicePort<Element, kProtocol, Epilogue>::awaitArrival(int peer, const Plan& plan,
                                                                        const void*& source) {
  const ChannelBoxes link = boxes(peer);
  const uint64_t number = state_.received[peer] + 1;
  const Header expects = expected(plan.bytes);
  if constexpr (kProtocol == Protocol::Simple) {
    if (!waitUntil(args_.comm, peer, expects, [&] { return hasArrived(link, number); })) {
      return false;
    }
    const Envelope envelope = loadMessage(link, number);
    source = envelope.payload(link, number);
    return agrees(peer, expects, envelope.header);
  } else {
    const std::byte* slot = link.inbox + link.shape.lowSlot(link.channel, kProtocol, link.slotOf(number));
    Header header{};
    if (!waitUntil(args_.comm, peer, expects, [&] { return tryLoadHeader(slot, number, header); })) {
      return false;
    }
    source = slot + Lines<kProtocol>::kHeaderBytes;
    return agrees(peer, expects, header);
  }
}

template <class Element, Protocol kProtocol, class Epilogue>
PEAL_DEVICE bool DevicePort<Element, kProtocol, Epilogue>::awaitCredit(int peer, const Plan& plan,
                                                                       void*& destination) {
  const ChannelBoxes link = boxes(peer);
  const uint64_t number = state_.sent[peer] + 1;
  const Header header = expected(plan.bytes);
  if (!waitUntil(args_.comm, peer, header, [&] { return link.hasCredit(kProtocol, number); })) {
    return false;
  }
  if constexpr (kProtocol == Protocol::Simple) {
    if (plan.staged > 0) {
      destination = slotFor(link, number, plan.place);
    }
  } else {
    std::byte* slot = link.outbox + link.shape.lowSlot(link.channel, kProtocol, link.slotOf(number));
    storeHeader(slot, number, header);
    destination = slot + Lines<kProtocol>::kHeaderBytes;
  }
  return true;
}

// Until the peer has read every reference to a part of [begin, begin + sizeBytes), and no others: it may be
// unable to read a later one before this rank has gone on. A link has as many references as slots at most.
template <class Element, Protocol kProtocol, class Epilogue>
PEAL_DEVICE bool DevicePort<Element, kProtocol, Epilogue>::awaitReaders(int peer, const std::byte* begin,
                                                                        size_t sizeBytes) {
  const ChannelBoxes link = boxes(peer);
  const auto first = reinterpret_cast<uintptr_t>(begin);
  PEAL_KEEP_LOOP
  for (int slot = 0; slot < link.shape.slots; ++slot) {
    PortState::Reference& reference = state_.references[peer][slot];
    const auto at = reinterpret_cast<uintptr_t>(reference.begin);
    if (reference.bytes == 0 || at + reference.bytes <= first || (at >= first && at - first >= sizeBytes)) {
      continue;
    }
    // Free slots are those of messages that the peer has released.
    const uint64_t next = reference.number + static_cast<uint64_t>(link.shape.slots);
    if (!waitUntil(args_.comm, peer, expected(reference.bytes),
                   [&] { return link.hasCredit(kProtocol, next); })) {
      return false;
    }
    reference.bytes = 0;
  }
  return true;
}

// ---- moving ----

template <class Element, Protocol kProtocol, class Epilogue>
PEAL_DEVICE_CALL void DevicePort<Element, kProtocol, Epilogue>::moveBulk(const Plan& plan, Chunk c) {
  if (plan.destinations() == 0 || c.count == 0) {
    return;
  }
  if constexpr (kReduces<Element>) {
    reduceBlock<Element>(args_.digest.type, args_.op,
                         {.sources = state_.sources,
                          .destinations = state_.destinations,
                          .sourceCount = plan.sources,
                          .destinationCount = plan.destinations(),
                          .count = c.count,
                          .rawSource = plan.rawSource,
                          .divideBy = plan.divideBy,
                          .scalarBits = scalarBits_});
  } else {
    copyBlockTo(state_.destinations, plan.destinations(), state_.sources[0], plan.bytes);
  }
}

// The value goes to `out` first, where the epilogue turns it into what is kept and sent. The chunk is in the
// cache, so the second pass costs no memory traffic to speak of.
template <class Element, Protocol kProtocol, class Epilogue>
PEAL_DEVICE_CALL void DevicePort<Element, kProtocol, Epilogue>::moveFinished(const Plan& plan, Chunk c) {
  if constexpr (Epilogue::kActive) {
    std::byte* finished = args_.out + (c.offset - args_.outStart) * elementBytes();
    if (plan.kept != nullptr) {  // nullptr: it is there already
      Plan alone = plan;
      alone.staged = 0;
      if (threadIndex() == 0) {  // `kept` lies behind the slots: change places with the first of them
        void* slot = state_.destinations[0];
        state_.destinations[0] = finished;
        state_.destinations[plan.staged] = slot;
      }
      syncBlock();
      moveBulk(alone, c);
      syncBlock();
    }
    epilogue_(finished, c);
    syncBlock();
    if (plan.staged > 0) {
      const int first = plan.kept != nullptr ? 1 : 0;
      copyBlockTo(state_.destinations + first, plan.staged, finished, plan.bytes);
    }
  }
}

template <class Element, Protocol kProtocol, class Epilogue>
PEAL_DEVICE_CALL bool DevicePort<Element, kProtocol, Epilogue>::moveLines(const Step& s, const Plan& plan) {
  using L = Lines<kProtocol>;
  const auto numberFor = [&](int staged) { return state_.sent[s.to == kAll ? otherRank(staged) : s.to] + 1; };
  const auto lines = [&](int k) { return static_cast<std::byte*>(state_.destinations[k]); };
  const size_t units = (plan.bytes + kUnitBytes - 1) / kUnitBytes;
  PEAL_KEEP_LOOP
  for (size_t base = L::first(); base < units; base += L::stride()) {
    const size_t at = (base + L::lane()) * kUnitBytes;
    const size_t left = L::lane() < L::kLanes && at < plan.bytes ? plan.bytes - at : 0;
    const auto sizeBytes = static_cast<uint32_t>(left < kUnitBytes ? left : kUnitBytes);
    Vec16 value{};
    if (!gather(s, plan, base, sizeBytes, value)) {
      return false;
    }
    if (plan.kept != nullptr && sizeBytes > 0) {
      storeUnit(plan.kept + at, sizeBytes, value);
    }
    PEAL_KEEP_LOOP
    for (int k = 0; k < plan.staged; ++k) {
      L::store(lines(k), base, numberFor(k), value);
    }
  }
  if constexpr (kProtocol == Protocol::LL) {
    const size_t capacity = args_.comm.shape.payloadBytes(kProtocol) / kUnitBytes;
    PEAL_KEEP_LOOP
    for (int k = 0; k < plan.staged; ++k) {
      if (const uint64_t number = numberFor(k); sweeps(number, args_.comm.shape.slots)) {
        PEAL_KEEP_LOOP
        for (size_t base = units + L::first(); base < capacity; base += L::stride()) {
          L::store(lines(k), base, number, Vec16{});
        }
      }
    }
  }
  return true;
}

// One unit's value from all sources, in their order: lib/reduce/'s rules, with accumulators in registers and
// the lines of several sources under way at once. False: the block must leave.
template <class Element, Protocol kProtocol, class Epilogue>
PEAL_DEVICE bool DevicePort<Element, kProtocol, Epilogue>::gather(const Step& s, const Plan& plan,
                                                                  size_t base, uint32_t sizeBytes,
                                                                  Vec16& value) {
  using L = Lines<kProtocol>;
  constexpr int kAtOnce = 4;
  constexpr bool kSums = kReduces<Element>;
  const bool copies = !kSums || (plan.sources == 1 && plan.rawSource < 0 && plan.divideBy == 0);
  const auto peerOf = [&](int source) { return s.from == kAll ? source : s.from; };
  UnitSum sum{};
  PEAL_KEEP_LOOP
  for (int first = 0; first < plan.sources; first += kAtOnce) {
    // Sources [first, first + kAtOnce), as far as there are so many.
    Vec16 data[kAtOnce];
    PEAL_UNROLL
    for (int k = 0; k < kAtOnce; ++k) {
      if (first + k == plan.ownSource) {
        data[k] = loadUnit(plan.own + (base + L::lane()) * kUnitBytes, sizeBytes);
      }
    }
    uint64_t beganNs = 0;
    PEAL_KEEP_LOOP
    for (uint32_t spins = 1;; ++spins) {
      int missing = -1;
      PEAL_UNROLL
      for (int k = 0; k < kAtOnce; ++k) {
        const int source = first + k;
        if (source < plan.sources && source != plan.ownSource &&
            !L::tryLoad(static_cast<const std::byte*>(state_.sources[source]), base,
                        state_.received[peerOf(source)] + 1, data[k])) {
          missing = peerOf(source);
        }
      }
      if (missing < 0) {
        break;
      }
      if (spins % kSpinsPerLook == 0 &&
          L::any(!mayWait(args_.comm, missing, expected(plan.bytes), beganNs))) {
        return false;
      }
    }
    if (copies) {
      value = data[0];
      return true;
    }
    if constexpr (kSums) {
      PEAL_KEEP_LOOP
      for (int source = first; source < first + kAtOnce && source < plan.sources; ++source) {
        combineUnit(plan, source, data[0], sum);
        PEAL_UNROLL
        for (int k = 0; k + 1 < kAtOnce; ++k) {
          data[k] = data[k + 1];
        }
      }
    }
  }
  if constexpr (kSums) {
    withElement<Element>(args_.digest.type, [&](auto element) {
      auto lanes = sum.template as<UnitLanes<decltype(element)>>();
      if (plan.divideBy != 0) {
        divide(lanes, plan.divideBy);
      }
      value = vecOf(packFor(args_.op, lanes));
    });
  }
  return true;
}

template <class Element, Protocol kProtocol, class Epilogue>
PEAL_DEVICE void DevicePort<Element, kProtocol, Epilogue>::combineUnit(const Plan& plan, int source,
                                                                       Vec16 unit, UnitSum& sum) const {
  withElement<Element>(args_.digest.type, [&](auto element) {
    auto next = unpack<decltype(element)>(groupOf(unit));
    if (source == plan.rawSource) {
      preMultiply(next, scalarBits_);
    }
    if (source != 0) {
      auto before = sum.template as<UnitLanes<decltype(element)>>();
      withOperation(args_.op, [&](auto operation) { combineInto<decltype(operation)>(before, next); });
      next = before;
    }
    sum.set(next);
  });
}

// ---- handing over ----

template <class Element, Protocol kProtocol, class Epilogue>
PEAL_DEVICE_CALL void DevicePort<Element, kProtocol, Epilogue>::handOver(const Step& s, const Plan& plan) {
  forMessagesOf(s.from, [&](int peer) {
    const uint64_t number = ++state_.received[peer];
    storeRelease(boxes(peer).releases(kProtocol), number);  // pairs with ChannelBoxes::hasCredit
  });
  forSlotsOf(s.to, [&](int peer) {
    const uint64_t number = ++state_.sent[peer];
    if constexpr (kProtocol == Protocol::Simple) {
      uint64_t address = plan.place;
      const ChannelBoxes link = boxes(peer);
      if (plan.referenced != nullptr) {
        address = plan.readableAt[peer] + plan.readableOffset;
        state_.references[peer][link.slotOf(number)] = {plan.referenced, plan.bytes, number};
      }
      postMessage(link, number, address, expected(plan.bytes));
    }
  });
  referencesOpen_ = referencesOpen_ || plan.referenced != nullptr;
}

}  // namespace peal::cuda
