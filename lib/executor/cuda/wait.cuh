// How threads of a kernel wait, how they give up, and what travels with every message. Used by the device
// port and the point-to-point kernel.
//
// A wait is one thread's loop over one condition. After a spin budget it also looks whether the communicator
// has been stopped, here or by a peer, and whether its deadline has passed. A fault goes to the host's board
// (the first one stays), and whoever meets one first tells this rank's other blocks and the peers. All
// threads of a block then leave together: by the next barrier.
#pragma once
#include <cstddef>
#include <cstdint>

#include "lib/executor/cuda/device.h"
#include "lib/executor/cuda/elements.cuh"
#include "lib/executor/cuda/view.h"

namespace peal::cuda {

// The digest of an operation and the bytes of one message, as words.
constexpr int kDigestWords = 3;
struct Header {
  uint64_t word[kDigestWords + 1];

  PEAL_DEVICE uint64_t bytes() const { return word[kDigestWords]; }
  PEAL_DEVICE uint32_t sequence() const { return static_cast<uint32_t>(word[1]); }
  PEAL_DEVICE bool sameDigest(const Header& other) const {
    return word[0] == other.word[0] && word[1] == other.word[1] && word[2] == other.word[2];
  }
};
static_assert(offsetof(DigestWords, sequence) == 8);
PEAL_DEVICE Header headerOf(const DigestWords& digest, uint64_t sizeBytes) {
  struct Words {
    uint64_t word[kDigestWords];
  };
  const Words words = bitsAs<Words>(digest);
  return {{words.word[0], words.word[1], words.word[2], sizeBytes}};
}

// ---- faults ----
PEAL_DEVICE void storeDigest(DigestWords* to, const Header& header) {
  auto* words = reinterpret_cast<uint64_t*>(to);
  PEAL_UNROLL
  for (int i = 0; i < kDigestWords; ++i) {
    storeGlobal(words + i, header.word[i]);
  }
}

// Called by one thread, which then makes its block leave.
PEAL_DEVICE_CALL void report(const CommView& comm, FaultKind kind, int peerRank, const Header& expected,
                             const Header& arrived) {
  FaultRecord& fault = comm.board->fault;
  if (compareExchange(&fault.kind, static_cast<uint64_t>(FaultKind::None), static_cast<uint64_t>(kind)) ==
      static_cast<uint64_t>(FaultKind::None)) {
    storeGlobal(&fault.peerRank, static_cast<int64_t>(peerRank));
    storeGlobal(&fault.channel, static_cast<uint64_t>(blockIndex()));
    storeGlobal(&fault.expectedBytes, expected.bytes());
    storeGlobal(&fault.arrivedBytes, arrived.bytes());
    storeDigest(&fault.expected, expected);
    storeDigest(&fault.arrived, arrived);
    storeRelease(&fault.complete, 1);  // pairs with the executor's acquire of `complete`
  }
  if (kind == FaultKind::Stopped) {
    return;  // whoever stopped us tells the others
  }
  // Pairs with the loads in mayWait, here and on the peers.
  const auto origin = static_cast<uint64_t>(comm.rank + 1);
  storeRelease(comm.stopped, origin);
  PEAL_KEEP_LOOP
  for (int peer = 0; peer < comm.ranks; ++peer) {
    if (peer != comm.rank && comm.peerStopped[peer] != nullptr) {
      storeRelease(comm.peerStopped[peer], origin);
    }
  }
}

// Whether a peer or another block of this rank has failed. The word is 1 + the rank that did.
PEAL_DEVICE bool stoppedByOthers(const CommView& comm, const Header& expected) {
  const uint64_t stopped = loadAcquire(comm.stopped);  // pairs with report's releases
  if (stopped == 0) {
    return false;
  }
  report(comm, FaultKind::Stopped, static_cast<int>(stopped) - 1, expected, Header{});
  return true;
}

// ---- readers ----
// By one thread of a block whose messages may be references, before it looks whether the communicator was
// stopped. Pairing (Dekker): the block counts itself and then loads comm.stopped; the host stores that word
// and then reads the count (Resources::endKernels). So the host sees the block, or the block leaves before it
// reads a peer's buffer. The addition has been made in memory when it returns, and acquires: the load is
// later.
PEAL_DEVICE void beginReading(const CommView& comm) { fetchAdd(&comm.channels->reading, 1); }
// After a barrier behind the block's last read; releases.
PEAL_DEVICE void endReading(const CommView& comm) { fetchAdd(&comm.channels->reading, ~uint64_t{0}); }

// ---- passages ----
// Every rank counts the collectives of channel 0, whatever launched them. So two ranks that came to different
// ones with the same number disagree, even if no message of one ever meets a wait of the other: the protocols
// may differ with the counts, and ranks that differ on the root may all wait.

PEAL_DEVICE uint64_t mixed(uint64_t sum, uint64_t word) {
  sum = (sum ^ word) * 0xff51afd7ed558ccd;
  return sum ^ sum >> 32;
}
constexpr uint64_t kUnmixed = 0x9e3779b97f4a7c15;

PEAL_DEVICE uint64_t* passageOf(uint64_t* window, const Header& digest) {
  const size_t place = digest.sequence() % kPassages;
  return window + (WindowShape::kPassagesAt + place * sizeof(Passage)) / sizeof(uint64_t);
}

// By one thread of channel 0. Nothing is ordered by it: readers know by the check what belongs together.
PEAL_DEVICE void notePassage(const CommView& comm, const Header& digest) {
  uint64_t* const to = passageOf(comm.stopped, digest);
  uint64_t check = kUnmixed;
  PEAL_KEEP_LOOP
  for (int i = 0; i < kDigestWords; ++i) {
    storeRelaxed(to + i, digest.word[i]);
    check = mixed(check, digest.word[i]);
  }
  storeRelaxed(to + kDigestWords, check);
}

// Whether the peer came to another collective, `theirs`, where this rank came to `expected`. The loop keeps
// the registers few: whoever waits has its own alive.
PEAL_DEVICE bool strayed(const CommView& comm, int peer, const Header& expected, Header& theirs) {
  uint64_t* const window = comm.peerStopped[peer];
  if (blockIndex() != 0 || window == nullptr) {
    return false;
  }
  const uint64_t* const from = passageOf(window, expected);
  uint64_t check = kUnmixed;
  PEAL_KEEP_LOOP
  for (int i = 0; i < kDigestWords; ++i) {
    theirs.word[i] = loadRelaxed(from + i);
    check = mixed(check, theirs.word[i]);
  }
  return loadRelaxed(from + kDigestWords) == check && theirs.sequence() == expected.sequence() &&
         !theirs.sameDigest(expected);
}

// ---- waiting ----
// The slow part of a wait: whether it may go on. beganNs: 0 before the first call of a wait.
template <bool kInCollective>
PEAL_DEVICE bool mayGoOnWaiting(const CommView& comm, int peer, const Header& expected, uint64_t& beganNs) {
  if (stoppedByOthers(comm, expected)) {
    return false;
  }
  FaultKind fault = FaultKind::None;
  int culprit = peer;
  Header theirs{};
  if (loadRelaxed(&comm.board->stop) != 0) {
    fault = FaultKind::Stopped;
    culprit = comm.rank;
  } else if (kInCollective && strayed(comm, peer, expected, theirs)) {
    fault = FaultKind::Digest;
  } else {
    const uint64_t now = clockNs();
    if (beganNs == 0) {
      beganNs = now;
    }
    if (now - beganNs < comm.timeoutNs) {
      return true;
    }
    fault = FaultKind::Deadline;
  }
  report(comm, fault, culprit, expected, theirs);
  return false;
}

PEAL_DEVICE_CALL bool mayWait(const CommView& comm, int peer, const Header& expected, uint64_t& beganNs) {
  return mayGoOnWaiting<false>(comm, peer, expected, beganNs);
}
// Whoever waits in the midst of a message (device_port_move.cuh) has no registers left for this one.
PEAL_DEVICE_CALL bool mayWaitInCollective(const CommView& comm, int peer, const Header& expected,
                                          uint64_t& beganNs) {
  return mayGoOnWaiting<true>(comm, peer, expected, beganNs);
}

// Until `ready()`; false: the block must leave.
template <class Ready>
PEAL_DEVICE bool waitUntil(const CommView& comm, int peer, const Header& expected, const Ready& ready) {
  uint64_t beganNs = 0;
  PEAL_KEEP_LOOP
  for (uint32_t spins = 1; !ready(); ++spins) {
    if (spins % kSpinsPerLook == 0 && !mayWait(comm, peer, expected, beganNs)) {
      return false;
    }
  }
  return true;
}
template <class Ready>
PEAL_DEVICE bool waitInCollective(const CommView& comm, int peer, const Header& expected,
                                  const Ready& ready) {
  uint64_t beganNs = 0;
  PEAL_KEEP_LOOP
  for (uint32_t spins = 1; !ready(); ++spins) {
    if (spins % kSpinsPerLook == 0 && !mayWaitInCollective(comm, peer, expected, beganNs)) {
      return false;
    }
  }
  return true;
}

// What is wrong with a message where this rank expects another.
PEAL_DEVICE FaultKind disagreement(const Header& expected, const Header& arrived) {
  return !expected.sameDigest(arrived)         ? FaultKind::Digest
         : expected.bytes() != arrived.bytes() ? FaultKind::Bytes
                                               : FaultKind::None;
}

// ---- one channel of a box ----
// Both directions between this rank and a peer: what the peer writes lies in `inbox`, what it reads in
// `outbox`.
struct ChannelBoxes {
  const BoxShape& shape;
  std::byte* inbox;
  std::byte* outbox;
  int channel;
  const SlotsApart& apart;

