// What two ends of a connection say to each other: a header, and after some its data. Plain bytes in the
// order of the machine: all nodes are little-endian.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "transports/transport.h"

namespace peal::tcp {

enum class Kind : uint32_t {
  Data = 1,    // `bytes` of data follow
  Credit = 2,  // only `released`
  Leaving = 3  // the last in its direction: that the connection ends after it is no fault
};

// A whole cache line: the system packs what it is given one after the other, from the beginning of a page on
// where it can, so data behind it keep their place in cache lines. Copies between places that differ in it
// are slower: with 40 bytes an all-reduce of 1 MiB takes 1.04 times as long, 1.2 times where cores share no
// cache (docs/NETWORKS.md).
struct Header {
  Kind kind = Kind::Data;
  uint32_t bytes = 0;
  uint64_t released = 0;  // how many messages of the other direction the sender has released
  Digest digest;
  std::array<uint64_t, 3> padding{};
};
inline constexpr size_t kHeaderBytes = 64;
static_assert(sizeof(Header) == kHeaderBytes);
static_assert(std::is_trivially_copyable_v<Header>);

}  // namespace peal::tcp
