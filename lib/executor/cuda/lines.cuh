// Messages whose data carry their own flags, so that no separate post is needed: LL and LL128. Used by the
// device port.
//
// A message's header comes first, as four pairs of 4 bytes of data and 4 of flag in 64 bytes, in both
// protocols. After it the payload in units of 16 bytes, the last one padded:
//   LL     two lines of 16 bytes for each unit; any thread moves any unit
//   LL128  groups of 4 lines of 128 bytes for 30 units; a warp moves a group. Line l holds words
//          15 l .. 15 l + 14 (of 8 bytes) of the group's 60, then the flag.
// The flag is the message's number: 64 bits of it in LL128. LL has the low 32: a line must not hold a flag of
// 2^32 messages ago that no message since has been long enough to overwrite. So once in every kSweepEvery
// messages each slot is written to its end, and for a flag to repeat that would have to be left out 4 times
// in a row. Headers are written by every message.
#pragma once
#include <cstddef>
#include <cstdint>

#include "lib/executor/cuda/device.h"
#include "lib/executor/cuda/view.h"
#include "lib/executor/cuda/wait.cuh"

namespace peal::cuda {

constexpr size_t kUnitBytes = sizeof(Vec16);

constexpr uint64_t kSweepEvery = uint64_t{1} << 30;
// kSweepEvery consecutive numbers begin with one for every slot.
PEAL_DEVICE bool sweeps(uint64_t number, int slots) {
  return number % kSweepEvery < static_cast<uint64_t>(slots);
}

PEAL_DEVICE uint64_t lowWord(Vec16 unit) { return unit.word[0] | static_cast<uint64_t>(unit.word[1]) << 32; }
PEAL_DEVICE uint64_t highWord(Vec16 unit) { return unit.word[2] | static_cast<uint64_t>(unit.word[3]) << 32; }
PEAL_DEVICE Vec16 unitOf(uint64_t low, uint64_t high) {
  return {{static_cast<uint32_t>(low), static_cast<uint32_t>(low >> 32), static_cast<uint32_t>(high),
           static_cast<uint32_t>(high >> 32)}};
}

// ---- headers ----
PEAL_DEVICE void storeHeader(std::byte* slot, uint64_t number, const Header& header) {
  const auto flag = static_cast<uint32_t>(number);
  PEAL_UNROLL
  for (int i = 0; i <= kDigestWords; ++i) {
    const uint64_t word = header.word[i];
    storeFlagged(slot + sizeof(Flagged) * static_cast<size_t>(i),
                 {static_cast<uint32_t>(word), flag, static_cast<uint32_t>(word >> 32), flag});
  }
}

// False: not there yet, and `header` is not whole.
PEAL_DEVICE bool tryLoadHeader(const std::byte* slot, uint64_t number, Header& header) {
  const auto flag = static_cast<uint32_t>(number);
  bool whole = true;
  PEAL_UNROLL
  for (int i = 0; i <= kDigestWords; ++i) {
    const Flagged line = loadFlagged(slot + sizeof(Flagged) * static_cast<size_t>(i));
    whole = whole && line.flag0 == flag && line.flag1 == flag;
    header.word[i] = line.data0 | static_cast<uint64_t>(line.data1) << 32;
  }
  return whole;
}

// ---- units ----
// A loop over units: `for (base = first(); base < units; base += stride())`; a thread has unit base + lane(),
// if lane() < kLanes. Any(x): whether x is true for a thread that must take the same way.
template <Protocol kProtocol>
struct Lines;

template <>
struct Lines<Protocol::LL> {
  static constexpr size_t kHeaderBytes = 64;
  static constexpr uint32_t kLanes = 1;

  PEAL_DEVICE static size_t first() { return threadIndex(); }
  PEAL_DEVICE static size_t stride() { return blockThreads(); }
  PEAL_DEVICE static uint32_t lane() { return 0; }
  PEAL_DEVICE static bool any(bool value) { return value; }

  PEAL_DEVICE static void store(std::byte* lines, size_t base, uint64_t number, Vec16 data) {
    const auto flag = static_cast<uint32_t>(number);
    std::byte* to = lines + base * 2 * sizeof(Flagged);
    storeFlagged(to, {data.word[0], flag, data.word[1], flag});
    storeFlagged(to + sizeof(Flagged), {data.word[2], flag, data.word[3], flag});
  }
  PEAL_DEVICE static bool tryLoad(const std::byte* lines, size_t base, uint64_t number, Vec16& data) {
    const auto flag = static_cast<uint32_t>(number);
    const std::byte* from = lines + base * 2 * sizeof(Flagged);
    const Flagged low = loadFlagged(from);
    const Flagged high = loadFlagged(from + sizeof(Flagged));
    data = {{low.data0, low.data1, high.data0, high.data1}};
    return low.flag0 == flag && low.flag1 == flag && high.flag0 == flag && high.flag1 == flag;
  }
};

template <>
struct Lines<Protocol::LL128> {
  static constexpr size_t kHeaderBytes = 128;
  static constexpr uint32_t kLanes = 30;
  static constexpr size_t kGroupBytes = 512;
  static constexpr int kWordsPerLine = 15;

