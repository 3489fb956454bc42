// The shared pages of one rank: where everything lies, and who writes it.
//
// Every rank owns one segment (a sealed memory file). Its control part is written by the owner and by its
// peers, its staging part by the owner only (peers map that read-only):
//
//   control   header               owner, before anyone else sees it
//             bell                 owner (sleeping), peers (doorbell)
//             announcement         owner
//             credits, one line    peer p counts here the messages it has released from the owner
//              per peer
//             sharings, one line   the owner and peer p take parts here of a message of p's that both copy
//              per peer
//             rings, one per peer  peer p writes here the descriptors of its messages to the owner
//   staging   one area per peer    owner: bytes of messages to that peer, in slots and, if they are short, in
//                                  a ring of bytes behind them. The area at the owner's own index holds
//                                  what goes to all peers at once.
//
// A line that one side polls is written by the other side only, so a short message moves one cache line.
// Between two ranks of one process credits and rings lie in private memory of the same shape: what arrives
// there may be a bare pointer, and no other process must be able to forge one.
//
// Nothing here trusts what it reads: links check every value that a peer can write (link.cpp).
#pragma once
#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "transports/shm/byte_ring.h"
#include "transports/transport.h"

namespace peal::shm {

inline constexpr uint64_t kMagic = 0x36306d68736c6570;  // "pelshm06"; the digits change with the layout
inline constexpr size_t kInlineBytes = 32;              // payload that fits into a descriptor
using InlineBytes = std::array<std::byte, kInlineBytes>;

// What a message's bytes are.
enum class Kind : uint32_t {
  Inline = 1,   // in the descriptor
  Staged,       // in the sender's staging area for this peer, slot = message number modulo slots
  StagedAll,    // in the sender's staging area for all; words: slot, released count
  Pointer,      // words: bytes, address. Between ranks of one process only
  Region,       // words: bytes, region id, offset. In a memory file that came over the socket
  ProcessRead,  // words: bytes, address. Read with process_vm_readv
  Offer,        // words: bytes, address. The receiver copies what it wants with process_vm_readv
  Landed,       // no bytes: what the receiver lent has been written
  Short,        // in the sender's short staging for this peer; words: offset, released count
};

// One message, one cache line, written by the sender into the receiver's segment. All fields are relaxed
// atomics (plain moves on x86) but `flag`: the sender stores it last (release), the receiver polls it
// (acquire). `flag` is the message's number plus one, so a line needs no clearing.
// With Staged, Short, Region and ProcessRead the sender may lend memory: `extra` is the region's id, or 0,
// and the last word the offset in it. Inline, StagedAll and Short say how many messages the sender has
// released: ranks that answer each other never look at credit lines. Whole counts, since a message may be
// looked at after any number of others the other way.
struct alignas(kLine) Descriptor {
  std::atomic<uint32_t> flag;
  std::atomic<uint32_t> meta;  // kind in the upper 4 bits, bytes (of the first three kinds) below; with
                               // Inline these have 6 bits, below the released count's upper ones
  std::atomic<uint64_t> count;
  std::atomic<uint64_t> sequenceAndRoot;
  std::atomic<uint32_t> operation;  // collective, type, op, algorithm
  std::atomic<uint32_t> extra;      // with Inline the released count's lower half
  union {
    std::byte payload[kInlineBytes];
    std::atomic<uint64_t> words[kInlineBytes / 8];
  };

  static constexpr uint32_t kBytesBits = 28;
  static constexpr size_t kLoanWord = kInlineBytes / 8 - 1;
  static constexpr uint32_t kInlineBytesBits = 6;
  // Of Inline, below the kind: 54 bits of the count, more than are ever counted.
  static constexpr uint32_t inlineMeta(size_t bytes, uint64_t released) {
    return (static_cast<uint32_t>(released >> 32) << kInlineBytesBits | static_cast<uint32_t>(bytes)) &
           ((1U << kBytesBits) - 1);
  }
  static constexpr size_t bytesOfInline(uint32_t meta) { return meta & ((1U << kInlineBytesBits) - 1); }
  static constexpr uint64_t releasedOfInline(uint32_t meta, uint32_t extra) {
    return uint64_t{(meta & ((1U << kBytesBits) - 1)) >> kInlineBytesBits} << 32 | extra;
  }
  void setDigest(const Digest& digest);
  Digest digest() const;
};
static_assert(sizeof(Descriptor) == kLine);
static_assert(std::atomic<uint64_t>::is_always_lock_free && std::atomic<uint32_t>::is_always_lock_free);

struct alignas(kLine) Header {
  uint64_t magic;
  uint64_t slotBytes;
  int32_t rank;
  int32_t size;
  uint32_t slots;
  uint32_t fencesPosters;  // before it sleeps the owner makes its peers fence (lib/base/fences.h)
};

// How a sleeping rank is woken. Pairing (Dekker): the sleeper sets `sleeping`, fences and looks at its rings
// and credits once more; a peer writes a ring or a credit, fences and looks at `sleeping`. One of them sees
// the other. Where the system can fence others (lib/base/fences.h), the sleeper does that to all, and who
// posts need not. A peer that sees `sleeping` adds to the doorbell, on which the sleeper's futex waits.
struct alignas(kLine) Bell {
  std::atomic<uint32_t> sleeping;
  std::atomic<uint32_t> doorbell;
};

// What the owner does, guarded by a sequence lock: odd while it is being written.
struct alignas(kLine) Announcement {
  std::atomic<uint32_t> version;
  std::atomic<uint32_t> inside;
  std::atomic<uint64_t> count;
  std::atomic<uint64_t> sequenceAndRoot;
  std::atomic<uint32_t> operation;

