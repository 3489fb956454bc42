// Kernels of kernels.h. Elementwise passes take eight elements a thread, with 16-byte accesses where values
// and sums are aligned alike.
//
// Squares are counted in integers, so the sum does not depend on who adds what when (norm.h). A warp takes
// 256 values at a time; those whose exponents are within 15 of the least one are all multiples of its unit,
// and their sum is below 2^54 units. What is further off, rare in gradients, comes in another turn.
#include "lib/executor/cuda/device.h"
#include "lib/reduce/adamw.h"
#include "lib/zero/cuda/kernels.h"

namespace peal::cuda {

constexpr uint32_t kPassLanes = 8;

PEAL_DEVICE uint64_t gridThread() { return uint64_t{blockIndex()} * blockThreads() + threadIndex(); }
PEAL_DEVICE uint64_t gridThreads() { return uint64_t{gridBlocks()} * blockThreads(); }

PEAL_DEVICE float passWord(Vec16 low, Vec16 high, uint32_t k) {
  return __builtin_bit_cast(float, k < 4 ? low.word[k] : high.word[k - 4]);
}

// What a pass makes of one element: the value that goes on as bf16 (isRounded) or as the sum.
struct WidenPass {
  static constexpr bool kReadsSums = false, kRounds = false;
  PEAL_DEVICE static float of(float value, float) { return value; }
};
struct AddPass {
  static constexpr bool kReadsSums = true, kRounds = false;
  PEAL_DEVICE static float of(float value, float sum) { return sum + value; }
};
struct AddAndRoundPass {
  static constexpr bool kReadsSums = true, kRounds = true;
  PEAL_DEVICE static float of(float value, float sum) { return sum + value; }
};

template <class Made>
PEAL_DEVICE void passOne(const ZeroPassArgs& args, uint64_t i) {
  const float sum = Made::kReadsSums ? loadGlobal(args.sums + i) : 0.0f;
  const float made = Made::of(fromBf16(loadGlobal(args.values + i)), sum);
  if (Made::kRounds) {
    storeGlobal(args.values + i, toBf16(made));
  } else {
    storeGlobal(args.sums + i, made);
  }
}

// Elements [i, i + 8), whose addresses are multiples of 16.
template <class Made>
PEAL_DEVICE void passEight(const ZeroPassArgs& args, uint64_t i) {
  const Vec16 values = load16(args.values + i);
  Vec16 low{}, high{};
  if (Made::kReadsSums) {
    low = load16(args.sums + i);
    high = load16(args.sums + i + 4);
  }
  Vec16 rounded{};
  PEAL_UNROLL
  for (uint32_t k = 0; k < kPassLanes; ++k) {
    const auto value = static_cast<uint16_t>(values.word[k / 2] >> (16 * (k % 2)));
    const float made = Made::of(fromBf16(value), passWord(low, high, k));
    if (Made::kRounds) {
      rounded.word[k / 2] |= static_cast<uint32_t>(toBf16(made)) << (16 * (k % 2));
    } else {
      (k < 4 ? low.word[k] : high.word[k - 4]) = __builtin_bit_cast(uint32_t, made);
    }
  }
  if (Made::kRounds) {
    store16(args.values + i, rounded);
  } else {
    store16(args.sums + i, low);
    store16(args.sums + i + 4, high);
  }
}

template <class Made>
PEAL_DEVICE void passAll(const ZeroPassArgs& args) {
  const auto at = [](const void* pointer) { return reinterpret_cast<uintptr_t>(pointer) % 16; };
  uint64_t head = (16 - at(args.values)) % 16 / 2;
  const bool together = at(args.sums + head) == 0;
  head = !together || head > args.count ? args.count : head;
  const uint64_t vectors = (args.count - head) / kPassLanes;
  for (uint64_t v = gridThread(); v < vectors; v += gridThreads()) {
    passEight<Made>(args, head + v * kPassLanes);
  }
  for (uint64_t i = gridThread(); i < head; i += gridThreads()) {
    passOne<Made>(args, i);
  }
  for (uint64_t i = head + vectors * kPassLanes + gridThread(); i < args.count; i += gridThreads()) {
    passOne<Made>(args, i);
  }
}

PEAL_KERNEL void PEAL_LAUNCH_BOUNDS(512) zeroPass(PEAL_GRID_CONSTANT ZeroPassArgs args) {
  switch (args.kind) {
    case 0:
      return passAll<WidenPass>(args);
    case 1:
      return passAll<AddPass>(args);
    case 2:
      return passAll<AddAndRoundPass>(args);
    default:
      halt();
  }
}

// ---- squares ----------------------------------------------------------------------------------------------

constexpr uint32_t kWarpLanes = 32;
constexpr uint32_t kSquareWarps = kZeroSquareThreads / kWarpLanes;
constexpr uint32_t kExponentFields = 256;
constexpr uint32_t kNonFiniteField = 255;
constexpr uint32_t kNothing = 0xffffffffu;
constexpr uint32_t kUnitSpan = 15;

// Only the first lane of a warp touches its row.
struct SquareRows {
  uint64_t low[kSquareWarps][kExponentFields];
  uint64_t high[kSquareWarps][kExponentFields];
};

// Eight values as squared integers, and the exponents whose units these are.
struct Squares {
  uint32_t square[kPassLanes];
  uint32_t exponent[kPassLanes];
};

PEAL_DEVICE Squares squaresOf(const Vec16& values) {
  Squares squares;
  PEAL_UNROLL
  for (uint32_t k = 0; k < kPassLanes; ++k) {
    const uint32_t bits = values.word[k / 2] >> (16 * (k % 2));
    const uint32_t field = (bits >> 7) & 0xffu;
    const uint32_t integer = (bits & 0x7fu) | (field != 0 ? 0x80u : 0u);
    squares.square[k] = integer * integer;
    squares.exponent[k] = field != 0 ? field : 1;  // subnormals have the unit of field 1
  }
  return squares;
}

// Elements [first, first + 8) of the array; zeros where it has none. first: below zero before the array.
PEAL_DEVICE Vec16 loadValues(const ZeroSquaresArgs& args, int64_t first) {
  const auto count = static_cast<int64_t>(args.count);
  if (first >= 0 && first + static_cast<int64_t>(kPassLanes) <= count) {
    return load16(args.values + first);
  }
  Vec16 values{};
  PEAL_UNROLL
  for (uint32_t k = 0; k < kPassLanes; ++k) {
    const int64_t i = first + k;
    if (i >= 0 && i < count) {
      values.word[k / 2] |= static_cast<uint32_t>(loadGlobal(args.values + i)) << (16 * (k % 2));
    }
  }
  return values;
}

PEAL_DEVICE uint32_t leastOfWarp(uint32_t value) {
  PEAL_UNROLL
  for (int by = 16; by > 0; by /= 2) {
    const uint32_t other = shuffleXor(value, by);
    value = other < value ? other : value;
  }
  return value;
}

PEAL_DEVICE uint64_t sumOfWarp(uint64_t value) {
  PEAL_UNROLL
  for (int by = 16; by > 0; by /= 2) {
    value += shuffleXor(value, by);
  }
  return value;
}

// The least exponent of a value that is not zero and not counted yet.
PEAL_DEVICE uint32_t leastExponent(const Squares& squares) {
  uint32_t least = kNothing;
  PEAL_UNROLL
  for (uint32_t k = 0; k < kPassLanes; ++k) {
    least = squares.square[k] != 0 && squares.exponent[k] < least ? squares.exponent[k] : least;
  }
  return leastOfWarp(least);
}

// All lanes of the warp, which have 256 values together.
PEAL_DEVICE void countSquares(SquareRows& rows, Squares squares) {
  const uint32_t warp = threadIndex() / kWarpLanes;
  PEAL_KEEP_LOOP
  for (uint32_t least = leastExponent(squares); least != kNothing; least = leastExponent(squares)) {
    uint64_t sum = 0;
    PEAL_UNROLL
    for (uint32_t k = 0; k < kPassLanes; ++k) {
      const uint32_t above = squares.exponent[k] - least;
      const bool isNear = above <= kUnitSpan && (squares.exponent[k] != kNonFiniteField || above == 0);
      if (squares.square[k] != 0 && isNear) {
        sum += static_cast<uint64_t>(squares.square[k]) << (2 * above);
        squares.square[k] = 0;
      }
    }
    sum = sumOfWarp(sum);
    if (laneIndex() == 0) {
      rows.low[warp][least] += sum & 0xffffffffu;
      rows.high[warp][least] += sum >> 32;
    }
  }
}

PEAL_KERNEL void PEAL_LAUNCH_BOUNDS(512) zeroSquares(PEAL_GRID_CONSTANT ZeroSquaresArgs args) {
  PEAL_SHARED(SquareRows, rows);
  for (uint32_t i = threadIndex(); i < kSquareWarps * kExponentFields; i += blockThreads()) {
    rows.low[i / kExponentFields][i % kExponentFields] = 0;
    rows.high[i / kExponentFields][i % kExponentFields] = 0;
  }
  syncBlock();
  // Tiles begin where an aligned address does, so the first may begin before the array.
  const auto before = static_cast<int64_t>(reinterpret_cast<uintptr_t>(args.values) % 16 / 2);
  constexpr int64_t kTile = kWarpLanes * kPassLanes;
  const int64_t tiles = (static_cast<int64_t>(args.count) + before + kTile - 1) / kTile;
  const auto warps = static_cast<int64_t>(gridThreads() / kWarpLanes);
  PEAL_KEEP_LOOP
  for (auto tile = static_cast<int64_t>(gridThread() / kWarpLanes); tile < tiles; tile += warps) {
    const int64_t first = tile * kTile + int64_t{laneIndex()} * kPassLanes - before;
    countSquares(rows, squaresOf(loadValues(args, first)));
  }
  syncBlock();
  for (uint32_t field = threadIndex(); field < kExponentFields; field += blockThreads()) {
    uint64_t low = 0;
    uint64_t high = 0;
    for (uint32_t warp = 0; warp < kSquareWarps; ++warp) {
      low += rows.low[warp][field];
      high += rows.high[warp][field];
    }
    if (low != 0 || high != 0) {
      (void)fetchAdd(args.counted + field, low);
      (void)fetchAdd(args.counted + kExponentFields + field, high);
    }
  }
}

}  // namespace peal::cuda
