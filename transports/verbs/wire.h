// What ranks write to each other: the header of a slot, the immediate of a message, and the notes beside the
// data with which a queue pair is rebuilt.
//
// Arrival is told by the immediate, not by a flag behind the data:
// - Its completion promises that all bytes are visible. A flag relies on bytes being placed in order, which
//   adaptive routing and relaxed ordering on the bus give up.
// - It wakes a sleeper: a completion channel sees completions, not memory.
// - One look at one completion queue finds the arrivals of all peers; flags would be looked at per peer.
// - It carries the message's number, so that messages of several queue pairs may overtake each other, and a
//   message that is sent again over another one cannot be taken for the next.
// The price: each message consumes a receive, so as many are kept posted as can be on their way.
#pragma once
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "transports/transport.h"

namespace peal::verbs {

// The immediate: what it is, and the low bits of a number.
enum class Kind : uint32_t {
  Data = 0,    // message number ... is in its slot
  Credit = 1,  // so many messages have been released
  Ping = 2,    // the queue pair works
};
inline constexpr int kNumberBits = 30;
inline constexpr uint32_t kNumberMask = (1U << kNumberBits) - 1;

inline uint32_t immediateOf(Kind kind, uint64_t number) {
  return static_cast<uint32_t>(kind) << kNumberBits | (static_cast<uint32_t>(number) & kNumberMask);
}
inline Kind kindOf(uint32_t immediate) { return Kind{immediate >> kNumberBits}; }
// How far the number in an immediate is ahead of `base`; negative: behind.
inline int64_t distance(uint32_t immediate, uint64_t base) {
  const uint32_t ahead = (immediate - static_cast<uint32_t>(base)) & kNumberMask;
  return ahead <= kNumberMask / 2 ? int64_t{ahead} : int64_t{ahead} - (int64_t{kNumberMask} + 1);
}

// In front of a slot's data, written with it.
struct alignas(64) Header {
  uint64_t number = 0;
  uint64_t bytes = 0;
  Digest digest;
};
static_assert(sizeof(Header) == 64 && std::is_trivially_copyable_v<Header>);

// Beside the data, over the control plane.
enum class NoteKind : uint8_t {
  Rebuild = 1,  // my old queue pair is dead: this has arrived, and here is the new one
  Ready = 2,    // the new one is connected: send
  Bye = 3,      // I leave; all that I posted has arrived
  Credit = 4,   // so much I have released; no queue pair works that could bring it
};

struct Note {
  static constexpr uint32_t kMagic = 0x7065616c;  // "peal"

  uint32_t magic = kMagic;
  NoteKind kind = NoteKind::Rebuild;
  uint8_t lane = 0;
  uint8_t hasPair = 0;  // 0: none could be made
  uint8_t last = 0;     // 1: none will be made any more
  uint32_t generation = 0;
  uint32_t pairNumber = 0;
  uint32_t firstPacket = 0;
  uint32_t unused = 0;
  uint64_t released = 0;  // messages of the receiver of this note that its sender has released
  uint64_t arrived = 0;   // bit i: message released + i has arrived
  char reason[208] = {};  // why, for people
};
static_assert(std::is_trivially_copyable_v<Note>);

}  // namespace peal::verbs
