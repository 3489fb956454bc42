#include "bench/harness/values.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "bench/harness/small_float.h"
#include "tools/common/error.h"

namespace peal::bench {
namespace {

// A cheap mixer: every input bit reaches the upper half of the result, which is what callers use.
inline uint64_t mix(uint64_t x) {
  x ^= x >> 32;
  x *= 0xd6e8feb86659fd93U;
  x ^= x >> 29;
  x *= 0x9e3779b97f4a7c15U;
  return x ^ (x >> 32);
}

inline uint64_t hashAt(uint64_t seed, uint64_t index) { return mix(seed + index * 0x9e3779b97f4a7c15U); }

// Largest power of a base of at most 3 that the type holds, so that products of 1, 2 and 3 are exact.
int64_t factorsOfThree(pealDataType_t type) {
  switch (type) {
    case pealInt8:
      return 4;
    case pealUint8:
      return 5;
    case pealInt32:
      return 19;
    case pealUint32:
      return 20;
    default:
      return 39;
  }
}

// Exponents from -n to n are normal numbers.
int64_t exponentRange(const TypeInfo& info) { return (1 << (info.exponentBits - 1)) - 2; }

int64_t largestExact(const TypeInfo& info) {
  switch (info.typeClass) {
    case TypeClass::Float:
      return int64_t{1} << (info.mantissaBits + 1);
    case TypeClass::Signed:
      return info.bytes == 8 ? int64_t{1} << 62 : (int64_t{1} << (8 * static_cast<int>(info.bytes) - 1)) - 1;
    case TypeClass::Unsigned:
      break;
  }
  return info.bytes == 8 ? int64_t{1} << 62 : (int64_t{1} << (8 * static_cast<int>(info.bytes))) - 1;
}

int floorLog2(int64_t number) { return static_cast<int>(std::bit_width(static_cast<uint64_t>(number))) - 1; }

// A power of two with sign, as the float product counts: twice the exponent, plus 1 if negative.
double powerOfTwo(int64_t number) {
  const double magnitude = std::ldexp(1.0, static_cast<int>(number >> 1));
  return (number & 1) != 0 ? -magnitude : magnitude;
}

template <class T>
void store(void* out, size_t index, T value) {
  std::memcpy(static_cast<std::byte*>(out) + index * sizeof(T), &value, sizeof(T));
}

}  // namespace

Values::Values(pealDataType_t type, Combine combine, int ranks, uint64_t repetition)
    : info_(typeInfo(type)),
      combine_(combine),
      ranks_(ranks),
      repetition_(repetition),
      floatProduct_(combine == Combine::Prod && info_.typeClass == TypeClass::Float),
      plan_(makePlan()) {
  if (info_.typeClass == TypeClass::Float && info_.bytes <= 2 && combine_ != Combine::Copy) {
    buildTable();
  }
}

Values::Plan Values::makePlan() const {
  Plan plan{};
  plan.exact = largestExact(info_);
  plan.contributors = ranks_;
  int64_t largest = plan.exact;
  switch (combine_) {
    case Combine::Sum:
    case Combine::Avg:
      plan.contributors = std::min<int64_t>(ranks_, plan.exact);
      largest = plan.exact / plan.contributors;
      break;
    case Combine::MulSum:  // products are up to twice as large
      plan.contributors = std::min<int64_t>(ranks_, plan.exact / 2);
      largest = plan.exact / (2 * plan.contributors);
      break;
    case Combine::Prod:
      plan.contributors =
          std::min<int64_t>(ranks_, floatProduct_ ? exponentRange(info_) : factorsOfThree(info_.type));
      break;
    case Combine::Max:
    case Combine::Min:
    case Combine::Copy:
      break;
  }
  // Signed numbers run from -2^(bits-1) to 2^(bits-1) - 1, unsigned from 0 to 2^bits - 1.
  plan.bits = info_.typeClass == TypeClass::Unsigned ? floorLog2(largest + 1) : floorLog2(largest) + 1;
  return plan;
}

void Values::buildTable() {
  tableZero_ = floatProduct_ ? 2 * exponentRange(info_) + 2 : plan_.exact;
  const auto encodeNumber = [&](float value) {
    return static_cast<uint16_t>(encodeSmallFloat(value, info_));
  };
  for (int64_t number = -tableZero_; number <= tableZero_; ++number) {
    if (floatProduct_) {
      table_.push_back(encodeNumber(static_cast<float>(powerOfTwo(number))));
    } else {
      const float whole = static_cast<float>(number);
      table_.push_back(encodeNumber(whole));
      averageTable_.push_back(encodeNumber(whole / static_cast<float>(ranks_)));
    }
  }
}

uint64_t Values::seed(int rank) const {
  return mix(repetition_ * 0xff51afd7ed558ccdU + static_cast<uint64_t>(rank) * 0xc4ceb9fe1a85ec53U + 1);
}

// Where the window of contributing ranks starts, element by element.
void Values::windowStarts(size_t first, size_t count, Chunk& starts) const {
  if (plan_.contributors == ranks_) {
    return;
  }
  const uint64_t windowSeed = mix(repetition_ ^ 0x5851f42d4c957f2dU);
  for (size_t i = 0; i < count; ++i) {
    starts[i] = static_cast<int64_t>((hashAt(windowSeed, first + i) >> 32) % static_cast<uint64_t>(ranks_));
  }
}

// The numbers that `rank` sends, before they are encoded: see powerOfTwo for products of floats.
void Values::numbers(int rank, size_t first, size_t count, const Chunk& starts, Chunk& out) const {
  const uint64_t rankSeed = seed(rank);
  const bool isUnsigned = info_.typeClass == TypeClass::Unsigned;
  if (combine_ != Combine::Prod) {
    const int shift = 64 - plan_.bits;
    const int64_t offset = isUnsigned ? 0 : int64_t{1} << (plan_.bits - 1);
    for (size_t i = 0; i < count; ++i) {
      out[i] = static_cast<int64_t>(hashAt(rankSeed, first + i) >> shift) - offset;
    }
  } else {
    for (size_t i = 0; i < count; ++i) {
      const uint64_t hash = hashAt(rankSeed, first + i) >> 32;
      const auto third = static_cast<int64_t>((hash >> 1) % 3);
      if (floatProduct_) {
        out[i] = 2 * (third - 1) + static_cast<int64_t>(hash & 1);
      } else {
        out[i] = isUnsigned || (hash & 1) == 0 ? third + 1 : -(third + 1);
      }
    }
  }
  if (plan_.contributors == ranks_) {
    return;
  }
  const int64_t neutral = combine_ == Combine::Prod && !floatProduct_ ? 1 : 0;
  for (size_t i = 0; i < count; ++i) {
    const int64_t after = rank - starts[i] + (rank < starts[i] ? ranks_ : 0);
    out[i] = after < plan_.contributors ? out[i] : neutral;
  }
}

void Values::fold(int rank, const Chunk& next, size_t count, Chunk& total) const {
  const int64_t factor = scalarOf(rank);
  for (size_t i = 0; i < count; ++i) {
    switch (combine_) {
      case Combine::Prod:  // floats: exponents add, signs cancel
        total[i] = floatProduct_
                       ? ((total[i] & ~int64_t{1}) + (next[i] & ~int64_t{1})) | ((total[i] ^ next[i]) & 1)
                       : total[i] * next[i];
        break;
      case Combine::Max:
        total[i] = std::max(total[i], next[i]);
        break;
      case Combine::Min:
        total[i] = std::min(total[i], next[i]);
        break;
      default:
        total[i] += factor * next[i];
        break;
    }
  }
}

void Values::encode(const Chunk& numbers, size_t count, bool average, void* out) const {
  const std::vector<uint16_t>& table = average ? averageTable_ : table_;
  for (size_t i = 0; i < count; ++i) {
    const int64_t number = numbers[i];
    if (!table.empty()) {
      const uint16_t bits = table[static_cast<size_t>(number + tableZero_)];
      info_.bytes == 1 ? store(out, i, static_cast<uint8_t>(bits)) : store(out, i, bits);
    } else if (info_.type == pealFloat32) {
      const float value =
          static_cast<float>(floatProduct_ ? powerOfTwo(number) : static_cast<double>(number));
      store(out, i, average ? value / static_cast<float>(ranks_) : value);
    } else if (info_.type == pealFloat64) {
      const double value = floatProduct_ ? powerOfTwo(number) : static_cast<double>(number);
      store(out, i, average ? value / ranks_ : value);
    } else {
      const int64_t whole = average ? number / ranks_ : number;  // truncates toward zero
      std::memcpy(static_cast<std::byte*>(out) + i * info_.bytes, &whole, info_.bytes);  // little-endian
    }
  }
}

void Values::raw(uint64_t rawSeed, size_t first, size_t count, void* out) const {
  for (size_t i = 0; i < count; ++i) {
    const uint64_t bits = hashAt(rawSeed, first + i);
    std::memcpy(static_cast<std::byte*>(out) + i * info_.bytes, &bits, info_.bytes);
  }
}

void Values::input(int rank, size_t first, size_t count, void* out) const {
  if (combine_ == Combine::Copy) {
    raw(seed(rank), first, count, out);
    return;
  }
  Chunk starts, own;
  for (size_t done = 0; done < count; done += kChunk) {
    const size_t part = std::min(kChunk, count - done);
    windowStarts(first + done, part, starts);
    numbers(rank, first + done, part, starts, own);
    encode(own, part, false, static_cast<std::byte*>(out) + done * info_.bytes);
  }
}

void Values::reduced(size_t first, size_t count, void* out) const {
  if (combine_ == Combine::Copy) {
    throw tools::ToolError("a copy has no reduced values.");
  }
  Chunk starts, next, total;
  for (size_t done = 0; done < count; done += kChunk) {
    const size_t part = std::min(kChunk, count - done);
    windowStarts(first + done, part, starts);
    numbers(0, first + done, part, starts, total);
    for (size_t i = 0; i < part; ++i) {
      total[i] *= scalarOf(0);
    }
    for (int rank = 1; rank < ranks_; ++rank) {
      numbers(rank, first + done, part, starts, next);
      fold(rank, next, part, total);
    }
    encode(total, part, combine_ == Combine::Avg, static_cast<std::byte*>(out) + done * info_.bytes);
  }
}

void Values::garbage(int rank, size_t first, size_t count, void* out) const {
  raw(seed(-1 - rank), first, count, out);
}

std::array<std::byte, 8> Values::scalar(int rank) const {
  std::array<std::byte, 8> element{};
  Chunk number{};
  number[0] = scalarOf(rank);
  encode(number, 1, false, element.data());
  return element;
}

}  // namespace peal::bench
