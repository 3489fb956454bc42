// Vectors of kVectorBytes and small float formats in them. Only for kernels_*.cpp, which define
// kVectorBytes and streamVector first, and anyNan and HalfConversion after: everything has internal linkage,
// because it is compiled once per instruction set.
//
// The vectors are the compiler's own (GCC's vector_size), so one text serves SSE2, AVX2, AVX-512 and other
// processors, and the accumulators stay in registers.
#pragma once
#include <cstddef>
#include <cstdint>

namespace peal {
namespace {

template <class Lane>
struct VectorOf {
  typedef Lane Type __attribute__((vector_size(kVectorBytes)));
};
template <class Lane>
using Vector = typename VectorOf<Lane>::Type;
using Floats = Vector<float>;
using Words = Vector<uint32_t>;
using Ints = Vector<int32_t>;

struct Pair {
  Floats first, second;
};

// The accumulators of one step: four vectors, for four independent chains of additions.
template <class Lane>
struct Block {
  Vector<Lane> a, b, c, d;
};

template <class Lane>
inline Vector<Lane> loadVector(const char* from) {
  Vector<Lane> vector;
  __builtin_memcpy(&vector, from, sizeof vector);
  return vector;
}

// A block as it lies in memory: the first one, two or four vectors, by the width of the type.
struct Packed {
  Words a, b = Words{}, c = Words{}, d = Words{};
};

template <size_t kBytes>
inline void store(const Packed& packed, char* to) {
  static_assert(kBytes == kVectorBytes || kBytes == 2 * kVectorBytes || kBytes == 4 * kVectorBytes);
  __builtin_memcpy(to, &packed.a, kVectorBytes);
  if constexpr (kBytes >= 2 * kVectorBytes) {
    __builtin_memcpy(to + kVectorBytes, &packed.b, kVectorBytes);
  }
  if constexpr (kBytes == 4 * kVectorBytes) {
    __builtin_memcpy(to + 2 * kVectorBytes, &packed.c, kVectorBytes);
    __builtin_memcpy(to + 3 * kVectorBytes, &packed.d, kVectorBytes);
  }
}

// to: aligned to kVectorBytes.
template <size_t kBytes>
inline void stream(const Packed& packed, char* to) {
  streamVector(to, &packed.a);
  if constexpr (kBytes >= 2 * kVectorBytes) {
    streamVector(to + kVectorBytes, &packed.b);
  }
  if constexpr (kBytes == 4 * kVectorBytes) {
    streamVector(to + 2 * kVectorBytes, &packed.c);
    streamVector(to + 3 * kVectorBytes, &packed.d);
  }
}

inline Floats asFloats(Words words) { return reinterpret_cast<Floats>(words); }
inline Words asWords(Floats floats) { return reinterpret_cast<Words>(floats); }

// Comparisons of words below 2^31, which are quicker as signed ones.
inline Ints isBelow(Words x, uint32_t limit) {
  return reinterpret_cast<Ints>(x) < static_cast<int32_t>(limit);
}
inline Words smaller(Words x, uint32_t limit) { return isBelow(x, limit) ? x : Words{} + limit; }

// A binary float format of 8 or 16 bits, one value in the low bits of each 32-bit lane.
//   kCeilingBits: the fp32 bits that larger magnitudes are cut to before rounding. The largest finite value
//                 makes the format saturate, the halfway point above it makes larger values round to
//                 infinity.
//   kNanCode:     what NaN becomes, without sign.
//   kHasInfinity: the top exponent means infinity and NaN; otherwise only kNanCode is NaN (OCP E4M3).
template <int kExponentBits, int kMantissaBits, uint32_t kCeilingBits, uint32_t kNanCode, bool kHasInfinity>
struct SmallFloat {
  static constexpr uint32_t kSignBit = 1u << (kExponentBits + kMantissaBits);
  static constexpr int kShift = 23 - kMantissaBits;  // mantissa's place in fp32
  static constexpr int kBias = (1 << (kExponentBits - 1)) - 1;
  static constexpr uint32_t kRebias = static_cast<uint32_t>(127 - kBias) << 23;
  static constexpr uint32_t kLeastNormal = kRebias + (1u << 23);
  static constexpr uint32_t kTopExponent = ((1u << kExponentBits) - 1) << 23;

  static Floats widen(Words code) {
    const Words magnitude = (code & (kSignBit - 1)) << kShift;
    const Words sign = (code & kSignBit) << (31 - kExponentBits - kMantissaBits);
    // A subnormal m * 2^e is (1 + m) * 2^e - 2^e: exact, and no fp32 subnormal appears on the way.
    const Floats subnormal = asFloats(magnitude + kLeastNormal) - asFloats(Words{} + kLeastNormal);
    Words bits = isBelow(magnitude, 1u << 23) ? asWords(subnormal) : magnitude + kRebias;
    if constexpr (kHasInfinity) {
      bits = isBelow(magnitude, kTopExponent) ? bits : magnitude | 0x7f800000u;
    } else {
      bits = isBelow(magnitude, kNanCode << kShift) ? bits : Words{} + 0x7fc00000u;
    }
    return asFloats(bits | sign);
  }

  static Words narrow(Floats value) {
    const Words bits = asWords(value);
    const Words sign = (bits & 0x80000000u) >> (31 - kExponentBits - kMantissaBits);
    const Words magnitude = smaller(bits & 0x7fffffffu, kCeilingBits);
    // Adding 2^23 times the least subnormal leaves the value in units of it, rounded, in the low bits.
    constexpr uint32_t kMagic = static_cast<uint32_t>(127 + 24 - kBias - kMantissaBits) << 23;
    const Words subnormal = asWords(asFloats(magnitude) + asFloats(Words{} + kMagic)) - kMagic;
    const Words odd = (magnitude >> kShift) & 1u;
    const Words normal = (magnitude - kRebias + ((1u << (kShift - 1)) - 1) + odd) >> kShift;
    const Words code = (isBelow(magnitude, kLeastNormal) ? subnormal : normal) | sign;
    return value == value ? code : Words{} + kNanCode;
  }
};

}  // namespace
}  // namespace peal
