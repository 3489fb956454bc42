// What two ends of a connection say to each other: a header, and after some its data. Plain bytes in the
// order of the machine: all nodes are little-endian.
#pragma once
#include <cstddef>
#include <type_traits>

#include "transports/transport.h"

namespace peal::tcp {

enum class Kind : uint32_t {
  Data = 1,    // `bytes` of data follow
  Credit = 2,  // only `released`
  Leaving = 3  // the last in its direction: that the connection ends after it is no fault
};

struct Header {
  Kind kind = Kind::Data;
  uint32_t bytes = 0;
  uint64_t released = 0;  // how many messages of the other direction the sender has released
  Digest digest;
};
inline constexpr size_t kHeaderBytes = 40;
static_assert(sizeof(Header) == kHeaderBytes);
static_assert(std::is_trivially_copyable_v<Header>);

}  // namespace peal::tcp
