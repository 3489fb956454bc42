// Copies that receiver and sender make together (layout.h, Sharing): where one rank has a message for another
// that reads it in place, and nothing else to do, both cores copy.
#include <algorithm>

#include "transports/shm/bell.h"
#include "transports/shm/link.h"

namespace peal::shm {
namespace {

// Takes the next part of that message if the line still names it. Pairs with the store in share(): who has
// taken a part sees the place.
bool takeNext(Sharing& sharing, uint64_t number, uint64_t parts, uint64_t& part) {
  uint64_t seen = sharing.taken.load(std::memory_order_acquire);
  do {
    part = seen & Sharing::kPartMask;
    if (seen >> Sharing::kPartBits != number || part >= parts) {
      return false;
    }
  } while (!sharing.taken.compare_exchange_weak(seen, seen + 1, std::memory_order_acq_rel,
                                                std::memory_order_acquire));
  return true;
}

Part partOf(const std::byte* from, std::byte* to, size_t bytes, uint64_t part) {
  const size_t offset = part * Sharing::partBytes(bytes);
  return {from + offset, to + offset, std::min(Sharing::partBytes(bytes), bytes - offset)};
}

}  // namespace

// ---- receiver ----

bool ShmLink::share(std::byte* memory) {
  uint64_t offset = 0;
  if (!shown_ || arrival_.data == nullptr || arrival_.bytes < Sharing::kLeastBytes) {
    return false;
  }
  const uint32_t region = sharedRegionOf(memory, arrival_.bytes, offset);
  if (region == 0) {
    return false;
  }
  shares_ = true;
  sharedTo_ = memory;
  partsTaken_ = 0;
  sharing_.offset.store(offset, std::memory_order_relaxed);
  sharing_.region.store(region, std::memory_order_relaxed);
  sharing_.written.store(0, std::memory_order_relaxed);
  sharing_.taken.store((received_ + 1) << Sharing::kPartBits, std::memory_order_release);
  fenceForSleeper();
  wakeIfAsleep();
  return true;
}

bool ShmLink::takeShared(Part& part) {
  uint64_t number = 0;
  if (!shares_ || !shown_ || !takeNext(sharing_, received_ + 1, Sharing::partsOf(arrival_.bytes), number)) {
    return false;
  }
  if (++partsTaken_ > Sharing::partsOf(arrival_.bytes)) {
    return malformed("it gave back parts of a copy that were taken");
  }
  part = partOf(arrival_.data, sharedTo_, arrival_.bytes, number);
  return true;
}

bool ShmLink::shareDone() {
  if (!shares_) {
    return true;
  }
  // Pairs with the store in partDone(): what the peer wrote is there.
  const uint64_t written = sharing_.written.load(std::memory_order_acquire);
  const uint64_t parts = Sharing::partsOf(arrival_.bytes);
  if (written + partsTaken_ > parts) {
    return malformed("it wrote more parts of a copy than there are");
  }
  shares_ = written + partsTaken_ < parts;
  return !shares_;
}

// ---- sender ----

void ShmLink::noteReference(const std::byte* data, size_t bytes) {
  if (bytes >= Sharing::kLeastBytes) {
    referred_.resize(slots_);
    referred_[posted_ % slots_] = {posted_, data, bytes};
  }
}

// The claim comes after mayUse() and before the look at the place: a part that is taken keeps the receiver
// from ending the copy, and a receiver that has withdrawn waits until this rank lets go.
bool ShmLink::takePart(Part& part) {
  if (referred_.empty() || slots_ == 0 || shown_) {
    return false;
  }
  const uint64_t number = theirSharing_.taken.load(std::memory_order_relaxed) >> Sharing::kPartBits;
  Referred& referred = referred_[number % slots_];
  if (number == 0 || referred.number != number || released_ >= number) {
    return false;
  }
  const uint64_t parts = Sharing::partsOf(referred.bytes);
  uint64_t taken = theirSharing_.taken.load(std::memory_order_relaxed) & Sharing::kPartMask;
  if (taken >= parts || !mayUse()) {
    return false;
  }
  std::byte* to = nullptr;
  if (takeNext(theirSharing_, number, parts, taken)) {
    if (++referred.partsTaken > parts) {
      letGo();
      return malformed("it gave back parts of a copy that were taken");
    }
    to = inRegion(theirSharing_.region.load(std::memory_order_relaxed),
                  theirSharing_.offset.load(std::memory_order_relaxed), referred.bytes);
  }
  if (to == nullptr) {
    letGo();
    return false;
  }
  part = partOf(referred.data, to, referred.bytes, taken);
  return true;
}

void ShmLink::partDone() {
  // Pairs with the load in the peer's shareDone().
  theirSharing_.written.fetch_add(1, std::memory_order_release);
  letGo();
  fenceForSleeper();
  wakeIfAsleep();
}

}  // namespace peal::shm
