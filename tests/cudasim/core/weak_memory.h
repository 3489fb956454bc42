// The weak memory model of one block: what a GPU may do, done at random. Owned by a block of the scheduler;
// called through access.h while Options::weak is set. Everything is kept by granules of 16 bytes.
//
// A weak store (and, at random, a relaxed one) goes to the thread's buffer; a barrier moves it to the
// block's, where the other threads of the block see it; a release or a fence of any thread of the block, the
// end of the block, or chance lets it through to memory. A weak load may find what the block read earlier,
// until a thread of the block acquires. A thread always sees its own stores.
#pragma once
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>

namespace peal::cudasim {

// Bytes of one granule that were stored.
struct Cell {
  uintptr_t granule = 0;  // address / 16; 0: empty
  uint16_t mask = 0;      // bit i: byte i
  alignas(8) uint8_t bytes[16];
};

// A few cells, each at the one place that its granule hashes to: whoever comes second to a place pushes the
// first one out, which then simply becomes visible early.
template <size_t kPlaces>
class CellTable {
 public:
  static_assert(std::has_single_bit(kPlaces) && kPlaces >= 64);
  bool empty() const { return count_ == 0; }
  Cell& place(uintptr_t granule) { return cells_[index(granule)]; }
  const Cell* find(uintptr_t granule) const {
    const Cell& cell = cells_[index(granule)];
    return cell.granule == granule ? &cell : nullptr;
  }
  void occupied(const Cell& cell) {
    const size_t at = static_cast<size_t>(&cell - cells_.data());
    used_[at / 64] |= uint64_t{1} << at % 64;
    ++count_;
  }
  // Empties the place and returns what was there.
  Cell take(size_t at) {
    const Cell cell = cells_[at];
    cells_[at].granule = 0;
    used_[at / 64] &= ~(uint64_t{1} << at % 64);
    --count_;
    return cell;
  }
  Cell take(const Cell& cell) { return take(static_cast<size_t>(&cell - cells_.data())); }
  // Takes those cells out for which `chosen()`.
  template <class Chosen, class Each>
  void drain(Chosen chosen, Each each) {
    for (size_t word = 0; word < used_.size() && count_ != 0; ++word) {
      for (uint64_t left = used_[word]; left != 0; left &= left - 1) {
        if (chosen()) {
          each(take(word * 64 + static_cast<size_t>(std::countr_zero(left))));
        }
      }
    }
  }
  // One of them, near a random place; only if !empty().
  Cell takeNear(uint64_t random) {
    for (size_t word = random % used_.size();; word = (word + 1) % used_.size()) {
      if (used_[word] != 0) {
        return take(word * 64 + static_cast<size_t>(std::countr_zero(used_[word])));
      }
    }
  }

 private:
  static size_t index(uintptr_t granule) {
    return static_cast<size_t>(granule * 0x9e3779b97f4a7c15u >> (64 - std::bit_width(kPlaces - 1)));
  }
  std::array<Cell, kPlaces> cells_;
  std::array<uint64_t, kPlaces / 64> used_{};
  size_t count_ = 0;
};

using ThreadStores = CellTable<64>;

class BlockMemory {
 public:
  // Weak accesses of the thread whose stores these are. `stale`: an old copy will do.
  void load(const ThreadStores& stores, const std::byte* from, void* value, size_t bytes, bool stale);
  void store(ThreadStores& stores, std::byte* to, const void* value, size_t bytes);
  // What a strong load by that thread sees: memory, and the stores of its own and its block.
  uint64_t strongLoad(const ThreadStores& stores, const std::byte* from, size_t bytes);
  // A store of 1 to 8 bytes that all see at once.
  void storeThrough(ThreadStores& stores, std::byte* to, uint64_t value, size_t bytes);
  // Lets what is delayed of this granule through; the caller then reads or writes memory itself.
  void settle(ThreadStores& stores, const std::byte* at);

  void toBlock(ThreadStores& stores);  // at barriers and when the thread exits
  void release(ThreadStores& stores);  // everything to memory
  void acquire() { ++cacheEra_; }      // no old copies any more
  void letOneThrough(ThreadStores& stores, uint64_t random);
  bool holdsNone() const { return delayed_.empty(); }
  // Stores of a thread, or of the block; each if `chosen()`.
  template <class Chosen>
  void letSomeThrough(ThreadStores& stores, Chosen chosen) {
    stores.drain(chosen, [this](const Cell& cell) { commit(cell); });
  }
  template <class Chosen>
  void letSomeThrough(Chosen chosen) {
    delayed_.drain(chosen, [this](const Cell& cell) { commit(cell); });
  }

 private:
  struct CachedGranule {
    uintptr_t granule = 0;
    uint64_t era = 0;
    uint64_t words[2] = {};
  };
  static constexpr size_t kCachedGranules = 1024;
  CachedGranule& cached(uintptr_t granule) { return cache_[granule * 0x9e3779b97f4a7c15u >> 54]; }
  void commit(Cell cell);
  void overlay(const ThreadStores& stores, uintptr_t granule, uint8_t* bytes) const;

  CellTable<2048> delayed_;
  std::array<CachedGranule, kCachedGranules> cache_;
  uint64_t cacheEra_ = 1;
};

}  // namespace peal::cudasim
