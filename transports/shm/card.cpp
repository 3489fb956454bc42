#include "transports/shm/card.h"

#include <fmt/format.h>
#include <sodium.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <mutex>
#include <string_view>

namespace peal::shm {
namespace {

// One random value per process: a forked child gets its own.
Nonce processNonce() {
  static std::mutex mutex;  // guards the two below
  static pid_t owner = 0;
  static Nonce nonce;
  const std::lock_guard lock(mutex);
  if (owner != getpid()) {
    owner = getpid();
    randombytes_buf(nonce.data(), nonce.size());
  }
  return nonce;
}

std::string_view text(const std::array<char, 512>& chars) {
  return {chars.data(), strnlen(chars.data(), chars.size())};
}

}  // namespace

SocketName randomName() {
  SocketName name{};
  constexpr std::string_view kPrefix = "peal-";
  std::copy(kPrefix.begin(), kPrefix.end(), name.begin());
  for (size_t i = kPrefix.size(); i < name.size(); ++i) {
    name[i] = "0123456789abcdefghijklmnopqrstuv"[randombytes_uniform(32)];
  }
  return name;
}

Card makeCard(int rank, const Layout& layout) {
  Card card{};
  card.magic = kMagic;
  card.wireVersion = kWireVersion;
  card.rank = rank;
  card.pid = getpid();
  card.slots = layout.slots();
  card.slotBytes = layout.slotBytes();
  card.node = nodeIdentity();
  card.process = processNonce();
  randombytes_buf(card.segment.data(), card.segment.size());
  card.listener = randomName();
  return card;
}

void setFailure(Card& card, const Error& error) {
  const size_t length = std::min(error.message.size(), card.failure.size() - 1);
  std::memcpy(card.failure.data(), error.message.data(), length);
}

std::vector<std::byte> encode(const Card& card) {
  std::vector<std::byte> blob(sizeof card);
  std::memcpy(blob.data(), &card, sizeof card);
  return blob;
}

Result<std::vector<Card>> decodeCards(const std::vector<std::vector<std::byte>>& blobs, const Card& mine,
                                      const std::vector<int>& numbers) {
  const auto numberOf = [&](size_t rank) { return numbers.empty() ? static_cast<int>(rank) : numbers[rank]; };
  const int self = numberOf(static_cast<size_t>(mine.rank));
  std::vector<Card> cards(blobs.size());
  for (size_t i = 0; i < blobs.size(); ++i) {
    Card& card = cards[i];
    if (blobs[i].size() != sizeof(Card)) {
      return Error{pealRemoteError, fmt::format("rank {} sent a card of {} bytes instead of {}: another "
                                                "version of peal? Use the same on all ranks.",
                                                numberOf(i), blobs[i].size(), sizeof(Card))};
    }
    std::memcpy(&card, blobs[i].data(), sizeof card);
    if (card.magic != kMagic || card.wireVersion != kWireVersion) {
      return Error{pealRemoteError, fmt::format("rank {} speaks version {} of the shared-memory protocol, "
                                                "rank {} version {}. Use the same peal on all ranks.",
                                                numberOf(i), card.wireVersion, self, kWireVersion)};
    }
    if (card.rank != static_cast<int32_t>(i)) {
      return Error{pealInternalError, fmt::format("the card of rank {} says rank {}", i, card.rank)};
    }
    if (card.failure[0] != 0) {
      return Error{
          card.rank == mine.rank ? pealSystemError : pealRemoteError,
          fmt::format("rank {} (pid {}) cannot share memory: {}", numberOf(i), card.pid, text(card.failure))};
    }
    if (card.slots != mine.slots || card.slotBytes != mine.slotBytes) {
      return Error{pealInvalidUsage,
                   fmt::format("rank {} has {} slots of {} bytes, rank {} has {} of {}. Set PEAL_SLOTS and "
                               "PEAL_SLOT_BYTES equally on all ranks.",
                               numberOf(i), card.slots, card.slotBytes, self, mine.slots, mine.slotBytes)};
    }
    if (!sameMachine(card.node, mine.node)) {
      return Error{pealInvalidUsage,
                   fmt::format("rank {} runs on another machine ({}) than rank {} ({}): the "
                               "shared-memory transport joins ranks of one machine.",
                               numberOf(i), nodeName(card.node), self, nodeName(mine.node))};
    }
    if (!sameNode(card.node, mine.node)) {
      return Error{pealInvalidUsage,
                   fmt::format("rank {} and rank {} run in different network namespaces (containers), where "
                               "Unix sockets cannot meet. Start them in one, for example --network=host.",
                               numberOf(i), self)};
    }
  }
  return cards;
}

}  // namespace peal::shm
