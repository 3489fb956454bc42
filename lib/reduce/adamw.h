// AdamW's arithmetic, one text for host and device. Every step is one IEEE operation (nothing contracted, no
// approximate reciprocal), so every instruction set and every GPU gives the same bits.
//
// Called by the loops of lib/zero/ and by the kernels of lib/executor/cuda/. Knows no memory and no ranks.
//
// Loshchilov and Hutter, "Decoupled weight decay regularization", ICLR 2019.
#pragma once
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "algorithms/platform.h"

namespace peal {

// Above 0 in fp32, and not a denormal either: an element that never had a gradient has moments of 0, and its
// update is 0 / (0 + epsilon).
inline constexpr double kLeastEpsilon = 1.2e-38;

struct AdamwSettings {
  double beta1, beta2, epsilon, weightDecay;  // epsilon: from kLeastEpsilon
};

// What the elements need, in the precision that they are computed in.
struct AdamwScalars {
  float gradientScale;  // clip factor / tokens
  float beta1, oneMinusBeta1;
  float beta2, oneMinusBeta2;
  float stepSize;          // lr / (1 - beta1^t)
  float secondCorrection;  // 1 / sqrt(1 - beta2^t)
  float epsilon;
  float decayFactor;  // 1 - lr * weightDecay, or 1
};

// Internal linkage: the host's loops are compiled once per instruction set, and a function shared between
// them could be linked from the one that this processor cannot run.
namespace {

// By squaring, since pow() differs between libraries in its last bits.
PEAL_HD inline double wholePower(double base, uint64_t exponent) {
  double power = 1;
  for (; exponent != 0; exponent >>= 1) {
    power = (exponent & 1) != 0 ? power * base : power;
    base = base * base;
  }
  return power;
}

// Scalars of update number `step` (from 1), without decay: computed in double, rounded once.
PEAL_HD inline AdamwScalars adamwScalars(const AdamwSettings& settings, double learningRate, uint64_t step,
                                         double gradientScale) {
  const double correction1 = 1 - wholePower(settings.beta1, step);
  const double correction2 = 1 - wholePower(settings.beta2, step);
  AdamwScalars scalars{};
  scalars.gradientScale = static_cast<float>(gradientScale);
  scalars.beta1 = static_cast<float>(settings.beta1);
  scalars.oneMinusBeta1 = static_cast<float>(1 - settings.beta1);
  scalars.beta2 = static_cast<float>(settings.beta2);
  scalars.oneMinusBeta2 = static_cast<float>(1 - settings.beta2);
  scalars.stepSize = static_cast<float>(learningRate / correction1);
  scalars.secondCorrection = static_cast<float>(1 / sqrt(correction2));
  scalars.epsilon = static_cast<float>(settings.epsilon);
  scalars.decayFactor = 1;
  return scalars;
}

// AdamwScalars::decayFactor of parameters that decay.
PEAL_HD inline float adamwDecayFactor(double learningRate, double weightDecay) {
  return static_cast<float>(1 - learningRate * weightDecay);
}

// One element: its master weight and moments in place.
PEAL_HD inline void adamwElement(const AdamwScalars& c, float gradient, float& master, float& moment1,
                                 float& moment2) {
  const float g = gradient * c.gradientScale;
  moment1 = moment1 * c.beta1 + g * c.oneMinusBeta1;
  moment2 = moment2 * c.beta2 + (g * g) * c.oneMinusBeta2;
  const float denominator = sqrtf(moment2) * c.secondCorrection + c.epsilon;
  master = master * c.decayFactor - c.stepSize * (moment1 / denominator);
}

PEAL_HD inline float fromBf16(uint16_t value) {
  return __builtin_bit_cast(float, static_cast<uint32_t>(value) << 16);
}

// To nearest even; NaN stays NaN.
PEAL_HD inline uint16_t toBf16(float value) {
  const uint32_t bits = __builtin_bit_cast(uint32_t, value);
  const uint32_t rounded = bits + 0x7fffu + ((bits >> 16) & 1u);
  const uint32_t quietNan = bits | 0x400000u;
  const bool isNan = (bits & 0x7fffffffu) > 0x7f800000u;
  return static_cast<uint16_t>((isNan ? quietNan : rounded) >> 16);
}

// A master weight in two halves: the bf16 weight, rounded to nearest, ties away from zero, and what the
// master is more, in units of its last place. With ties to even that would not be exact: an even weight then
// has 65537 masters. NaNs become one NaN, since the largest of them have no weight above.
PEAL_HD inline uint32_t splitBits(float master) {
  const uint32_t bits = __builtin_bit_cast(uint32_t, master);
  const bool isNan = (bits & 0x7fffffffu) > 0x7f800000u;
  return isNan ? (bits & 0x80000000u) | 0x7fc00000u : bits;
}
PEAL_HD inline uint16_t splitWeight(float master) {
  return static_cast<uint16_t>((splitBits(master) + 0x8000u) >> 16);
}
PEAL_HD inline int16_t splitRemainder(float master) { return static_cast<int16_t>(splitBits(master)); }
PEAL_HD inline float joinMaster(uint16_t weight, int16_t remainder) {
  return __builtin_bit_cast(float, (static_cast<uint32_t>(weight) << 16) + static_cast<uint32_t>(remainder));
}

// Sixteen bits for one element of one step: they depend on nothing else, so not on the number of ranks. The
// mixer is the finisher of SplitMix64 (Steele, Lea and Flood, OOPSLA 2014).
PEAL_HD inline uint32_t roundingBits(uint64_t seed, uint64_t step, uint64_t index) {
  uint64_t x = (seed ^ (step * 0xd1342543de82ef95u)) + (index + 1) * 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return static_cast<uint32_t>((x ^ (x >> 31)) >> 48);
}

// Up with the probability of the part that is cut off, so that the expectation is the value. What has no
// larger neighbour in bf16 (the largest magnitude, infinity) and NaN are as toBf16 has them.
PEAL_HD inline uint16_t stochasticBf16(float value, uint32_t bits16) {
  const uint32_t bits = __builtin_bit_cast(uint32_t, value);
  const bool special = (bits & 0x7fffffffu) >= 0x7f7f0000u;
  return special ? toBf16(value) : static_cast<uint16_t>((bits + bits16) >> 16);
}

}  // namespace
}  // namespace peal
