// What fabrics say to each other: the header of every message, and the card that they exchange before they
// connect. Plain bytes in the order of the machine: all nodes are little-endian (the card says so).
#pragma once
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "transports/transport.h"

namespace peal::ucx {

enum class Kind : uint32_t {
  Data = 1,    // a message of the link; `sequence` counts those
  Credit = 2,  // only `released`
  Hello = 3,   // the first in each direction
  Ready = 4,   // the sender has the receiver's hello
  Leaving = 5  // `sequence` messages have been posted, and no more will be
};

// 64 bytes before the data, so that both lie in one piece of memory and the data is aligned.
struct Header {
  uint64_t token = 0;  // the receiver's: from its card
  Kind kind = Kind::Data;
  int32_t srcRank = -1;
  uint64_t sequence = 0;
  uint64_t released = 0;  // how many messages of the other direction the sender has released
  Digest digest;
  uint64_t unused = 0;
};
inline constexpr size_t kHeaderBytes = 64;
static_assert(sizeof(Header) == kHeaderBytes);
static_assert(std::is_trivially_copyable_v<Header>);

// A rank's card; `error` instead of an address when it cannot take part.
struct Card {
  uint64_t slotBytes = 0;
  uint64_t slots = 0;
  uint64_t token = 0;
  uint64_t socketBytes = 0;
  std::string ucxVersion;
  std::string error;
  std::vector<std::byte> address;
};
std::vector<std::byte> packCard(const Card& card);
// False: not a card of this version of peal.
bool unpackCard(std::span<const std::byte> bytes, Card& card);

}  // namespace peal::ucx
