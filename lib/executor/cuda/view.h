// What host code hands to kernels: plain data, the same layout on both sides. Owns nothing.
//
// Box: everything that one rank writes for another, in the receiver's memory (or, for a peer that a proxy
// reaches, in pinned host memory that the proxy reads). Rank r's inbox from p is what p calls its outbox to
// r. A box has, for each channel:
//   tail      how many Simple messages the writer has posted
//   heads     credits: how many messages of the *other* direction the writer has released, per protocol
//   messages  one Message per Simple slot
//   slots     of slotBytes each, for Simple
//   LL, LL128 slots of lowSlotBytes each, flags included. Kept apart from `slots` and from each other:
//             a flag is never compared with what another protocol left behind.
// A box starts as zeros. Counters only grow; message k (from 1) lies in slot (k - 1) % slots. Both ends keep
// their counters in device memory between launches (ChannelState), never in arguments: a graph may launch the
// same arguments many times.
// Slots for Simple may lie apart from their box (SlotsApart); then those in the box are not used.
#pragma once
#include <cstddef>
#include <cstdint>

#include "algorithms/choice.h"
#include "algorithms/platform.h"

namespace peal::cuda {

constexpr int kMostRanks = 72;     // of one communicator on devices: arguments of a launch stay below 4 KiB
constexpr int kMostChannels = 32;  // blocks of a launch
constexpr int kMostSlots = 8;
constexpr size_t kLineBytes = 128;  // flags of different writers share no line

using peal::Protocol;
constexpr int kProtocols = 3;

// transports/transport.h's Digest in words. Kernels fill in the sequence.
struct DigestWords {
  uint64_t count;
  uint32_t sequence;
  int32_t root;
  uint8_t collective, type, op, algorithm;
  uint32_t protocol;

  PEAL_HD constexpr bool operator==(const DigestWords& other) const {
    return count == other.count && sequence == other.sequence && root == other.root &&
           collective == other.collective && type == other.type && op == other.op &&
           algorithm == other.algorithm && protocol == other.protocol;
  }
};
static_assert(sizeof(DigestWords) == 24);

// One Simple message as the receiver sees it.
struct alignas(64) Message {
  uint64_t address;  // below 16: in the slot, that far in; else where the receiver reads the payload
  uint64_t bytes;
  DigestWords digest;
};
static_assert(sizeof(Message) == 64);

struct BoxShape {
  int32_t channels = 0, slots = 0;
  uint32_t slotBytes = 0, lowSlotBytes = 0;  // multiples of 128

  PEAL_HD constexpr size_t channelBytes() const {
    const size_t n = static_cast<size_t>(slots);
    return 2 * kLineBytes + (n * sizeof(Message) + kLineBytes - 1) / kLineBytes * kLineBytes + n * slotBytes +
           2 * n * lowSlotBytes;
  }
  PEAL_HD constexpr size_t boxBytes() const { return static_cast<size_t>(channels) * channelBytes(); }
  // Offsets in a box.
  PEAL_HD constexpr size_t tail(int channel) const { return static_cast<size_t>(channel) * channelBytes(); }
  PEAL_HD constexpr size_t heads(int channel) const { return tail(channel) + kLineBytes; }
  PEAL_HD constexpr size_t message(int channel, int slot) const {
    return tail(channel) + 2 * kLineBytes + static_cast<size_t>(slot) * sizeof(Message);
  }
  PEAL_HD constexpr size_t slot(int channel, int slotIndex) const {
    return tail(channel + 1) - 2 * static_cast<size_t>(slots) * lowSlotBytes -
           static_cast<size_t>(slots - slotIndex) * slotBytes;
  }
  PEAL_HD constexpr size_t lowSlot(int channel, Protocol protocol, int slotIndex) const {
    const size_t behind = protocol == Protocol::LL128 ? 0 : static_cast<size_t>(slots) * lowSlotBytes;
    return tail(channel + 1) - behind - static_cast<size_t>(slots - slotIndex) * lowSlotBytes;
  }

  // The most bytes of one message: what CollectiveArgs::chunkCount may come to. A multiple of 16.
  // Simple: room is left to place the payload at the same offset, modulo 16, as in the sender's buffer. LL: 4
  // lines of 16 bytes are the header, and half of the others is flags. LL128: after a header of one line,
  // groups of 4 lines of 128 bytes, 120 of them data, which a warp moves together.
  PEAL_HD constexpr size_t payloadBytes(Protocol protocol) const {
    switch (protocol) {
      case Protocol::Simple:
        return slotBytes - 16;
      case Protocol::LL:
        return (lowSlotBytes - 64) / 32 * 16;
      case Protocol::LL128:
        return (lowSlotBytes - 128) / 512 * 480;
    }
    return 0;
  }
};

// Which collective a rank has come to, for peers that wait for it and may be in another one. `check` is mixed
// from the words (wait.cuh), so that a peer never takes parts of two for one.
struct Passage {
  DigestWords digest;
  uint64_t check;
};
static_assert(sizeof(Passage) == 32);
constexpr int kPassages = 8;  // the newest ones, the one with sequence s at s % kPassages

// A window: one line with the word that peers set when they fail and a note for them (window_notes.h), the
// rank's passages, which peers read, then the inboxes, in rank order.
struct WindowShape {
  BoxShape box;
  int32_t ranks = 1;

