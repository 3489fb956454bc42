// Squares of bf16 or fp32 values, counted in integers, so that the sum does not depend on who adds what when
// (norm.h). A warp takes 256 values at a time; those whose exponents are close enough to the least one are
// all multiples of its unit, and their sum is exact. What is further off, rare in gradients, comes in another
// turn.
//
// bf16: squares are below 2^16, exponents within 15 are taken together: sums are below 2^54 units. fp32:
// squares are below 2^48 and cut in two at bit 32, exponents within 11: the sums of the parts are below 2^62
// units, and below 2^46 times 2^32 units.
#include "lib/zero/cuda/eight.cuh"
#include "lib/zero/cuda/kernels.h"

namespace peal::cuda {

constexpr uint32_t kWarpLanes = 32;
constexpr uint32_t kSquareWarps = kZeroSquareThreads / kWarpLanes;
constexpr uint32_t kExponentFields = 256;
constexpr uint32_t kNonFiniteField = 255;
constexpr uint32_t kNothing = 0xffffffffu;

// A value as an integer, and the exponent field that says its unit.
template <class Value>
struct Bits;
template <>
struct Bits<uint16_t> {
  using Square = uint32_t;
  static constexpr uint32_t kUnitSpan = 15;
  static constexpr uint32_t kMantissaBits = 7;
  PEAL_DEVICE static uint32_t of(uint16_t value) { return value; }
};
template <>
struct Bits<float> {
  using Square = uint64_t;
  static constexpr uint32_t kUnitSpan = 11;
  static constexpr uint32_t kMantissaBits = 23;
  PEAL_DEVICE static uint32_t of(float value) { return __builtin_bit_cast(uint32_t, value); }
};

// Sums by exponent field, of which `part` 0, 1, 2 count units of 1, 2^32 and 2^64: those of bf16 values need
// two. Only the first lane of a warp touches its row.
template <uint32_t kParts>
struct SquareRows {
  uint64_t part[kParts][kSquareWarps][kExponentFields];
};

// Eight values as squared integers, and the exponents whose units these are.
template <class Value>
struct Squares {
  typename Bits<Value>::Square square[kEight];
  uint32_t exponent[kEight];
};

template <class Value>
PEAL_DEVICE Squares<Value> squaresOf(const Eight<Value>& values) {
  using Square = typename Bits<Value>::Square;
  constexpr uint32_t kBits = Bits<Value>::kMantissaBits;
  Squares<Value> squares;
  PEAL_UNROLL
  for (uint32_t k = 0; k < kEight; ++k) {
    const uint32_t bits = Bits<Value>::of(values.get(k));
    const uint32_t field = (bits >> kBits) & 0xffu;
    const Square integer = (bits & ((1u << kBits) - 1)) | (field != 0 ? 1u << kBits : 0u);
    squares.square[k] = integer * integer;
    squares.exponent[k] = field != 0 ? field : 1;  // subnormals have the unit of field 1
  }
  return squares;
}

// Elements [first, first + 8) of the array; zeros where it has none. first: below zero before the array.
template <class Value>
PEAL_DEVICE Eight<Value> loadValues(const Value* array, int64_t count, int64_t first) {
  if (first >= 0 && first + static_cast<int64_t>(kEight) <= count) {
    return loadEight(array + first);
  }
  Eight<Value> values{};
  PEAL_UNROLL
  for (uint32_t k = 0; k < kEight; ++k) {
    const int64_t i = first + k;
    if (i >= 0 && i < count) {
      values.put(k, loadGlobal(array + i));
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
template <class Value>
PEAL_DEVICE uint32_t leastExponent(const Squares<Value>& squares) {
  uint32_t least = kNothing;
  PEAL_UNROLL
  for (uint32_t k = 0; k < kEight; ++k) {
    least = squares.square[k] != 0 && squares.exponent[k] < least ? squares.exponent[k] : least;
  }
  return leastOfWarp(least);
}

PEAL_DEVICE void addToRows(SquareRows<2>& rows, uint32_t warp, uint32_t least, uint64_t low, uint64_t) {
  rows.part[0][warp][least] += low & 0xffffffffu;
  rows.part[1][warp][least] += low >> 32;
}
PEAL_DEVICE void addToRows(SquareRows<3>& rows, uint32_t warp, uint32_t least, uint64_t low, uint64_t high) {
  const uint64_t upper = (low >> 32) + high;
  rows.part[0][warp][least] += low & 0xffffffffu;
  rows.part[1][warp][least] += upper & 0xffffffffu;
  rows.part[2][warp][least] += upper >> 32;
}

// All lanes of the warp, which have 256 values together.
template <class Value, class Rows>
PEAL_DEVICE void countSquares(Rows& rows, Squares<Value> squares) {
  constexpr bool kIsWide = sizeof(Value) == 4;
  PEAL_KEEP_LOOP
  for (uint32_t least = leastExponent(squares); least != kNothing; least = leastExponent(squares)) {
    uint64_t low = 0;
    uint64_t high = 0;
    PEAL_UNROLL
    for (uint32_t k = 0; k < kEight; ++k) {
      const uint32_t above = squares.exponent[k] - least;
      const bool isNear =
          above <= Bits<Value>::kUnitSpan && (squares.exponent[k] != kNonFiniteField || above == 0);
      if (squares.square[k] != 0 && isNear) {
        const uint64_t square = squares.square[k];
        low += (square & 0xffffffffu) << (2 * above);
        high += kIsWide ? (square >> 32) << (2 * above) : 0;
        squares.square[k] = 0;
      }
    }
    low = sumOfWarp(low);
    high = kIsWide ? sumOfWarp(high) : 0;
    if (laneIndex() == 0) {
      addToRows(rows, threadIndex() / kWarpLanes, least, low, high);
    }
  }
}

template <class Value, uint32_t kParts>
PEAL_DEVICE void squaresOfAll(const ZeroSquaresArgs& args, SquareRows<kParts>& rows) {
  for (uint32_t i = threadIndex(); i < kSquareWarps * kExponentFields; i += blockThreads()) {
    PEAL_UNROLL
    for (uint32_t part = 0; part < kParts; ++part) {
      rows.part[part][i / kExponentFields][i % kExponentFields] = 0;
    }
  }
  syncBlock();
  const auto* values = static_cast<const Value*>(args.values);
  // Tiles begin where an aligned address does, so the first may begin before the array.
  const auto before = static_cast<int64_t>(reinterpret_cast<uintptr_t>(values) % 16 / sizeof(Value));
  constexpr int64_t kTile = kWarpLanes * kEight;
  const auto count = static_cast<int64_t>(args.count);
  const int64_t tiles = (count + before + kTile - 1) / kTile;
  const auto warps = static_cast<int64_t>(gridThreads() / kWarpLanes);
  PEAL_KEEP_LOOP
  for (auto tile = static_cast<int64_t>(gridThread() / kWarpLanes); tile < tiles; tile += warps) {
    const int64_t first = tile * kTile + int64_t{laneIndex()} * kEight - before;
    countSquares(rows, squaresOf(loadValues(values, count, first)));
  }
  syncBlock();
  for (uint32_t field = threadIndex(); field < kExponentFields; field += blockThreads()) {
    PEAL_UNROLL
    for (uint32_t part = 0; part < kParts; ++part) {
      uint64_t sum = 0;
      for (uint32_t warp = 0; warp < kSquareWarps; ++warp) {
        sum += rows.part[part][warp][field];
      }
      if (sum != 0) {
        (void)fetchAdd(args.counted + part * kExponentFields + field, sum);
      }
    }
  }
}

PEAL_KERNEL void PEAL_LAUNCH_BOUNDS(512) zeroSquares(PEAL_GRID_CONSTANT ZeroSquaresArgs args) {
  PEAL_SHARED(SquareRows<2>, rows);
  squaresOfAll<uint16_t>(args, rows);
}

PEAL_KERNEL void PEAL_LAUNCH_BOUNDS(512) zeroWideSquares(PEAL_GRID_CONSTANT ZeroSquaresArgs args) {
  PEAL_SHARED(SquareRows<3>, rows);
  squaresOfAll<float>(args, rows);
}

}  // namespace peal::cuda
