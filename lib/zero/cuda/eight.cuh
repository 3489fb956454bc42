// Eight neighbouring elements of 2 or 4 bytes, moved with 16-byte accesses, and threads of a grid: what the
// engine's kernels share. Included by passes.cu, squares.cu and update.cu only.
#pragma once
#include <type_traits>

#include "lib/executor/cuda/device.h"
#include "lib/reduce/adamw.h"

namespace peal::cuda {

constexpr uint32_t kEight = 8;

PEAL_DEVICE uint64_t gridThread() { return uint64_t{blockIndex()} * blockThreads() + threadIndex(); }
PEAL_DEVICE uint64_t gridThreads() { return uint64_t{gridBlocks()} * blockThreads(); }

PEAL_DEVICE float asFp32(uint16_t bf16) { return fromBf16(bf16); }
PEAL_DEVICE float asFp32(float value) { return value; }

template <class T>
struct Eight {
  static_assert(sizeof(T) == 2 || sizeof(T) == 4);
  Vec16 part[sizeof(T) / 2];

  PEAL_DEVICE T get(uint32_t k) const {
    if constexpr (sizeof(T) == 2) {
      return static_cast<T>(part[0].word[k / 2] >> (16 * (k % 2)));
    } else {
      return __builtin_bit_cast(T, part[k / 4].word[k % 4]);
    }
  }
  // Of words that are zero.
  PEAL_DEVICE void put(uint32_t k, T value) {
    if constexpr (sizeof(T) == 2) {
      part[0].word[k / 2] |= static_cast<uint32_t>(static_cast<uint16_t>(value)) << (16 * (k % 2));
    } else {
      part[k / 4].word[k % 4] = __builtin_bit_cast(uint32_t, value);
    }
  }
};

// At multiples of 16 bytes.
template <class T>
PEAL_DEVICE Eight<T> loadEight(const T* from) {
  Eight<T> values{};
  PEAL_UNROLL
  for (uint32_t i = 0; i < sizeof(T) / 2; ++i) {
    values.part[i] = load16(from + i * (16 / sizeof(T)));
  }
  return values;
}
template <class T>
PEAL_DEVICE void storeEight(T* to, const Eight<T>& values) {
  PEAL_UNROLL
  for (uint32_t i = 0; i < sizeof(T) / 2; ++i) {
    store16(to + i * (16 / sizeof(T)), values.part[i]);
  }
}

// Elements [0, count) by the grid: those whose addresses are multiples of 16 in all arrays eight at a time,
// if there are any, the others one by one.
struct Division {
  uint64_t head;     // before the first eight; all where the arrays are not aligned alike
  uint64_t vectors;  // of eight elements
  PEAL_DEVICE uint64_t tail() const { return head + vectors * kEight; }
};

template <class T>
PEAL_DEVICE uint64_t elementsToAlignment(const T* array) {
  return (16 - reinterpret_cast<uintptr_t>(array) % 16) % 16 / sizeof(T);
}
template <class T>
PEAL_DEVICE bool isAlignedAt(const T* array, uint64_t element) {
  return reinterpret_cast<uintptr_t>(array + element) % 16 == 0;
}
PEAL_DEVICE Division divide(uint64_t count, uint64_t head, bool together) {
  const uint64_t before = !together || head > count ? count : head;
  return {before, (count - before) / kEight};
}

// eight(i) for elements [i, i + 8), one(i) for the others.
template <class EightWork, class OneWork>
PEAL_DEVICE void forEachOf(uint64_t count, const Division& division, const EightWork& eight,
                           const OneWork& one) {
  for (uint64_t v = gridThread(); v < division.vectors; v += gridThreads()) {
    eight(division.head + v * kEight);
  }
  for (uint64_t i = gridThread(); i < division.head; i += gridThreads()) {
    one(i);
  }
  for (uint64_t i = division.tail() + gridThread(); i < count; i += gridThreads()) {
    one(i);
  }
}

}  // namespace peal::cuda
