// A rank's card: where it listens for control connections. Goes through the exchange.
#pragma once
#include <vector>

#include "lib/bootstrap/auth.h"
#include "lib/bootstrap/socket.h"

namespace peal::network {

struct Card {
  Nonce listener{};                // random for each listener, so that no other one is taken for it
  std::vector<Address> addresses;  // where others can try, best first
};

inline constexpr size_t kAddressesMost = 64;

Bytes encode(const Card& card);
// An error if the blob is no card. No count in it is believed before it is bounded.
Result<Card> decodeCard(ByteView blob);

// What the handshake with that listener is proven with.
Key listenerKey(const Key& secret, int rank, const Card& card);

}  // namespace peal::network
