#include "transports/shm/link.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "lib/memory/registry.h"
#include "transports/shm/bell.h"
#include "transports/shm/crossread.h"

namespace peal::shm {
namespace {

constexpr uint32_t kFetchedAhead = 3;  // messages whose lines are on their way

// Credits and rings between ranks of one process lie in private memory.
Control controlOf(const Segment& segment, bool sameProcess) {
  return sameProcess ? segment.local() : segment.shared();
}

}  // namespace

ShmLink::ShmLink(Station& station, int peerRank, const Peer& peer, Segment& own,
                 std::function<bool()> readSocket)
    : station_(station),
      peerRank_(peerRank),
      slots_(station.layout.slots()),
      slotBytes_(station.layout.slotBytes()),
      fences_(!registeredForFences() || peer.segment->shared().header().fencesPosters == 0),
      outRing_(controlOf(*peer.segment, peer.sameProcess).ring(station.layout, station.rank)),
      outCredit_(controlOf(own, peer.sameProcess).credit(station.layout, peerRank)),
      outStaging_(own.staging.base() + station.layout.stagingOffset(peerRank)),
      outShort_(own.staging.base() + station.layout.shortOffset(peerRank)),
      theirSharing_(peer.segment->shared().sharing(station.layout, station.rank)),
      inRing_(controlOf(own, peer.sameProcess).ring(station.layout, peerRank)),
      inCredit_(controlOf(*peer.segment, peer.sameProcess).credit(station.layout, station.rank)),
      inStaging_(peer.segment->staging.base() + station.layout.stagingOffset(station.rank)),
      inShort_(peer.segment->staging.base() + station.layout.shortOffset(station.rank)),
      inStagingAll_(peer.segment->staging.base() + station.layout.stagingOffset(peerRank)),
      sharing_(own.shared().sharing(station.layout, peerRank)),
      peerShared_(peer.segment->shared()),
      sameProcess_(peer.sameProcess),
      weCanRead_(peer.weCanRead),
      peerCanRead_(peer.peerCanRead),
      pid_(peer.pid),
      readSocket_(std::move(readSocket)) {}

// False, always.
bool Station::misfit(size_t bytes, size_t mostBytes) {
  fault.raise(numberOf(rank),
              {pealInternalError,
               fmt::format("a message of {} bytes does not fit the {} that were staged", bytes, mostBytes)});
  return false;
}

void ShmLink::closeInChild() noexcept {
  slots_ = 0;
  shown_ = false;
  received_ += uint64_t{1} << 31;  // no flag in the ring is near that number
}

// ---- outgoing ----

bool ShmLink::hasCredit(uint32_t most) {
  if (posted_ - released_ < most) {
    return true;
  }
  if (slots_ == 0) {
    return false;
  }
  return lookAtCredit() && posted_ - released_ < most;
}

// The credit's line may be behind what the peer said along with messages.
bool ShmLink::lookAtCredit() {
  // Pairs with the store in the peer's tellReleased(): what it read of the slots, it has read.
  return noteReleased(outCredit_.released.load(std::memory_order_acquire));
}

std::byte* ShmLink::tryStage(size_t bytes) {
  if (!station_.fits(bytes) || !hasCredit()) {
    return nullptr;
  }
  staged_ = bytes <= kInlineBytes ? Staging::Inline : Staging::Slot;
  return staged_ == Staging::Inline ? inline_.data() : outStaging_ + size_t{outSlot_} * slotBytes_;
}

// A sender that fills the ring takes no credit until half of it is free again: that costs one look at what
// the peer writes, and between ranks that share a processor one turn, where single credits would cost as many
// of them as there are messages.
std::byte* ShmLink::tryStageShort(size_t bytes) {
  if (bytes > ByteRing::kMostBytes) {
    return tryStage(bytes);
  }
  if (!station_.fits(bytes) || slots_ == 0 || !hasCredit(thirsty_ ? kRingEntries / 2 + 1 : kRingEntries)) {
    thirsty_ = true;
    return nullptr;
  }
  if (bytes <= kInlineBytes) {
    thirsty_ = false;
    staged_ = Staging::Inline;
    return inline_.data();
  }
  std::optional<uint32_t> offset = shortRing_.room(posted_, released_, bytes);
  if (!offset && lookAtCredit()) {
    offset = shortRing_.room(posted_, released_, bytes);  // of what was released since
  }
  thirsty_ = !offset;
  staged_ = Staging::Short;
  shortOffset_ = offset.value_or(0);
  shortBytes_ = bytes;
  return offset ? outShort_ + shortOffset_ : nullptr;
}

void ShmLink::post(size_t bytes, const Digest& digest) {
  if (!station_.fits(bytes, staged_ == Staging::Inline)) {
    return;
  }
  if (staged_ == Staging::Inline) {
    publishInline(inline_, bytes, digest);
  } else if (staged_ == Staging::Short) {
    publishShort(bytes, digest);
  } else {
    Descriptor& descriptor = compose(Kind::Staged, bytes, digest);
    attachLoan(descriptor);
    commit(descriptor);
    fetchNextSlot(outStaging_ + size_t{outSlot_} * slotBytes_, bytes);
  }
  announcePost();
}

void ShmLink::announcePost() {
  fenceForSleeper();
  wakeIfAsleep();
  fetchNext();
}

Descriptor& ShmLink::compose(Kind kind, size_t bytes, const Digest& digest) {
  Descriptor& descriptor = outRing_[posted_ % kRingEntries];
  descriptor.meta.store(static_cast<uint32_t>(kind) << Descriptor::kBytesBits | static_cast<uint32_t>(bytes),
                        std::memory_order_relaxed);
  descriptor.setDigest(digest);
  return descriptor;
}

// The flag's store pairs with the load in the peer's tryReceive(): whoever sees it sees the whole message.
void ShmLink::commit(Descriptor& descriptor) {
  shortRing_.close(posted_);
  ++posted_;
  outSlot_ = outSlot_ + 1 == slots_ ? 0 : outSlot_ + 1;
  descriptor.flag.store(static_cast<uint32_t>(posted_), std::memory_order_release);
}

void ShmLink::attachLoan(Descriptor& descriptor) {
  descriptor.words[Descriptor::kLoanWord].store(lentOffset_, std::memory_order_relaxed);
  loans_ += lentRegion_ != 0 ? 1 : 0;
  descriptor.extra.store(std::exchange(lentRegion_, 0), std::memory_order_relaxed);
}

// Copies the whole payload, by words: what has just been written by words cannot be read by vectors without
// waiting for the cache.
void ShmLink::publishInline(const InlineBytes& data, size_t bytes, const Digest& digest) {
  Descriptor& descriptor = compose(Kind::Inline, Descriptor::inlineMeta(bytes, received_), digest);
  told_ = received_;
  descriptor.extra.store(static_cast<uint32_t>(received_), std::memory_order_relaxed);
  for (size_t i = 0; i < kInlineBytes / sizeof(uint64_t); ++i) {
    uint64_t word = 0;
    std::memcpy(&word, data.data() + i * sizeof word, sizeof word);
    descriptor.words[i].store(word, std::memory_order_relaxed);
  }
  commit(descriptor);
}

void ShmLink::publishShort(size_t bytes, const Digest& digest) {
  const auto at = shortOffset_;
  if (!station_.fitsInto(bytes, shortBytes_)) {
    return;
  }
  shortRing_.take(bytes);
  Descriptor& descriptor = compose(Kind::Short, bytes, digest);
  told_ = received_;
  descriptor.words[0].store(at, std::memory_order_relaxed);
  descriptor.words[1].store(received_, std::memory_order_relaxed);
  attachLoan(descriptor);
  commit(descriptor);
  fetchNextSlot(outShort_ + (at + bytes + kLine - 1) / kLine * kLine % ByteRing::kBytes, bytes);
}

void ShmLink::publishStagedAll(uint32_t slot, size_t bytes, const Digest& digest) {
  Descriptor& descriptor = compose(Kind::StagedAll, bytes, digest);
  told_ = received_;
  descriptor.words[0].store(slot, std::memory_order_relaxed);
  descriptor.words[1].store(received_, std::memory_order_relaxed);
  commit(descriptor);
}

void ShmLink::publishWords(Kind kind, size_t bytes, uint64_t first, uint64_t second, const Digest& digest) {
  Descriptor& descriptor = compose(kind, 0, digest);
  descriptor.words[0].store(bytes, std::memory_order_relaxed);
  descriptor.words[1].store(first, std::memory_order_relaxed);
  descriptor.words[2].store(second, std::memory_order_relaxed);
  attachLoan(descriptor);
  commit(descriptor);
  lastReference_ = posted_;
}

void ShmLink::wakeIfAsleep() {
  if (peerShared_.bell().sleeping.load(std::memory_order_relaxed) != 0) {
    ringBell(peerShared_.bell());
  }
}

// What is filled past the caches needs no line.
void ShmLink::fetchNextSlot(const std::byte* slot, size_t bytes) const {
  if (!isFar()) {
    fetchSlot(slot, bytes);
  }
}

// So far ahead that it is here by then, however quickly messages follow each other.
void ShmLink::fetchNext() const { fetchToWrite(outRing_ + (posted_ + kFetchedAhead) % kRingEntries); }

void ShmLink::ringPeer() { ringBell(peerShared_.bell()); }

bool ShmLink::canReference(const std::byte* data, size_t bytes) {
  if (!station_.directRead) {
    return false;
  }
  if (sameProcess_ || bytes <= kInlineBytes) {
    return true;
  }
  const std::optional<Region> region = findRegion(data, bytes);
  return region &&
         (region->fd >= 0 ? station_.regions.canShare(*region) : peerCanRead_ && bytes <= slotBytes_);
}

// Whether the peer has the region by now; `last` is the one that it had the last time.
bool ShmLink::shared(const Region& region, uint64_t& last) {
  if (region.id != last && !station_.regions.share(peerRank_, region)) {
    return false;
  }
  last = region.id;
  return true;
}

bool ShmLink::tryPostReference(const std::byte* data, size_t bytes, const Digest& digest) {
  if (!station_.directRead || !hasCredit()) {
    return false;
  }
  if (bytes <= kInlineBytes) {
    InlineBytes copy{};
    std::copy_n(data, bytes, copy.begin());
    publishInline(copy, bytes, digest);
  } else if (sameProcess_) {
    publishWords(Kind::Pointer, bytes, reinterpret_cast<uint64_t>(data), 0, digest);
  } else {
    const std::optional<Region> region = findRegion(data, bytes);
    if (region && region->fd >= 0) {
      if (!shared(*region, lastShared_)) {
        return false;
      }
      publishWords(Kind::Region, bytes, region->id, static_cast<uint64_t>(data - region->base), digest);
      noteReference(data, bytes);
    } else if (region && peerCanRead_ && bytes <= slotBytes_) {
      publishWords(Kind::ProcessRead, bytes, reinterpret_cast<uint64_t>(data), 0, digest);
    } else {
      return false;
    }
  }
  announcePost();
  return true;
}

bool ShmLink::canOffer(const std::byte* /*data*/, size_t bytes) {
  return station_.directRead && peerCanRead_ && !sameProcess_ && bytes > kInlineBytes;
}

bool ShmLink::tryPostOffer(const std::byte* data, size_t bytes, const Digest& digest) {
  if (!canOffer(data, bytes) || !hasCredit()) {
    return false;
  }
  publishWords(Kind::Offer, bytes, reinterpret_cast<uint64_t>(data), 0, digest);
  announcePost();
  return true;
}

// Only between processes, where the memory lent is a file's: a peer that is stopped in the middle of writing
// for longer than withdraw() waits, while this rank gives up and frees the memory, hits pages that nobody
// sees.
bool ShmLink::lend(std::byte* memory, size_t bytes) {
  lentRegion_ = bytes > kInlineBytes ? sharedRegionOf(memory, bytes, lentOffset_) : 0;
  return lentRegion_ != 0;
}

// The region of memory that the peer may write, and knows by now; 0: there is none.
uint32_t ShmLink::sharedRegionOf(const std::byte* memory, size_t bytes, uint64_t& offset) {
  if (!station_.directRead || sameProcess_) {
    return 0;
  }
  const std::optional<Region> region = findRegion(memory, bytes);
  if (!region || region->fd < 0 || region->id > UINT32_MAX || !shared(*region, lastLent_)) {
    return 0;
  }
  offset = static_cast<uint64_t>(memory - region->base);
  return static_cast<uint32_t>(region->id);
}

bool ShmLink::tryPostLanded(size_t bytes, const Digest& digest) {
  if (!hasCredit()) {
    return false;
  }
  Descriptor& descriptor = compose(Kind::Landed, 0, digest);
  descriptor.words[0].store(bytes, std::memory_order_relaxed);
  commit(descriptor);
  announcePost();
  return true;
}

bool ShmLink::released(uint64_t count) {
  return (released_ >= count || lookAtCredit()) && released_ >= count;
}

bool ShmLink::hasUnreleased() { return !released(posted_); }

// ---- incoming ----

bool ShmLink::hasArrival() const {
  return shown_ || inRing_[received_ % kRingEntries].flag.load(std::memory_order_acquire) ==
                       static_cast<uint32_t>(received_ + 1);
}

bool ShmLink::tryReceive(Arrival& arrival) {
  if (!arrived()) {
    return false;
  }
  arrival = arrival_;
  return true;
}

bool ShmLink::arrived() {
  if (!shown_) {
    const Descriptor& descriptor = inRing_[received_ % kRingEntries];
    // Pairs with the store in the peer's commit().
    if (descriptor.flag.load(std::memory_order_acquire) != static_cast<uint32_t>(received_ + 1) ||
        !show(descriptor)) {
      missed_ = true;
      return false;
    }
    shown_ = true;
    streak_ = missed_ ? 0 : streak_ + 1;
    missed_ = false;
  }
  return true;
}

// Each field is read once and checked: the peer could change it between two reads.
bool ShmLink::show(const Descriptor& descriptor) {
  const uint32_t meta = descriptor.meta.load(std::memory_order_relaxed);
  const Kind kind{meta >> Descriptor::kBytesBits};
  const size_t bytes = meta & ((1U << Descriptor::kBytesBits) - 1);
  const uint32_t extra = descriptor.extra.load(std::memory_order_relaxed);
  arrival_.digest = descriptor.digest();
  arrival_.bytes = bytes;
  arrival_.remote = kind == Kind::Offer;
  arrival_.landing = nullptr;
  arrival_.landed = kind == Kind::Landed;
  switch (kind) {
    case Kind::Inline:
      arrival_.data = descriptor.payload;
      arrival_.bytes = Descriptor::bytesOfInline(meta);
      return arrival_.bytes <= kInlineBytes ? noteReleased(Descriptor::releasedOfInline(meta, extra))
                                            : malformed(fmt::format("{} inline bytes", arrival_.bytes));
    case Kind::Staged:
      arrival_.data = inStaging_ + size_t{inSlot_} * slotBytes_;
      return bytes <= slotBytes_ ? showLoan(descriptor)
                                 : malformed(fmt::format("{} bytes in a slot of {}", bytes, slotBytes_));
    case Kind::StagedAll: {
      const uint64_t slot = descriptor.words[0].load(std::memory_order_relaxed);
      if (bytes > slotBytes_ || slot >= slots_) {
        return malformed(
            fmt::format("{} bytes in slot {} of {} with {} each", bytes, slot, slots_, slotBytes_));
      }
      arrival_.data = inStagingAll_ + slot * slotBytes_;
      return noteReleased(descriptor.words[1].load(std::memory_order_relaxed));
    }
    case Kind::Short: {
      const uint64_t offset = descriptor.words[0].load(std::memory_order_relaxed);
      if (bytes > std::min(slotBytes_, ByteRing::kMostBytes) || offset > ByteRing::kBytes - bytes) {
        return malformed(fmt::format("{} short bytes at {} of {}", bytes, offset, ByteRing::kBytes));
      }
      arrival_.data = inShort_ + offset;
      return noteReleased(descriptor.words[1].load(std::memory_order_relaxed)) && showLoan(descriptor);
    }
    case Kind::Pointer:
    case Kind::Region:
    case Kind::ProcessRead:
    case Kind::Offer:
      return showReference(kind, descriptor) && showLoan(descriptor);
    case Kind::Landed:
      arrival_.data = nullptr;
      arrival_.bytes = descriptor.words[0].load(std::memory_order_relaxed);
      if (loans_ == 0) {
        return malformed("it wrote where nothing was lent");
      }
      --loans_;
      return true;
  }
  return malformed(fmt::format("kind {}", static_cast<uint32_t>(kind)));
}

// What the peer says, in its credit or along with a message, of which either may be newer.
bool ShmLink::noteReleased(uint64_t count) {
  if (count > posted_) {
    return malformed(fmt::format("it released {} messages of {}", count, posted_));
  }
  released_ = std::max(released_, count);
  return true;
}

bool ShmLink::showReference(Kind kind, const Descriptor& descriptor) {
  const uint64_t bytes = descriptor.words[0].load(std::memory_order_relaxed);
  const uint64_t first = descriptor.words[1].load(std::memory_order_relaxed);
  const uint64_t second = descriptor.words[2].load(std::memory_order_relaxed);
  arrival_.bytes = bytes;
  if (kind == Kind::Pointer && sameProcess_) {
    if (!mayUse()) {
      return false;
    }
    arrival_.data = reinterpret_cast<const std::byte*>(first);
  } else if (kind == Kind::Region) {
    arrival_.data = inRegion(first, second, bytes);
    inPlace_ = true;
  } else if (kind == Kind::Offer && weCanRead_) {
    arrival_.data = nullptr;
    offeredAt_ = first;
    return true;
  } else if (kind == Kind::ProcessRead && weCanRead_ && bytes <= slotBytes_) {
    arrival_.data = readFromProcess(first, bytes);
  } else {
    return malformed(fmt::format("a reference of kind {} to {} bytes", static_cast<uint32_t>(kind), bytes));
  }
  return arrival_.data != nullptr;
}

bool ShmLink::showLoan(const Descriptor& descriptor) {
  const uint32_t region = descriptor.extra.load(std::memory_order_relaxed);
  if (region != 0) {
    if (!mayUse()) {
      return false;
    }
    const uint64_t offset = descriptor.words[Descriptor::kLoanWord].load(std::memory_order_relaxed);
    arrival_.landing = inRegion(region, offset, arrival_.bytes);
  }
  return region == 0 || arrival_.landing != nullptr;
}

// Before this rank touches memory that the peer could free. False: the peer has taken it back, and said why
// it leaves before that; so the message is not shown, and whoever waits for it finds the farewell.
bool ShmLink::mayUse() {
  using_ = true;
  inCredit_.inUse.store(1, std::memory_order_relaxed);
  fullFence();  // pairs with the one in ShmEndpoint::withdraw (layout.h, Withdrawal)
  if (withdrawn()) {
    letGo();
    return false;
  }
  return true;
}

std::byte* ShmLink::inRegion(uint64_t id, uint64_t offset, uint64_t bytes) {
  std::byte* data = mapped_.find(id, offset, bytes);
  if (data == nullptr) {
    readSocket_();  // a new region's file was sent before the message
    data = mapped_.find(id, offset, bytes);
  }
  if (data == nullptr && !station_.fault.raised()) {
    malformed(
        fmt::format("a reference to {} bytes at {} of region {}, which it did not share", bytes, offset, id));
  }
  return data;
}

const std::byte* ShmLink::readFromProcess(uint64_t address, uint64_t bytes) {
  if (!copied_) {
    copied_ = std::make_unique<std::byte[]>(slotBytes_);
  }
  return copyFromProcess(address, copied_.get(), bytes) ? copied_.get() : nullptr;
}

bool ShmLink::pull(std::byte* to, size_t offset, size_t bytes) {
  return shown_ && arrival_.remote && offset <= arrival_.bytes && bytes <= arrival_.bytes - offset &&
         copyFromProcess(offeredAt_ + offset, to, bytes);
}

bool ShmLink::copyFromProcess(uint64_t address, std::byte* to, uint64_t bytes) {
  std::string refused = readProcess(pid_, address, to, bytes);
  // Looked at after the reading: a peer that was there until now owned that memory, and not a stranger who
  // got its pid.
  if (!readSocket_()) {
    refused = "it is gone";
  }
  // Looked at after the reading, as in mayUse(): what a peer has taken back it may have changed. The fence
  // keeps the system's loads of it before this one's.
  loadFence();
  if (withdrawn()) {
    return false;
  }
  if (refused.empty()) {
    return true;
  }
  const int peerNumber = station_.numberOf(peerRank_);
  station_.fault.raise(
      peerNumber,
      {pealRemoteError,
       fmt::format("rank {} could not read {} bytes of rank {} (pid {}): {}. Either that rank freed them "
                   "during its call, or no other process may read them (a device's mapping, memfd_secret): "
                   "PEAL_DIRECT_READ=0 sends such memory, too.",
                   station_.numberOf(station_.rank), bytes, peerNumber, pid_, refused)});
  return false;
}

void ShmLink::release() {
  giveBack();
  // A peer that is ahead has written more: their lines come meanwhile. Of one that is not, a look at them
  // would take them away.
  if (streak_ > kFetchedAhead) {
    __builtin_prefetch(inRing_ + (received_ + kFetchedAhead) % kRingEntries);
  }
  fenceForSleeper();
  wakeIfAsleep();
}

// Where ranks answer each other all but the last credit have travelled with messages: no line is written. The
// peer has a slot less until then, so not where it has but two: a ring needs both (algorithms/ring.h).
void ShmLink::releaseQuietly() {
  if (received_ > told_ || using_ || slots_ <= 2) [[unlikely]] {
    release();
    return;
  }
  forget();
}

void ShmLink::giveBack() {
  if (inPlace_) {
    // As in copyFromProcess(): whoever changes what it has taken back has withdrawn before.
    loadFence();
    station_.readWithdrawn |= withdrawn();
    inPlace_ = false;
  }
  forget();
  letGo();
  tellReleased();
}

void ShmLink::tellReleased() {
  told_ = received_;
  // Pairs with the load in the peer's hasCredit() and released().
  inCredit_.released.store(received_, std::memory_order_release);
}

void ShmLink::forget() {
  shown_ = false;
  ++received_;
  inSlot_ = inSlot_ + 1 == slots_ ? 0 : inSlot_ + 1;
  if (!endedWhileShown_.empty()) [[unlikely]] {
    std::for_each(endedWhileShown_.begin(), endedWhileShown_.end(), [this](uint64_t id) { mapped_.end(id); });
    endedWhileShown_.clear();
  }
}

Result<void> ShmLink::beginRegion(uint64_t id, size_t bytes, int file) {
  return mapped_.begin(id, bytes, file);
}

// The executor may be reading the region: a peer that frees memory too early must not crash this rank.
void ShmLink::endRegion(uint64_t id) {
  if (shown_) {
    endedWhileShown_.push_back(id);
  } else {
    mapped_.end(id);
  }
}

bool ShmLink::malformed(const std::string& what) {
  const int peerNumber = station_.numberOf(peerRank_);
  station_.fault.raise(
      peerNumber,
      {pealRemoteError,
       fmt::format("rank {} got a malformed message from rank {} ({}): {}. Its memory is "
                   "damaged, or it runs another version of peal.",
                   station_.numberOf(station_.rank), peerNumber, fmt::format("pid {}", pid_), what)});
  return false;
}

}  // namespace peal::shm
