// The sum of squares of bf16 or fp32 values, exact.
//
// A finite fp32 value is an integer below 2^24 times a power of two, so its square is an integer below 2^48
// times one of 254 powers of four; a bf16 value is an fp32 value. The sum is kept as one fixed-point number
// of 32-bit limbs that covers all of fp32's range, 2^-298 and up: no rounding, no underflow, no saturation.
// Two such numbers add limb by limb in int64, which is what the ranks' small all-reduce does. So the norm
// does not depend on how gradients are divided over ranks, buckets or loops.
//
// Fast path: in a block of 128 bf16 values whose exponents span at most 15, all squares are multiples of one
// unit and their sum is below 2^53 units, so plain fp64 additions are exact too, in any order. Squares of
// fp32 values are cut into three products of 24 bits, whose sums are exact if exponents span at most 11.
// Other blocks (a few in a hundred for normally distributed values) go value by value through a table of 256
// exponents.
//
// Bounds: 2^36 values per SquareSum, 2^20 ranks.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "lib/zero/loops.h"

namespace peal::zero {

constexpr size_t kSquareLimbs = 20;
constexpr size_t kExponents = 256;

// Sums of the squared integers of values, by exponent field: `low` of the parts below 2^32 of what was added,
// `high` of those from there to 2^64, `top` of the rest, each number below 2^64. Not all [255] are 0 if a
// value was infinite or NaN. Of bf16 values `top` stays 0.
struct CountedSquares {
  std::array<uint64_t, kExponents> low, high, top;
};

class SquareSum {
 public:
  explicit SquareSum(const Loops& with = loops()) : loops_(&with) {}
  void add(const uint16_t* values, size_t count);
  void add(const float* values, size_t count);
  void add(const SquareSum& other);
  // What a kernel has counted (cuda/kernels.h), of bf16 values or of fp32 ones.
  enum class Counted { Bf16, Fp32 };
  void addCounted(const CountedSquares& counted, Counted of);
  // The sum in units of 2^-298, limb i worth 2^(32 i); each below 2^32.
  std::array<int64_t, kSquareLimbs> limbs() const;
  // 1 if a value was infinite or NaN, else 0. Such values are in no limb.
  int64_t nonFinite() const { return sums_[kNonFiniteExponent] != 0 ? 1 : 0; }

 private:
  static constexpr size_t kNonFiniteExponent = 255;
  void addSingly(const uint16_t* values, size_t count);
  void addSingly(const float* values, size_t count);

  const Loops* loops_;
  std::array<unsigned __int128, kExponents> sums_{};  // of squared integers, by exponent field
  std::array<int64_t, kSquareLimbs> limbs_{};
};

// Limbs, possibly the sum of several ranks', as a double: the 64 or more leading bits count.
double squareSumValue(std::span<const int64_t> limbs);

}  // namespace peal::zero