  static constexpr size_t kPassagesAt = kLineBytes;
  static constexpr size_t kInboxesAt = kPassagesAt + kPassages * sizeof(Passage);
  PEAL_HD constexpr size_t bytes() const { return inbox(ranks); }
  PEAL_HD constexpr size_t inbox(int srcRank) const {
    return kInboxesAt + static_cast<size_t>(srcRank) * box.boxBytes();
  }
};
static_assert(WindowShape::kInboxesAt % kLineBytes == 0);

// Counters of one channel to one peer. In device memory; only this rank's block of that channel touches it.
struct LinkState {
  uint64_t sent[kProtocols], received[kProtocols];
  uint32_t sendSequence, recvSequence;  // of point to point; channel by channel
};
struct ChannelState {
  uint64_t sequence;  // of collectives
  // Channel 0's: how many blocks of this rank, of all channels, are in kernels that may read peers' buffers.
  uint64_t reading;
  uint64_t pad[14];
  LinkState links[kMostRanks];
};

// What a kernel reports; in pinned host memory. The first fault stays.
enum class FaultKind : uint64_t { None, Stopped, Deadline, Digest, Bytes };
struct FaultRecord {
  uint64_t kind;  // FaultKind; claimed by compareExchange, the rest is valid once `complete` is 1
  uint64_t complete;
  int64_t peerRank;  // whom the block waited for, or who disagrees
  uint64_t channel;
  uint64_t expectedBytes, arrivedBytes;
  DigestWords expected, arrived;
};

// Host and kernels: pinned host memory, one per rank.
struct HostBoard {
  alignas(kLineBytes) uint64_t stop;  // nonzero: kernels leave at once
  alignas(kLineBytes) FaultRecord fault;
};

// Slots that lie apart from their boxes, in memory of the GPU that a network's devices read and write
// (proxy.h): those of every box in [boxes, boxes + bytes) lie `apart` bytes further on. No bytes: there are
// none.
struct SlotsApart {
  uint64_t boxes, bytes, apart;  // addresses as kernels have them; `apart` wraps around

  // To which BoxShape::slot is added.
  PEAL_HD std::byte* of(std::byte* box) const {
    const auto at = reinterpret_cast<uint64_t>(box);
    return at - boxes < bytes ? reinterpret_cast<std::byte*>(at + apart) : box;
  }
};

// One rank of one communicator as its kernels see it.
struct CommView {
  int32_t rank, ranks;
  int32_t nodes;             // 1: all ranks are on one node, and there is no table
  const int32_t* nodeTable;  // of groupRanks, in device memory of this rank
  BoxShape shape;
  ChannelState* channels;        // device memory of this rank
  uint64_t* stopped;             // device memory of this rank: nonzero when a peer has failed; peers write it
  HostBoard* board;              // as kernels address it
  uint64_t timeoutNs;            // of one wait
  SlotsApart slotsApart;         // of peers that a proxy reaches
  std::byte* inbox[kMostRanks];  // own entry unused
  std::byte* outbox[kMostRanks];
  uint64_t* peerStopped[kMostRanks];
};

// A collective of the kernels. Elements of the operation's array as in algorithms/port.h.
struct CollectiveArgs {
  CommView comm;
  DigestWords digest;  // sequence unused
  int32_t kind;        // pealStatAllReduce ...
  Algorithm algorithm;
  int32_t root;
  int32_t ahead;        // rounds that earlier stages run ahead (algorithms/pipeline.h)
  int32_t op;           // pealRedOp_t
  int32_t preMultiply;  // 1: own input times the scalar
  const void* scalar;   // device-readable, or nullptr: scalarBits
  uint64_t scalarBits;
  const std::byte* in;
  size_t inStart;  // element of the array at `in`
  std::byte* out;
  size_t outStart;
  size_t total;   // elements of the array
  int32_t parts;  // blocks: 1 or ranks
  int32_t hasStarts;
  size_t starts[kMostRanks + 1];
  size_t chunkCount;  // elements of one message at most
  // Where peer p reads this rank's `in` and `out` in its own address space; 0: it cannot.
  uint64_t inAt[kMostRanks], outAt[kMostRanks];
};
static_assert(sizeof(CollectiveArgs) <= 4096);

// A send or a receive of a group.
struct TransferArgs {
  int32_t peer;
  int32_t isSend;
  DigestWords digest;
  std::byte* data;  // of this rank
  uint64_t dataAt;  // sends: where the peer reads it; 0: it cannot
  uint64_t bytes;
};
constexpr int kMostTransfers = 256;
struct PointToPointArgs {
  CommView comm;
  int32_t count;
  TransferArgs transfers[kMostTransfers];
};
static_assert(sizeof(PointToPointArgs) <= 32764);

}  // namespace peal::cuda
