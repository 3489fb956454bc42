// The messages of the control connections as bytes. They travel in the bootstrap's authenticated frames,
// whose type is the kind of message. Pure: no sockets.
#pragma once
#include <optional>
#include <string>

#include "lib/bootstrap/bytes.h"
#include "transports/transport.h"

namespace peal::network {

enum class Kind : uint32_t {
  StateRequest = 101,  // nothing: what are you doing?
  State = 102,         // a PeerState
  Farewell = 103,
  Fabric = 104,  // bytes of the fabric's own
};

inline constexpr size_t kFabricMessageMostBytes = 4096;
inline constexpr size_t kReasonMostBytes = 1000;
inline constexpr size_t kBodyMostBytes = kFabricMessageMostBytes + 64;  // of any message

// Why and how a peer left.
struct Farewell {
  int culpritRank = -1;  // -1: in good order
  // What it has done on the link to the receiver, so that the receiver knows what is still on its way: the
  // data travel another way than this message.
  uint64_t posted = 0;
  uint64_t released = 0;
  std::string reason;
};

Bytes encode(const PeerState& state);
Bytes encode(const Farewell& farewell);
// Nothing: malformed.
std::optional<PeerState> decodeState(ByteView body);
std::optional<Farewell> decodeFarewell(ByteView body);

}  // namespace peal::network
