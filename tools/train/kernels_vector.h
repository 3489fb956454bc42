// Sixteen floats as one value, for kernels_loops.h only: the compiler lowers it to whatever registers the
// file is built for. Everything here is in an unnamed namespace on purpose: code built for AVX-512 must
// never be merged by the linker with a copy that other files call.
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace peal::train {
namespace {

constexpr size_t kLanes = 16;
typedef float Vec __attribute__((vector_size(64)));
typedef int32_t VecInt __attribute__((vector_size(64)));
typedef uint32_t VecBits __attribute__((vector_size(64)));
typedef uint16_t VecHalf __attribute__((vector_size(32)));
#define PEAL_TRAIN_INLINE inline __attribute__((always_inline))

PEAL_TRAIN_INLINE Vec splat(float value) { return Vec{} + value; }

PEAL_TRAIN_INLINE Vec load(const float* from) {
  Vec value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

PEAL_TRAIN_INLINE void store(float* to, Vec value) { std::memcpy(to, &value, sizeof value); }

// The first `count` lanes from memory, the others `fill`.
PEAL_TRAIN_INLINE Vec loadPart(const float* from, size_t count, float fill) {
  Vec value = splat(fill);
  std::memcpy(&value, from, count * sizeof(float));
  return value;
}

PEAL_TRAIN_INLINE void storePart(float* to, Vec value, size_t count) {
  std::memcpy(to, &value, count * sizeof(float));
}

PEAL_TRAIN_INLINE Vec larger(Vec a, Vec b) { return a > b ? a : b; }

// Always by halves, so that the order of the sum is the same for every instruction set.
PEAL_TRAIN_INLINE float sumLanes(Vec value) {
  float lane[kLanes];
  std::memcpy(lane, &value, sizeof lane);
  for (size_t half = kLanes / 2; half > 0; half /= 2) {
    for (size_t i = 0; i < half; ++i)
      lane[i] = lane[i] + lane[i + half];
  }
  return lane[0];
}

PEAL_TRAIN_INLINE float largestLane(Vec value) {
  float lane[kLanes];
  std::memcpy(lane, &value, sizeof lane);
  float largest = lane[0];
  for (size_t i = 1; i < kLanes; ++i)
    largest = lane[i] > largest ? lane[i] : largest;
  return largest;
}

// e^x within 2 units in the last place for -87.3 <= x <= 88.3, clamped outside, NaN for NaN.
// x = n ln2 + r with |r| <= ln2/2; e^r by the polynomial of Cephes; 2^n by the exponent field.
PEAL_TRAIN_INLINE Vec expVec(Vec x) {
  const Vec low = splat(-87.3f), high = splat(88.3f);
  x = x < low ? low : x;
  x = x > high ? high : x;
  const Vec magic = splat(12582912.0f);  // 1.5 * 2^23: adding it rounds to an integer in the low bits
  Vec shifted = x * 1.44269504088896341f + magic;
  VecInt bits;
  std::memcpy(&bits, &shifted, sizeof bits);
  Vec n = shifted - magic;
  Vec r = (x - n * 0.693359375f) - n * -2.12194440e-4f;
  Vec p = splat(1.9875691500e-4f);
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = (p * (r * r) + r) + 1.0f;
  VecInt power = (bits - 0x4B400000 + 127) << 23;
  Vec scale;
  std::memcpy(&scale, &power, sizeof scale);
  return p * scale;
}

}  // namespace
}  // namespace peal::train
