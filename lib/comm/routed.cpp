#include "lib/comm/routed.h"

#include <algorithm>
#include <cstring>

namespace peal {
namespace {

// Of a rank whose network cannot end its sleep: how long it sleeps between two looks.
constexpr int64_t kBlindSleepUs = 100;

}  // namespace

RoutedEndpoint::RoutedEndpoint(int rank, std::vector<int> localOf, std::unique_ptr<Endpoint> local,
                               std::unique_ptr<NetworkEndpoint> network)
    : localOf_(std::move(localOf)),
      local_(std::move(local)),
      network_(std::move(network)),
      slotBytes_(std::min(local_->slotBytes(), network_->slotBytes())),
      wakesUs_(network_->sleepElsewhere([bell = local_.get()] { bell->wake(); })) {
  for (int peer = 0; peer < static_cast<int>(localOf_.size()); ++peer) {
    Link* link = nullptr;
    if (peer != rank) {
      link = this->localOf(peer) >= 0 ? &local_->link(this->localOf(peer)) : &network_->link(peer);
    }
    links_.push_back(link);
  }
}

// ---- the same bytes to all: written into shared memory once, and copied once into the network's slot ----

std::byte* RoutedEndpoint::tryStageAll(size_t bytes) {
  stagedNetwork_ = network_->tryStageAll(bytes);
  stagedLocal_ = stagedNetwork_ != nullptr ? local_->tryStageAll(bytes) : nullptr;
  return stagedLocal_;
}

void RoutedEndpoint::postAll(size_t bytes, const Digest& digest) {
  if (bytes > 0) {
    std::memcpy(stagedNetwork_, stagedLocal_, bytes);
  }
  network_->postAll(bytes, digest);  // first: it takes longer
  local_->postAll(bytes, digest);
}

// ---- health ----

Result<void> RoutedEndpoint::progress(int waitingForRank) {
  const bool one = waitingForRank >= 0;  // and at one of the two ends only
  const bool here = one && localOf(waitingForRank) >= 0;
  const Result<void> local = local_->progress(here  ? localOf(waitingForRank)
                                              : one ? kNobody
                                                    : waitingForRank);
  const Result<void> network = network_->progress(here ? kNobody : waitingForRank);
  if (faultyFirst_ == nullptr && !(local && network)) {
    faultyFirst_ = !local ? local_.get() : network_.get();
  }
  if (faultyFirst_ == nullptr) {
    return {};
  }
  return faultyFirst_ == local_.get() ? local : network;
}

int RoutedEndpoint::culpritRank() const {
  if (faultyFirst_ != nullptr) {
    return faultyFirst_->culpritRank();
  }
  const int culprit = local_->culpritRank();
  return culprit >= 0 ? culprit : network_->culpritRank();
}

void RoutedEndpoint::announce(const Digest& digest, bool inside) {
  local_->announce(digest, inside);
  network_->announce(digest, inside);
}

PeerState RoutedEndpoint::peerState(int peerRank) {
  const int local = localOf(peerRank);
  return local >= 0 ? local_->peerState(local) : network_->peerState(peerRank);
}

// ---- sleeping: on the bell in shared memory, which the network's thread rings, too ----

uint32_t RoutedEndpoint::prepareSleep() {
  const uint32_t token = local_->prepareSleep();
  network_->prepareSleep();
  return token;
}

void RoutedEndpoint::sleep(uint32_t token, int64_t us) {
  if (network_->pending()) {
    local_->cancelSleep();
    return;
  }
  local_->sleep(token, wakesUs_ ? us : std::min(us, kBlindSleepUs));
}

void RoutedEndpoint::cancelSleep() {
  local_->cancelSleep();
  network_->cancelSleep();
}

void RoutedEndpoint::farewell(int culpritRank, const std::string& reason) {
  network_->farewell(culpritRank, reason);
  local_->farewell(culpritRank, reason);
}

}  // namespace peal