  PEAL_DEVICE const uint64_t* arrivals() const { return word(inbox, shape.tail(channel)); }
  PEAL_DEVICE uint64_t* posts() const { return word(outbox, shape.tail(channel)); }
  PEAL_DEVICE const uint64_t* credits(Protocol protocol) const {
    return word(inbox, shape.heads(channel)) + static_cast<int>(protocol);
  }
  PEAL_DEVICE uint64_t* releases(Protocol protocol) const {
    return word(outbox, shape.heads(channel)) + static_cast<int>(protocol);
  }
  // Message `number` counts from 1.
  PEAL_DEVICE int slotOf(uint64_t number) const {
    return static_cast<int>((number - 1) % static_cast<uint64_t>(shape.slots));
  }
  // The slot of Simple of message `number`.
  PEAL_DEVICE std::byte* slot(std::byte* box, uint64_t number) const {
    return apart.of(box) + shape.slot(channel, slotOf(number));
  }
  // Whether there is a free slot for message `number`. The acquire pairs with the receiver's release of the
  // slot: its reads come before the writes that follow.
  PEAL_DEVICE bool hasCredit(Protocol protocol, uint64_t number) const {
    return loadAcquire(credits(protocol)) + static_cast<uint64_t>(shape.slots) >= number;
  }

