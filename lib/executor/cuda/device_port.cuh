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

#include "algorithms/grouping.h"
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
  // Simple: whether p's next message is a term of the sum to come. Only the thread of p's messages touches
  // it.
  uint8_t held[kMostRanks];
  int nodeTable[groupingTableSize(kMostRanks)];  // of the grouping, where there are several nodes
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
constexpr int kTerms = -3;            // in place of a sender: those whose messages are held
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
  // Where ranks lie, after begin(). Simple only: the others run flat algorithms.
  PEAL_DEVICE Grouping nodes() const;
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

  // Terms are no steps: single threads wait for them and note where they lie, and nobody waits for those
  // threads before the sum, whose barrier is the first.
  PEAL_DEVICE_CALL void hold(int from, Chunk c);
  PEAL_DEVICE void holdIn(Chunk c) {
    rawTerm_ = terms_;
    holdOwn(args_.in + (c.offset - args_.inStart) * elementBytes());
  }
  PEAL_DEVICE void holdOut(Chunk c) { holdOwn(args_.out + (c.offset - args_.outStart) * elementBytes()); }
  PEAL_DEVICE void sumSend(int to, Chunk c) { sum({.from = kTerms, .to = to}, c); }
  PEAL_DEVICE void sumKeep(Chunk c) { sum({.from = kTerms, .keep = Keep::Yes}, c); }
  PEAL_DEVICE void sumCopy(Chunk c) { sum({.from = kTerms, .keep = Keep::Yes, .finish = Finish::Yes}, c); }

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
    failed_ = syncBlockOr(!termsCame_ || !prepare(s, plan));
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
  PEAL_DEVICE void sum(Step s, Chunk c) {
    step(s, c);
    terms_ = 0;
    rawTerm_ = -1;
  }
  PEAL_DEVICE void holdOwn(const std::byte* data) {
    if (threadIndex() == 0) {
      state_.sources[terms_] = data;
    }
    ++terms_;
  }
  PEAL_DEVICE Plan planOf(const Step& s, Chunk c) const;
  PEAL_DEVICE const uint64_t* readableAt(const Step& s, size_t sizeBytes) const;
  PEAL_DEVICE_CALL bool prepare(const Step& s, const Plan& plan);
  PEAL_DEVICE bool awaitArrival(int peer, size_t sizeBytes, const void*& source);
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
    if (peers == kNone || peers == kTerms) {
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
  // The terms of the next sum, in state_.sources: how many; which is own input; whether those that this
  // thread waited for came.
  int terms_ = 0, rawTerm_ = -1;
  bool termsCame_ = true;
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

}  // namespace peal::cuda

// What the class only declares.
#include "lib/executor/cuda/device_port_links.cuh"
#include "lib/executor/cuda/device_port_move.cuh"
