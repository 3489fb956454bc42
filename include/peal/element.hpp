// The error that peal.hpp throws, and the element types that it can send and reduce. Included by peal.hpp.
#ifndef PEAL_ELEMENT_HPP
#define PEAL_ELEMENT_HPP

#include <bit>
#include <concepts>
#include <cstdint>
#include <ranges>
#include <stdexcept>
#include <string>
#include <type_traits>

#include "peal/peal.h"

namespace peal {
// Inline, so that users write peal::Error while the linker's names cannot meet those of the library.
inline namespace face {

// ---- errors ----------------------------------------------------------------------------------------

// What a failed call throws. what() is the sentence: what was observed, where, and what to do.
class Error : public std::runtime_error {
 public:
  Error(pealResult_t code, const std::string& sentence) : std::runtime_error(sentence), code_(code) {}
  pealResult_t code() const noexcept { return code_; }

 private:
  pealResult_t code_;
};

// Throws unless `result` is pealSuccess, with the calling thread's last error as the sentence. (Not the
// communicator's: another thread's abort may have freed it by now.)
inline void check(pealResult_t result) {
  if (result == pealSuccess) {
    return;
  }
  const std::string sentence = pealGetLastError(nullptr);
  throw Error(result, sentence.empty() ? pealGetErrorString(result) : sentence);
}

// ---- element types -------------------------------------------------------------------------------------

// Storage for a bfloat16: the upper half of a float. Converts; does no arithmetic.
struct Bfloat16 {
  uint16_t bits = 0;

  Bfloat16() = default;
  // Rounds to nearest, ties to even; a NaN stays a NaN.
  explicit Bfloat16(float value) {
    const uint32_t full = std::bit_cast<uint32_t>(value);
    const bool isNan = (full & 0x7fffffffu) > 0x7f800000u;
    const uint32_t rounded = full + 0x7fffu + ((full >> 16) & 1u);
    bits = static_cast<uint16_t>(isNan ? (full >> 16) | 0x40u : rounded >> 16);
  }
  explicit operator float() const { return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16); }
  static Bfloat16 fromBits(uint16_t bits) {
    Bfloat16 value;
    value.bits = bits;
    return value;
  }
  // Of the bits: unlike floats, equal NaNs are equal and 0 differs from -0.
  bool operator==(const Bfloat16&) const = default;
};

// Storage without conversions: whoever has such data has a type for it already.
struct Float16 {
  uint16_t bits = 0;
  bool operator==(const Float16&) const = default;
};
struct Float8e4m3 {
  uint8_t bits = 0;
  bool operator==(const Float8e4m3&) const = default;
};
struct Float8e5m2 {
  uint8_t bits = 0;
  bool operator==(const Float8e5m2&) const = default;
};
static_assert(sizeof(Bfloat16) == 2 && sizeof(Float16) == 2 && sizeof(Float8e4m3) == 1 &&
              sizeof(Float8e5m2) == 1);

namespace detail {

// The data type of T, or pealNumTypes if it has none. Integers go by size and sign, so `long` works wherever
// it is; bool is no number.
template <class T>
constexpr pealDataType_t dataTypeOrNone() {
  if constexpr (std::same_as<T, float>) {
    return pealFloat32;
  } else if constexpr (std::same_as<T, double>) {
    return pealFloat64;
  } else if constexpr (std::same_as<T, Bfloat16>) {
    return pealBfloat16;
  } else if constexpr (std::same_as<T, Float16>) {
    return pealFloat16;
  } else if constexpr (std::same_as<T, Float8e4m3>) {
    return pealFloat8e4m3;
  } else if constexpr (std::same_as<T, Float8e5m2>) {
    return pealFloat8e5m2;
  } else if constexpr (std::integral<T> && !std::same_as<T, bool>) {
    constexpr bool kSigned = std::is_signed_v<T>;
    if constexpr (sizeof(T) == 1) {
      return kSigned ? pealInt8 : pealUint8;
    } else if constexpr (sizeof(T) == 4) {
      return kSigned ? pealInt32 : pealUint32;
    } else if constexpr (sizeof(T) == 8) {
      return kSigned ? pealInt64 : pealUint64;
    } else {
      return pealNumTypes;
    }
  } else {
    return pealNumTypes;
  }
}

}  // namespace detail

// A type that peal can send and reduce. 16-bit integers are none: NCCL has no such type either.
template <class T>
concept Element = detail::dataTypeOrNone<std::remove_cv_t<T>>()
!= pealNumTypes;

template <Element T>
inline constexpr pealDataType_t dataType = detail::dataTypeOrNone<std::remove_cv_t<T>>();

// Elements to read, and elements to write. Temporaries that own their elements are refused: a call on a
// stream would use them after their end.
template <class R>
concept Input = std::ranges::contiguous_range<R> && std::ranges::sized_range<R> &&
    std::ranges::borrowed_range<R> && Element<std::ranges::range_value_t<R>>;
template <class R>
concept Output = Input<R> && std::is_lvalue_reference_v<std::ranges::range_reference_t<R>> &&
    !std::is_const_v<std::remove_reference_t<std::ranges::range_reference_t<R>>>;
template <class A, class B>
concept SameElements = std::same_as<std::ranges::range_value_t<A>, std::ranges::range_value_t<B>>;

}  // namespace face
}  // namespace peal

#endif  // PEAL_ELEMENT_HPP
