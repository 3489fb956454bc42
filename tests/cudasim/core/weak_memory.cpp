#include "tests/cudasim/core/weak_memory.h"

#include <algorithm>
#include <cstring>

#include "tests/cudasim/core/scheduler.h"

// The granule that holds an allocation's last bytes may reach past them, but never past their page.
#define CUDASIM_WHOLE_GRANULES __attribute__((no_sanitize("address")))

namespace peal::cudasim {
namespace {

constexpr size_t kGranuleBytes = 16;
constexpr auto kAllOfThem = [] { return true; };

uintptr_t granuleOf(const std::byte* at) { return reinterpret_cast<uintptr_t>(at) / kGranuleBytes; }

template <class T>
void storeWhole(uintptr_t to, const uint8_t* from) {
  T value;
  std::memcpy(&value, from, sizeof value);
  __atomic_store_n(reinterpret_cast<typename Aliased<T>::Type*>(to), value, __ATOMIC_RELAXED);
}

// The pieces of a cell as large as they were stored: words of 8 bytes must be seen whole.
void storeBytes(const Cell& cell) {
  const uintptr_t base = cell.granule * kGranuleBytes;
  for (size_t at = 0; at < kGranuleBytes;) {
    const auto covers = [&](size_t bytes) {
      const unsigned piece = ((1u << bytes) - 1) << at;
      return at % bytes == 0 && (cell.mask & piece) == piece;
    };
    if (covers(8)) {
      storeWhole<uint64_t>(base + at, cell.bytes + at);
      at += 8;
    } else if (covers(4)) {
      storeWhole<uint32_t>(base + at, cell.bytes + at);
      at += 4;
    } else if (covers(2)) {
      storeWhole<uint16_t>(base + at, cell.bytes + at);
      at += 2;
    } else {
      if (covers(1)) {
        storeWhole<uint8_t>(base + at, cell.bytes + at);
      }
      ++at;
    }
  }
}

void mergeBytes(const Cell& cell, uint8_t* bytes) {
  for (size_t i = 0; i < kGranuleBytes; ++i) {
    if ((cell.mask >> i & 1) != 0) {
      bytes[i] = cell.bytes[i];
    }
  }
}

// What is newer wins.
void merge(Cell& into, const Cell& newer) {
  mergeBytes(newer, into.bytes);
  into.mask |= newer.mask;
}

CUDASIM_WHOLE_GRANULES void readGranule(uintptr_t granule, uint64_t* words) {
  const auto* from = reinterpret_cast<const Aliased<uint64_t>::Type*>(granule * kGranuleBytes);
  words[0] = __atomic_load_n(from, __ATOMIC_RELAXED);
  words[1] = __atomic_load_n(from + 1, __ATOMIC_RELAXED);
}

uint64_t readWord(const std::byte* from, size_t bytes) {
  switch (bytes) {
    case 1:
      return __atomic_load_n(reinterpret_cast<const Aliased<uint8_t>::Type*>(from), __ATOMIC_ACQUIRE);
    case 2:
      return __atomic_load_n(reinterpret_cast<const Aliased<uint16_t>::Type*>(from), __ATOMIC_ACQUIRE);
    case 4:
      return __atomic_load_n(reinterpret_cast<const Aliased<uint32_t>::Type*>(from), __ATOMIC_ACQUIRE);
    default:
      return __atomic_load_n(reinterpret_cast<const Aliased<uint64_t>::Type*>(from), __ATOMIC_ACQUIRE);
  }
}

Cell cellOf(const std::byte* at, const void* value, size_t bytes) {
  Cell cell;
  cell.granule = granuleOf(at);
  const size_t offset = reinterpret_cast<uintptr_t>(at) % kGranuleBytes;
  cell.mask = static_cast<uint16_t>(((1u << bytes) - 1) << offset);
  std::memcpy(cell.bytes + offset, value, bytes);
  return cell;
}

}  // namespace

// To memory, after what the block delays of the same granule: that is older. The block's copy follows.
void BlockMemory::commit(Cell cell) {
  Cell& older = delayed_.place(cell.granule);
  if (older.granule == cell.granule) {
    Cell both = delayed_.take(older);
    merge(both, cell);
    cell = both;
  }
  storeBytes(cell);
  CachedGranule& copy = cached(cell.granule);
  if (copy.granule == cell.granule) {
    mergeBytes(cell, reinterpret_cast<uint8_t*>(copy.words));
  }
}

void BlockMemory::overlay(const ThreadStores& stores, uintptr_t granule, uint8_t* bytes) const {
  if (const Cell* cell = delayed_.find(granule)) {
    mergeBytes(*cell, bytes);
  }
  if (const Cell* cell = stores.find(granule)) {
    mergeBytes(*cell, bytes);
  }
}

void BlockMemory::load(const ThreadStores& stores, const std::byte* from, void* value, size_t bytes,
                       bool stale) {
  const uintptr_t granule = granuleOf(from);
  CachedGranule& copy = cached(granule);
  if (!stale || copy.granule != granule || copy.era != cacheEra_) {
    copy.granule = granule;
    copy.era = cacheEra_;
    readGranule(granule, copy.words);
  }
  uint8_t seen[kGranuleBytes];
  std::memcpy(seen, copy.words, sizeof seen);
  overlay(stores, granule, seen);
  std::memcpy(value, seen + reinterpret_cast<uintptr_t>(from) % kGranuleBytes, bytes);
}

void BlockMemory::store(ThreadStores& stores, std::byte* to, const void* value, size_t bytes) {
  const Cell cell = cellOf(to, value, bytes);
  Cell& place = stores.place(cell.granule);
  if (place.granule == cell.granule) {
    merge(place, cell);
    return;
  }
  if (place.granule != 0) {
    commit(stores.take(place));
  }
  place = cell;
  stores.occupied(place);
}

uint64_t BlockMemory::strongLoad(const ThreadStores& stores, const std::byte* from, size_t bytes) {
  uint64_t word = readWord(from, bytes);
  uint8_t seen[kGranuleBytes] = {};
  uint8_t* const at = seen + reinterpret_cast<uintptr_t>(from) % kGranuleBytes;
  std::memcpy(at, &word, bytes);
  overlay(stores, granuleOf(from), seen);
  std::memcpy(&word, at, bytes);
  return word;
}

void BlockMemory::storeThrough(ThreadStores& stores, std::byte* to, uint64_t value, size_t bytes) {
  settle(stores, to);
  commit(cellOf(to, &value, bytes));
}

void BlockMemory::settle(ThreadStores& stores, const std::byte* at) {
  const uintptr_t granule = granuleOf(at);
  const Cell& own = stores.place(granule);
  if (own.granule == granule) {
    commit(stores.take(own));
  }
  const Cell& blocks = delayed_.place(granule);
  if (blocks.granule == granule) {
    commit(delayed_.take(blocks));
  }
  CachedGranule& copy = cached(granule);
  if (copy.granule == granule) {
    copy.era = 0;  // the caller is about to write memory
  }
}

void BlockMemory::toBlock(ThreadStores& stores) {
  stores.drain(kAllOfThem, [this](const Cell& cell) {
    Cell& place = delayed_.place(cell.granule);
    if (place.granule == cell.granule) {
      merge(place, cell);
      return;
    }
    if (place.granule != 0) {
      commit(delayed_.take(place));
    }
    place = cell;
    delayed_.occupied(place);
  });
}

void BlockMemory::release(ThreadStores& stores) {
  letSomeThrough(stores, kAllOfThem);
  letSomeThrough(kAllOfThem);
}

void BlockMemory::letOneThrough(ThreadStores& stores, uint64_t random) {
  if (!stores.empty()) {
    commit(stores.takeNear(random));
  } else if (!delayed_.empty()) {
    commit(delayed_.takeNear(random));
  }
}

// ---- as access.h calls it: of the thread that runs, with the executor's chances ----
namespace {

BlockMemory& memory() { return *self().block->memory; }
ThreadStores& stores() { return self().block->storesOf(self()); }
bool chance(int64_t of, uint64_t among) { return executor->random.below(among) < static_cast<uint64_t>(of); }

void sometimesLetOneThrough() {
  if (chance(executor->options.drainPerMille, 1000)) {
    memory().letOneThrough(stores(), executor->random.next());
  }
}

}  // namespace

void modelLoad(const std::byte* from, void* value, size_t bytes) {
  sometimesLetOneThrough();
  memory().load(stores(), from, value, bytes, chance(executor->options.stalePercent, 100));
}
void modelStore(std::byte* to, const void* value, size_t bytes) {
  sometimesLetOneThrough();
  memory().store(stores(), to, value, bytes);
}
uint64_t modelStrongLoad(const std::byte* from, size_t bytes, Order order) {
  const uint64_t value = memory().strongLoad(stores(), from, bytes);
  if (acquires(order)) {
    memory().acquire();
  }
  return value;
}
void modelRelaxedStore(std::byte* to, uint64_t value, size_t bytes) {
  sometimesLetOneThrough();
  if (chance(executor->options.delayPercent, 100)) {
    memory().store(stores(), to, &value, bytes);
  } else {
    memory().storeThrough(stores(), to, value, bytes);
  }
}
void modelSettle(const std::byte* at) { memory().settle(stores(), at); }
void modelRelease(Scope scope) {
  if (scope == Scope::Block) {
    memory().toBlock(stores());
  } else {
    memory().release(stores());
  }
}
void modelAcquire(Scope scope) {
  if (scope != Scope::Block) {
    memory().acquire();
  }
}

}  // namespace peal::cudasim
