// fp16 as the device converts it: by the bits, so that no instruction of the host's is trusted.
#include <bit>
#include <cmath>

#include "lib/executor/cuda/device.h"

namespace peal::cuda {

float widenHalf(uint16_t half) {
  const uint32_t sign = (half & 0x8000u) << 16, exponent = half >> 10 & 31u, fraction = half & 0x3ffu;
  if (exponent == 31) {
    return std::bit_cast<float>(sign | 0x7f800000u | fraction << 13);
  }
  const float magnitude =
      exponent == 0 ? std::ldexp(static_cast<float>(fraction), -24)
                    : std::ldexp(static_cast<float>(fraction + 1024u), static_cast<int>(exponent) - 25);
  return std::bit_cast<float>(std::bit_cast<uint32_t>(magnitude) | sign);
}

uint16_t narrowHalf(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const auto sign = static_cast<uint16_t>(bits >> 16 & 0x8000u);
  const float magnitude = std::fabs(value);
  if (magnitude == 0.0f) {
    return sign;
  }
  if (magnitude != magnitude) {
    return 0x7e00;
  }
  if (magnitude >= 65520.0f) {  // halfway between the largest half and the power of two above it
    return static_cast<uint16_t>(sign | 0x7c00u);
  }
  // The spacing of halves here is a power of two; dividing by it is exact, and rounding goes to even.
  int exponent = 0;
  std::frexp(magnitude, &exponent);
  const int spacing = exponent - 11 < -24 ? -24 : exponent - 11;
  const auto steps = static_cast<uint32_t>(std::nearbyint(std::ldexp(magnitude, -spacing)));
  // Steps of a normal number are 1024 to 2048: the carry of 2048 moves into the exponent by itself.
  const uint32_t magnitudeBits = static_cast<uint32_t>(spacing + 24) * 1024 + steps;
  return static_cast<uint16_t>(sign | magnitudeBits);
}

}  // namespace peal::cuda
