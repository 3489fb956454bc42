#include "lib/zero/norm.h"

#include <algorithm>
#include <bit>
#include <cmath>

namespace peal::zero {
namespace {

// 2 * 15 (the span, squared) + 16 (one square) + 7 (128 of them) = 53 bits: what a double holds.
constexpr int kMostSpan = 15;
constexpr int kMostWideSpan = 11;  // 2 * 11 + 24 (a product of parts) + 7
constexpr int kBf16Shift = 32;     // a bf16 value's integer has 16 bits fewer than an fp32 value's
constexpr size_t kBlocksAtOnce = 32;

// Exponent field of a magnitude; subnormals (field 0) have the scale of field 1.
int exponentOf(uint16_t magnitude) { return std::max(1, magnitude >> 7); }
int exponentOf(uint32_t magnitude) { return std::max(1, static_cast<int>(magnitude >> 23)); }

// Adds integer * 4^(exponent - 1) units. integer: below 2^97.
void addToLimbs(std::array<int64_t, kSquareLimbs>& limbs, unsigned __int128 integer, int exponent) {
  const size_t shift = 2 * static_cast<size_t>(exponent - 1);
  unsigned __int128 value = integer << (shift % 32);
  for (size_t limb = shift / 32; value != 0; ++limb) {
    limbs[limb] += static_cast<int64_t>(static_cast<uint32_t>(value));
    value >>= 32;
  }
}

// 2^power, |power| < 1023.
double powerOfTwo(int power) { return std::bit_cast<double>(static_cast<uint64_t>(1023 + power) << 52); }

}  // namespace

void SquareSum::addSingly(const uint16_t* values, size_t count) {
  for (size_t i = 0; i < count; ++i) {
    const size_t exponent = (values[i] >> 7) & 0xff;
    const uint64_t integer = (values[i] & 0x7fu) | (exponent != 0 ? 0x80u : 0u);
    sums_[exponent] += static_cast<unsigned __int128>(integer * integer) << kBf16Shift;
  }
}

void SquareSum::addSingly(const float* values, size_t count) {
  for (size_t i = 0; i < count; ++i) {
    const auto bits = std::bit_cast<uint32_t>(values[i]);
    const size_t exponent = (bits >> 23) & 0xff;
    const uint64_t integer = (bits & 0x7fffffu) | (exponent != 0 ? 0x800000u : 0u);
    sums_[exponent] += integer * integer;
  }
}

void SquareSum::add(const uint16_t* values, size_t count) {
  std::array<BlockSquares, kBlocksAtOnce> blocks;
  while (count >= kSquareBlock) {
    const size_t now = std::min(kBlocksAtOnce, count / kSquareBlock);
    loops_->squareBlocks(values, now, blocks.data());
    for (size_t b = 0; b < now; ++b) {
      const BlockSquares& block = blocks[b];
      if (block.most == 0) {
        continue;
      }
      const int least = exponentOf(block.least);
      const int most = exponentOf(block.most);
      if (most == static_cast<int>(kNonFiniteExponent) || most - least > kMostSpan) {
        addSingly(values + b * kSquareBlock, kSquareBlock);
      } else {
        // The unit of exponent e is 2^(2 (e - 134)): the value is integer * 2^(e - 134).
        addToLimbs(limbs_,
                   static_cast<unsigned __int128>(block.sum * powerOfTwo(-2 * (least - 134))) << kBf16Shift,
                   least);
      }
    }
    values += now * kSquareBlock;
    count -= now * kSquareBlock;
  }
  addSingly(values, count);
}

void SquareSum::add(const float* values, size_t count) {
  std::array<WideBlockSquares, kBlocksAtOnce> blocks;
  while (count >= kSquareBlock) {
    const size_t now = std::min(kBlocksAtOnce, count / kSquareBlock);
    loops_->squareBlocksFp32(values, now, blocks.data());
    for (size_t b = 0; b < now; ++b) {
      const WideBlockSquares& block = blocks[b];
      if (block.most == 0) {
        continue;
      }
      const int least = exponentOf(block.least);
      const int most = exponentOf(block.most);
      if (most == static_cast<int>(kNonFiniteExponent) || most - least > kMostWideSpan) {
        addSingly(values + b * kSquareBlock, kSquareBlock);
      } else {
        // The unit of exponent e is 2^(2 (e - 150)). High parts are multiples of 2^12 of its root.
        const auto integer = [&](double sum, int bits) {
          return static_cast<unsigned __int128>(sum * powerOfTwo(-2 * (least - 150) - bits)) << bits;
        };
        addToLimbs(limbs_, integer(block.high, 24) + 2 * integer(block.cross, 12) + integer(block.low, 0),
                   least);
      }
    }
    values += now * kSquareBlock;
    count -= now * kSquareBlock;
  }
  addSingly(values, count);
}

void SquareSum::addCounted(const CountedSquares& counted, Counted of) {
  const int shift = of == Counted::Bf16 ? kBf16Shift : 0;
  for (size_t exponent = 0; exponent < kNonFiniteExponent; ++exponent) {
    const int scale = std::max(1, static_cast<int>(exponent));
    const auto add = [&](uint64_t part, int above) {  // 2^32 is 4^16
      addToLimbs(limbs_, static_cast<unsigned __int128>(part) << shift, scale + above);
    };
    add(counted.low[exponent], 0);
    add(counted.high[exponent], 16);
    add(counted.top[exponent], 32);
  }
  for (const auto* part : {&counted.low, &counted.high, &counted.top}) {
    sums_[kNonFiniteExponent] += (*part)[kNonFiniteExponent];
  }
}

void SquareSum::add(const SquareSum& other) {
  for (size_t i = 0; i < sums_.size(); ++i) {
    sums_[i] += other.sums_[i];
  }
  for (size_t i = 0; i < limbs_.size(); ++i) {
    limbs_[i] += other.limbs_[i];
  }
}

std::array<int64_t, kSquareLimbs> SquareSum::limbs() const {
  std::array<int64_t, kSquareLimbs> limbs = limbs_;
  for (size_t exponent = 0; exponent < kNonFiniteExponent; ++exponent) {
    addToLimbs(limbs, sums_[exponent], std::max(1, static_cast<int>(exponent)));
  }
  for (size_t i = 0; i + 1 < limbs.size(); ++i) {
    limbs[i + 1] += limbs[i] >> 32;
    limbs[i] &= 0xffffffff;
  }
  return limbs;
}

double squareSumValue(std::span<const int64_t> limbs) {
  std::array<uint32_t, kSquareLimbs + 2> digits{};
  uint64_t carry = 0;
  size_t top = 0;
  for (size_t i = 0; i < digits.size(); ++i) {
    carry += i < limbs.size() ? static_cast<uint64_t>(limbs[i]) : 0;
    digits[i] = static_cast<uint32_t>(carry);
    carry >>= 32;
    top = digits[i] != 0 ? i : top;
  }
  // Three digits hold at least 65 significant bits; lower ones cannot change a double by more than one unit
  // in its last place, and the same number always gives the same double.
  double value = 0;
  for (size_t i = top + 1; i-- > (top >= 2 ? top - 2 : 0);) {
    value += std::ldexp(static_cast<double>(digits[i]), static_cast<int>(32 * i) - 298);
  }
  return value;
}

}  // namespace peal::zero