 private:
  PEAL_DEVICE static uint64_t* word(std::byte* box, size_t offset) {
    return reinterpret_cast<uint64_t*>(box + offset);
  }
};

PEAL_DEVICE ChannelBoxes boxesOf(const CommView& comm, int peer) {
  return {comm.shape, comm.inbox[peer], comm.outbox[peer], static_cast<int>(blockIndex()), comm.slotsApart};
}

// Below this a message is cheaper to copy into a slot than to read in place: a reference costs the sender a
// wait at the operation's end.
constexpr size_t kReferenceLeastBytes = 4096;

// ---- Simple messages: payload, then a description, then the tail ----
// An address below this is a payload's place in its slot: the sender's buffer modulo 16. So vectors of 16
// bytes fit the sender's copy, and the receiver's if its buffer lies like the sender's.
constexpr uint64_t kPlaces = sizeof(Vec16);
PEAL_DEVICE uint64_t placeFor(const void* data) { return reinterpret_cast<uintptr_t>(data) % kPlaces; }

PEAL_DEVICE std::byte* slotFor(const ChannelBoxes& boxes, uint64_t number, uint64_t place) {
  return boxes.slot(boxes.outbox, number) + place;
}

// After the payload, made visible to this thread by a barrier. The release pairs with hasArrived's acquire.
PEAL_DEVICE void postMessage(const ChannelBoxes& boxes, uint64_t number, uint64_t address,
                             const Header& header) {
  auto* to =
      reinterpret_cast<uint64_t*>(boxes.outbox + boxes.shape.message(boxes.channel, boxes.slotOf(number)));
  storeGlobal(to, address);
  storeGlobal(to + 1, header.bytes());
  storeGlobal(to + 2, header.word[0]);
  storeGlobal(to + 3, header.word[1]);
  storeGlobal(to + 4, header.word[2]);
  storeRelease(boxes.posts(), number);
}
static_assert(offsetof(Message, bytes) == 8 && offsetof(Message, digest) == 16);

PEAL_DEVICE bool hasArrived(const ChannelBoxes& boxes, uint64_t number) {
  return loadAcquire(boxes.arrivals()) >= number;
}

// A message as it arrived: once hasArrived.
struct Envelope {
  uint64_t address;
  Header header;

  PEAL_DEVICE const std::byte* payload(const ChannelBoxes& boxes, uint64_t number) const {
    return address < kPlaces ? boxes.slot(boxes.inbox, number) + address
                             : reinterpret_cast<const std::byte*>(address);
  }
};
PEAL_DEVICE Envelope loadMessage(const ChannelBoxes& boxes, uint64_t number) {
  const auto* from = reinterpret_cast<const uint64_t*>(
      boxes.inbox + boxes.shape.message(boxes.channel, boxes.slotOf(number)));
  return {loadGlobal(from),
          {{loadGlobal(from + 2), loadGlobal(from + 3), loadGlobal(from + 4), loadGlobal(from + 1)}}};
}

}  // namespace peal::cuda