  void write(const Digest& digest, bool isInside);
  PeerState read() const;
};

// Messages that a peer has released, of those that the owner sent to it. Stored (release) by that peer,
// loaded (acquire) by the owner before it writes a slot again.
// `inUse` says that the same peer is at the owner's own memory: it reads what the owner referred to, or
// writes what the owner lent (Withdrawal).
struct alignas(kLine) Credit {
  std::atomic<uint64_t> released;
  std::atomic<uint32_t> inUse;
};

// Whether the owner takes its memory back although peers may not have seen every message. Pairing (Dekker): a
// peer sets `inUse`, fences and looks at `done` before it touches the owner's memory; the owner sets `done`,
// fences and waits until `inUse` is 0. One of them sees the other.
struct alignas(kLine) Withdrawal {
  std::atomic<uint32_t> done;
};

// A message that its receiver reads in place and copies together with its sender, who writes memory of the
// receiver's (Link::share). Each takes a part by adding one to `taken`, which names the message, so that
// nobody takes a part of an older one. The receiver writes the place first and `taken` last (release); the
// sender takes a part (acquire) before it looks at the place, which stays until it has counted that part as
// written.
struct alignas(kLine) Sharing {
  std::atomic<uint64_t> taken;    // number of the message << kPartBits | parts taken
  std::atomic<uint64_t> offset;   // where it goes, in a region of the receiver's
  std::atomic<uint32_t> region;   // its id
  std::atomic<uint32_t> written;  // parts that the sender has written

  static constexpr int kPartBits = 16;
  static constexpr uint64_t kPartMask = (uint64_t{1} << kPartBits) - 1;
  // Fewer bytes are copied before the other side has seen that it may help.
  static constexpr size_t kLeastBytes = size_t{128} << 10;
  // So many parts that nobody waits long for the other's last, and each worth taking.
  static constexpr size_t kParts = 32;
  static constexpr size_t kLeastPartBytes = size_t{32} << 10;
  // Nor longer to write than a receiver that gives up waits (ShmEndpoint::withdraw), however long the
  // message.
  static constexpr size_t kMostPartBytes = size_t{8} << 20;
  // Whole pages.
  static constexpr size_t partBytes(size_t bytes) {
    const size_t most = std::max<size_t>(kMostPartBytes, bytes / (kPartMask / 2));
    return std::max(kLeastPartBytes, (std::min(bytes / kParts, most) / 4096 + 1) * 4096);
  }
  static constexpr uint64_t partsOf(size_t bytes) {
    return (bytes + partBytes(bytes) - 1) / partBytes(bytes);
  }
};
static_assert(Sharing::partsOf(Sharing::kLeastBytes) > 1 &&
              Sharing::partsOf(~size_t{0} / 2) <= Sharing::kPartMask);

// Offsets, all multiples of a line; equal on all ranks because size, slots and slotBytes are.
class Layout {
 public:
  Layout(int size, uint32_t slots, size_t slotBytes);
  int size() const { return size_; }
  uint32_t slots() const { return slots_; }
  size_t slotBytes() const { return slotBytes_; }
  size_t controlBytes() const { return controlBytes_; }  // whole pages
  size_t stagingBytes() const { return stagingBytes_; }  // whole pages
  size_t totalBytes() const { return controlBytes_ + stagingBytes_; }
  size_t creditOffset(int peer) const { return kCreditsAt + static_cast<size_t>(peer) * sizeof(Credit); }
  size_t sharingOffset(int peer) const {
    return creditOffset(size_) + static_cast<size_t>(peer) * sizeof(Sharing);
  }
  size_t ringOffset(int peer) const {
    return sharingOffset(size_) + static_cast<size_t>(peer) * kRingEntries * sizeof(Descriptor);
  }
  // From the start of the staging part.
  size_t stagingOffset(int peer) const {
    return static_cast<size_t>(peer) * (slots_ * slotBytes_ + ByteRing::kBytes);
  }
  size_t shortOffset(int peer) const { return stagingOffset(peer) + slots_ * slotBytes_; }

 private:
  static constexpr size_t kCreditsAt =
      sizeof(Header) + sizeof(Bell) + sizeof(Announcement) + sizeof(Withdrawal);
  int size_;
  uint32_t slots_;
  size_t slotBytes_;
  size_t controlBytes_;
  size_t stagingBytes_;
};

// Typed access to a control part (of a segment, or the private one of the same shape).
struct Control {
  std::byte* base = nullptr;
  Header& header() const { return *reinterpret_cast<Header*>(base); }
  Bell& bell() const { return *reinterpret_cast<Bell*>(base + sizeof(Header)); }
  Announcement& announcement() const {
    return *reinterpret_cast<Announcement*>(base + sizeof(Header) + sizeof(Bell));
  }
  Withdrawal& withdrawal() const {
    return *reinterpret_cast<Withdrawal*>(base + sizeof(Header) + sizeof(Bell) + sizeof(Announcement));
  }
  Credit& credit(const Layout& layout, int peer) const {
    return *reinterpret_cast<Credit*>(base + layout.creditOffset(peer));
  }
  Sharing& sharing(const Layout& layout, int peer) const {
    return *reinterpret_cast<Sharing*>(base + layout.sharingOffset(peer));
  }
  Descriptor* ring(const Layout& layout, int peer) const {
    return reinterpret_cast<Descriptor*>(base + layout.ringOffset(peer));
  }
};

}  // namespace peal::shm
