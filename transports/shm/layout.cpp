#include "transports/shm/layout.h"

#include "lib/memory/descriptor.h"

namespace peal::shm {
namespace {

uint64_t packSequence(const Digest& digest) {
  return uint64_t{static_cast<uint32_t>(digest.root)} << 32 | digest.sequence;
}

uint32_t packOperation(const Digest& digest) {
  return uint32_t{digest.collective} | uint32_t{digest.type} << 8 | uint32_t{digest.op} << 16 |
         uint32_t{digest.algorithm} << 24;
}

Digest unpack(uint64_t count, uint64_t sequenceAndRoot, uint32_t operation) {
  Digest digest;
  digest.count = count;
  digest.sequence = static_cast<uint32_t>(sequenceAndRoot);
  digest.root = static_cast<int32_t>(static_cast<uint32_t>(sequenceAndRoot >> 32));
  digest.collective = static_cast<uint8_t>(operation);
  digest.type = static_cast<uint8_t>(operation >> 8);
  digest.op = static_cast<uint8_t>(operation >> 16);
  digest.algorithm = static_cast<uint8_t>(operation >> 24);
  return digest;
}

}  // namespace

void Descriptor::setDigest(const Digest& digest) {
  count.store(digest.count, std::memory_order_relaxed);
  sequenceAndRoot.store(packSequence(digest), std::memory_order_relaxed);
  operation.store(packOperation(digest), std::memory_order_relaxed);
}

Digest Descriptor::digest() const {
  return unpack(count.load(std::memory_order_relaxed), sequenceAndRoot.load(std::memory_order_relaxed),
                operation.load(std::memory_order_relaxed));
}

// A reader that sees (acquire) a field of a new value also sees the odd version stored before it.
void Announcement::write(const Digest& digest, bool isInside) {
  if (!isInside && sequenceAndRoot.load(std::memory_order_relaxed) == packSequence(digest) &&
      count.load(std::memory_order_relaxed) == digest.count &&
      operation.load(std::memory_order_relaxed) == packOperation(digest)) {
    inside.store(0, std::memory_order_release);  // all that changes when it leaves
    return;
  }
  const uint32_t before = version.load(std::memory_order_relaxed);
  version.store(before + 1, std::memory_order_relaxed);
  inside.store(isInside ? 1 : 0, std::memory_order_release);
  count.store(digest.count, std::memory_order_release);
  sequenceAndRoot.store(packSequence(digest), std::memory_order_release);
  operation.store(packOperation(digest), std::memory_order_release);
  version.store(before + 2, std::memory_order_release);
}

PeerState Announcement::read() const {
  // A few tries: the owner may have been stopped or killed while it wrote.
  for (int attempt = 0; attempt < 8; ++attempt) {
    const uint32_t before = version.load(std::memory_order_acquire);
    PeerState state;
    state.inside = inside.load(std::memory_order_acquire) != 0;
    const uint64_t elements = count.load(std::memory_order_acquire);
    const uint64_t sequence = sequenceAndRoot.load(std::memory_order_acquire);
    state.digest = unpack(elements, sequence, operation.load(std::memory_order_acquire));
    if (before % 2 == 0 && version.load(std::memory_order_relaxed) == before) {
      state.known = before != 0;
      return state;
    }
  }
  return PeerState{};
}

Layout::Layout(int size, uint32_t slots, size_t slotBytes)
    : size_(size),
      slots_(slots),
      slotBytes_(slotBytes),
      controlBytes_(wholePages(ringOffset(size))),
      stagingBytes_(wholePages(stagingOffset(size))) {}

}  // namespace peal::shm
