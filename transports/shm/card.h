// A rank's card: what it tells the others through the bootstrap before they connect.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "lib/base/node.h"
#include "lib/base/result.h"
#include "transports/shm/layout.h"
#include "transports/shm/segment.h"
#include "transports/shm/wire.h"

namespace peal::shm {

struct Card {
  uint64_t magic;
  uint32_t wireVersion;
  int32_t rank;
  int32_t pid;
  uint32_t slots;
  uint64_t slotBytes;
  NodeIdentity node;
  Nonce process;  // random per process
  Token segment;  // random per segment
  SocketName listener;
  // Not empty: this rank cannot take part, and why. It still comes to the exchange, so that the others
  // learn it at once instead of at their deadline.
  std::array<char, 512> failure;
};

// For a listener in the abstract namespace: "peal-" and 135 random bits.
SocketName randomName();

// A card of this process; listener and segment get random names.
Card makeCard(int rank, const Layout& layout);
void setFailure(Card& card, const Error& error);

std::vector<std::byte> encode(const Card& card);

// The cards of all ranks, checked: they are complete, of one machine, and agree with this rank's. `numbers`:
// what the ranks are called in sentences, if not by their own numbers.
Result<std::vector<Card>> decodeCards(const std::vector<std::vector<std::byte>>& blobs, const Card& mine,
                                      const std::vector<int>& numbers = {});

}  // namespace peal::shm
