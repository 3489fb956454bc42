// The two types that weights and gradients are kept in.
#pragma once
#include <array>
#include <cstdint>

#include "peal/peal.h"

namespace peal::zero {

enum class Precision : uint8_t { Bf16, Fp32 };
inline constexpr std::array kPrecisions{Precision::Bf16, Precision::Fp32};

constexpr uint64_t bytesOf(Precision precision) { return precision == Precision::Fp32 ? 4 : 2; }
constexpr pealDataType_t typeOf(Precision precision) {
  return precision == Precision::Fp32 ? pealFloat32 : pealBfloat16;
}

// Something of each.
template <class T>
struct PerPrecision {
  std::array<T, 2> values{};
  T& operator[](Precision precision) { return values[static_cast<size_t>(precision)]; }
  const T& operator[](Precision precision) const { return values[static_cast<size_t>(precision)]; }
};

}  // namespace peal::zero
