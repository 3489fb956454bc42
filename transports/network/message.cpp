#include "transports/network/message.h"

#include <algorithm>

namespace peal::network {
namespace {

// Takes integers from the front of a body whose length was checked.
class Reader {
 public:
  explicit Reader(ByteView bytes) : bytes_(bytes) {}
  template <class Integer>
  Integer take() {
    const auto value = readInteger<Integer>(bytes_);
    bytes_ = bytes_.subspan(sizeof(Integer));
    return value;
  }
  ByteView rest() const { return bytes_; }

 private:
  ByteView bytes_;
};

constexpr size_t kStateBytes = 1 + 8 + 4 + 4 + 4;
constexpr size_t kFarewellBytes = 4 + 8 + 8;
constexpr uint8_t kKnown = 1;
constexpr uint8_t kInside = 2;

}  // namespace

Bytes encode(const PeerState& state) {
  const Digest& digest = state.digest;
  Bytes body;
  appendInteger(body, static_cast<uint8_t>((state.known ? kKnown : 0) | (state.inside ? kInside : 0)));
  appendInteger(body, digest.count);
  appendInteger(body, digest.sequence);
  appendInteger(body, digest.root);
  for (const uint8_t field : {digest.collective, digest.type, digest.op, digest.algorithm}) {
    appendInteger(body, field);
  }
  return body;
}

std::optional<PeerState> decodeState(ByteView body) {
  if (body.size() != kStateBytes) {
    return std::nullopt;
  }
  Reader reader(body);
  PeerState state;
  const auto flags = reader.take<uint8_t>();
  state.known = (flags & kKnown) != 0;
  state.inside = (flags & kInside) != 0;
  state.digest.count = reader.take<uint64_t>();
  state.digest.sequence = reader.take<uint32_t>();
  state.digest.root = reader.take<int32_t>();
  for (uint8_t* field :
       {&state.digest.collective, &state.digest.type, &state.digest.op, &state.digest.algorithm}) {
    *field = reader.take<uint8_t>();
  }
  return state;
}

Bytes encode(const Farewell& farewell) {
  Bytes body;
  appendInteger(body, static_cast<int32_t>(farewell.culpritRank));
  appendInteger(body, farewell.posted);
  appendInteger(body, farewell.released);
  append(body, viewOf(std::string_view(farewell.reason).substr(0, kReasonMostBytes)));
  return body;
}

std::optional<Farewell> decodeFarewell(ByteView body) {
  if (body.size() < kFarewellBytes || body.size() > kFarewellBytes + kReasonMostBytes) {
    return std::nullopt;
  }
  Reader reader(body);
  Farewell farewell;
  farewell.culpritRank = reader.take<int32_t>();
  farewell.posted = reader.take<uint64_t>();
  farewell.released = reader.take<uint64_t>();
  farewell.reason = std::string(textOf(reader.rest()));
  return farewell;
}

}  // namespace peal::network