  PEAL_DEVICE static size_t first() { return threadIndex() / 32 * kLanes; }
  PEAL_DEVICE static size_t stride() { return blockThreads() / 32 * kLanes; }
  PEAL_DEVICE static uint32_t lane() { return laneIndex(); }
  PEAL_DEVICE static bool any(bool value) { return ballot(value) != 0; }

  PEAL_DEVICE static void store(std::byte* lines, size_t base, uint64_t number, Vec16 data) {
    const uint64_t low = lowWord(data), high = highWord(data);
    // This lane's part holds two words of its line, the last part one.
    const int word = static_cast<int>(lane() / 8) * kWordsPerLine + static_cast<int>(lane() % 8) * 2;
    const uint64_t a = wordAt(low, high, word);
    const uint64_t b = wordAt(low, high, word + 1);
    storeLinePart(part(lines, base), {a, holdsFlag() ? number : b});
  }
  PEAL_DEVICE static bool tryLoad(const std::byte* lines, size_t base, uint64_t number, Vec16& data) {
    const LinePart mine = loadLinePart(part(lines, base));
    if (any(holdsFlag() && mine.b != number)) {
      return false;
    }
    const int word = static_cast<int>(lane()) * 2;
    data = unitOf(unitWord(mine, word), unitWord(mine, word + 1));
    return true;
  }

 private:
  PEAL_DEVICE static bool holdsFlag() { return lane() % 8 == 7; }
  template <class Byte>
  PEAL_DEVICE static Byte* part(Byte* lines, size_t base) {
    return lines + base / kLanes * kGroupBytes + lane() * sizeof(LinePart);
  }
  // Word w of the group's units: half of what lane w / 2 holds.
  PEAL_DEVICE static uint64_t wordAt(uint64_t low, uint64_t high, int word) {
    const int from = word / 2 % 32;
    const uint64_t even = shuffle(low, from);
    const uint64_t odd = shuffle(high, from);
    return word % 2 == 0 ? even : odd;
  }
  // Word w of the group as the lines hold it. Lanes 30 and 31 have no unit and get any.
  PEAL_DEVICE static uint64_t unitWord(const LinePart& mine, int word) {
    const int inLine = word % kWordsPerLine;
    const int from = (word / kWordsPerLine * 8 + inLine / 2) % 32;
    const uint64_t even = shuffle(mine.a, from);
    const uint64_t odd = shuffle(mine.b, from);
    return inLine % 2 == 0 ? even : odd;
  }
};

// The first sizeBytes of a unit at any address of user memory. Whole units in the widest accesses that fit,
// others byte by byte: there is one at a message's end.
PEAL_DEVICE Vec16 loadUnit(const std::byte* from, uint32_t sizeBytes) {
  const auto at = reinterpret_cast<uintptr_t>(from);
  if (sizeBytes == kUnitBytes && at % kUnitBytes == 0) {
    return load16(from);
  }
  if (sizeBytes == kUnitBytes && at % 4 == 0) {
    const auto* words = reinterpret_cast<const uint32_t*>(from);
    return {{loadGlobal(words), loadGlobal(words + 1), loadGlobal(words + 2), loadGlobal(words + 3)}};
  }
  uint64_t low = 0, high = 0;
  PEAL_KEEP_LOOP
  for (uint32_t i = 0; i < sizeBytes; ++i) {
    const uint64_t value = loadGlobal(reinterpret_cast<const uint8_t*>(from) + i);
    (i < 8 ? low : high) |= value << (i % 8 * 8);
  }
  return unitOf(low, high);
}

PEAL_DEVICE void storeUnit(std::byte* to, uint32_t sizeBytes, Vec16 unit) {
  const auto at = reinterpret_cast<uintptr_t>(to);
  if (sizeBytes == kUnitBytes && at % kUnitBytes == 0) {
    store16(to, unit);
    return;
  }
  if (sizeBytes == kUnitBytes && at % 4 == 0) {
    PEAL_UNROLL
    for (uint32_t i = 0; i < 4; ++i) {
      storeGlobal(reinterpret_cast<uint32_t*>(to) + i, unit.word[i]);
    }
    return;
  }
  PEAL_KEEP_LOOP
  for (uint32_t i = 0; i < sizeBytes; ++i) {
    const uint64_t half = i < 8 ? lowWord(unit) : highWord(unit);
    storeGlobal(reinterpret_cast<uint8_t*>(to) + i, static_cast<uint8_t>(half >> (i % 8 * 8)));
  }
}

}  // namespace peal::cuda
