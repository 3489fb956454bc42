// bf16 in plain integer operations, so that loops over it vectorize. Round to nearest even; NaN stays NaN.
#pragma once
#include <bit>
#include <cstdint>

namespace peal::zero {
namespace {

inline float fromBf16(uint16_t value) { return std::bit_cast<float>(static_cast<uint32_t>(value) << 16); }

inline uint16_t toBf16(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  const uint32_t rounded = bits + 0x7fffu + ((bits >> 16) & 1u);
  const uint32_t quietNan = bits | 0x400000u;
  const bool isNan = (bits & 0x7fffffffu) > 0x7f800000u;
  return static_cast<uint16_t>((isNan ? quietNan : rounded) >> 16);
}

}  // namespace
}  // namespace peal::zero
