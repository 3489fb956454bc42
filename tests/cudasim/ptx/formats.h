// The registers of PTX and the formats that their bits may be read as; how a value is rounded to one. NaN of
// 32 bits is 0x7fffffff, as on the device.
#pragma once
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <type_traits>

namespace peal::cudasim::ptx {

using u8 = uint8_t;
using u16 = uint16_t;
using u32 = uint32_t;
using u64 = uint64_t;
using s8 = int8_t;
using s16 = int16_t;
using s32 = int32_t;
using s64 = int64_t;
using b8 = u8;
using b16 = u16;
using b32 = u32;
using b64 = u64;
using f32 = float;
using f64 = double;
using pred = bool;

template <size_t kBytes>
struct UnsignedOf;
template <>
struct UnsignedOf<1> : std::type_identity<u8> {};
template <>
struct UnsignedOf<2> : std::type_identity<u16> {};
template <>
struct UnsignedOf<4> : std::type_identity<u32> {};
template <>
struct UnsignedOf<8> : std::type_identity<u64> {};

// The register that holds a T, and a type of at least 32 bits for arithmetic on it without promotion to int.
template <class T>
using Bits = typename UnsignedOf<sizeof(T)>::type;
template <class T>
using Wide = typename UnsignedOf<(sizeof(T) < 4 ? 4 : sizeof(T))>::type;
template <class T>
constexpr u32 kWidth = sizeof(T) * 8;

template <class T>
constexpr T read(Bits<T> bits) {
  return std::bit_cast<T>(bits);
}
template <class T>
constexpr Bits<T> write(T value) {
  return std::bit_cast<Bits<T>>(value);
}

// A register that was never written reads as this.
template <class T>
constexpr T kPoison = static_cast<T>(0xdeadbeefdeadbeefull);

// Bits of a literal.
constexpr u32 floatBits(float value) { return std::bit_cast<u32>(value); }

// ---- formats of 16 bits ----
struct f16 {
  uint16_t bits;
};
struct bf16 {
  uint16_t bits;
};

inline float widen(bf16 value) { return std::bit_cast<float>(static_cast<u32>(value.bits) << 16); }
inline float widen(f16 value) {
  const u32 sign = (value.bits & 0x8000u) << 16;
  const u32 exponent = (value.bits >> 10) & 31u;
  const u32 fraction = value.bits & 0x3ffu;
  if (exponent == 31) {
    return std::bit_cast<float>(fraction != 0 ? 0x7fffffffu : sign | 0x7f800000u);
  }
  if (exponent == 0) {
    const float magnitude = static_cast<float>(fraction) * 0x1p-24F;
    return sign != 0 ? -magnitude : magnitude;
  }
  return std::bit_cast<float>(sign | ((exponent + 112) << 23) | (fraction << 13));
}
inline float widen(float value) { return value; }
inline double widen(double value) { return value; }

template <class T>
constexpr bool kIsFloat = std::is_floating_point_v<T> || std::is_same_v<T, f16> || std::is_same_v<T, bf16>;

enum class Round { Nearest, Zero, Down, Up };

// `value` in units of `unit`, an integer, rounded as asked.
inline long double roundInteger(long double value, Round round) {
  switch (round) {
    case Round::Nearest:
      return std::nearbyint(value);
    case Round::Zero:
      return std::trunc(value);
    case Round::Down:
      return std::floor(value);
    case Round::Up:
      break;
  }
  return std::ceil(value);
}

// Shape of a binary format: bits of the fraction without the leading one, smallest and largest exponent.
template <class T>
struct Format;
template <>
struct Format<f16> {
  static constexpr int kFraction = 10, kLeast = -14, kMost = 15;
  static constexpr u64 kNan = 0x7fff;
};
template <>
struct Format<bf16> {
  static constexpr int kFraction = 7, kLeast = -126, kMost = 127;
  static constexpr u64 kNan = 0x7fff;
};
template <>
struct Format<f32> {
  static constexpr int kFraction = 23, kLeast = -126, kMost = 127;
  static constexpr u64 kNan = 0x7fffffff;
};
template <>
struct Format<f64> {
  static constexpr int kFraction = 52, kLeast = -1022, kMost = 1023;
  static constexpr u64 kNan = 0x7fffffffffffffff;
};

// Rounds an exact value to a format. Long double holds every value of 64 bits, integer or float, exactly.
template <class T>
Bits<T> narrow(long double value, Round round) {
  using F = Format<T>;
  if (std::isnan(value)) {
    return static_cast<Bits<T>>(F::kNan);
  }
  constexpr u64 kSign = u64{1} << (kWidth<T> - 1);
  constexpr u64 kInfinity = (u64{F::kMost} * 2 + 1) << F::kFraction;
  const u64 sign = std::signbit(value) ? kSign : 0;
  if (std::isinf(value)) {
    return static_cast<Bits<T>>(sign | kInfinity);
  }
  if (value == 0) {
    return static_cast<Bits<T>>(sign);
  }
  const int exponent = std::max(std::ilogb(value), F::kLeast);
  const long double units = std::fabs(roundInteger(std::scalbn(value, F::kFraction - exponent), round));
  // Units below 2^kFraction are subnormal; rounding up to the next power of two carries into the exponent.
  const u64 whole = static_cast<u64>(units);
  const u64 biased = static_cast<u64>(exponent - F::kLeast) << F::kFraction;
  const u64 magnitude = std::min(biased + whole, kInfinity);
  const bool away =
      round == Round::Nearest || (round == Round::Up && sign == 0) || (round == Round::Down && sign != 0);
  return static_cast<Bits<T>>(sign | (magnitude == kInfinity && !away ? kInfinity - 1 : magnitude));
}

// The frequent ones, without long double.
inline u16 narrowNearest(float value, bf16 /*format*/) {
  const u32 bits = std::bit_cast<u32>(value);
  if (std::isnan(value)) {
    return 0x7fff;
  }
  return static_cast<u16>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}
inline u16 narrowNearest(float value, f16 /*format*/) {
  if (std::isnan(value)) {
    return 0x7fff;
  }
  const u32 bits = std::bit_cast<u32>(value);
  const u32 sign = (bits >> 16) & 0x8000u;
  const u32 magnitude = bits & 0x7fffffffu;
  if (magnitude >= 0x47800000u) {
    return static_cast<u16>(sign | 0x7c00u);  // 2^16 and more
  }
  if (magnitude < 0x38800000u) {  // subnormal: the sum's last bit is worth 2^-24, and it rounds to nearest
    const float sum = std::bit_cast<float>(magnitude) + 0.5F;
    return static_cast<u16>(sign | (std::bit_cast<u32>(sum) - 0x3f000000u));
  }
  const u32 rounded = magnitude - (112u << 23) + 0xfffu + ((magnitude >> 13) & 1u);
  return static_cast<u16>(sign | (rounded >> 13));
}

// ---- results of floating-point arithmetic ----
template <class T>
Bits<T> settle(T value) {
  if constexpr (sizeof(T) == 4) {
    return value == value ? write(value) : 0x7fffffffu;
  } else {
    return write(value);
  }
}
// Formats of 16 bits compute in float: one operation on them rounds there without harm (24 >= 2 * 11 + 2).
template <class T, class Operation>
Bits<T> compute(Operation operation, Bits<T> a, Bits<T> b) {
  if constexpr (std::is_floating_point_v<T>) {
    return settle<T>(operation(read<T>(a), read<T>(b)));
  } else {
    return narrowNearest(operation(widen(read<T>(a)), widen(read<T>(b))), T{});
  }
}

}  // namespace peal::cudasim::ptx
