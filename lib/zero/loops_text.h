// The text of the loops, compiled once per instruction set by loops_baseline.cpp, loops_avx2.cpp and
// loops_avx512.cpp, and included by nothing else. All has internal linkage: a function shared between those
// files could be linked from the one that this processor cannot run.
#pragma once
#include <algorithm>
#include <array>
#include <cmath>

#include "lib/zero/bf16.h"
#include "lib/zero/loops.h"

namespace peal::zero {
namespace {

void adamwLoop(const AdamwScalars& scalars, const AdamwArgs& args) {
  const uint16_t* __restrict gradient = args.gradient;
  float* __restrict master = args.master;
  float* __restrict moment1 = args.moment1;
  float* __restrict moment2 = args.moment2;
  uint16_t* __restrict weight = args.weight;
  const AdamwScalars c = scalars;  // a copy: the stores below cannot alias it
  const size_t count = args.count;
  for (size_t i = 0; i < count; ++i) {
    const float g = fromBf16(gradient[i]) * c.gradientScale;
    const float m = moment1[i] * c.beta1 + g * c.oneMinusBeta1;
    const float v = moment2[i] * c.beta2 + (g * g) * c.oneMinusBeta2;
    const float denominator = std::sqrt(v) * c.secondCorrection + c.epsilon;
    const float w = master[i] * c.decayFactor - c.stepSize * (m / denominator);
    moment1[i] = m;
    moment2[i] = v;
    master[i] = w;
    weight[i] = toBf16(w);
  }
}

BlockSquares squareBlock(const uint16_t* __restrict values) {
  // Magnitudes are below 2^15, so signed 16-bit comparisons, which every instruction set has, order them. One
  // less than a magnitude wraps zero around to the largest.
  int16_t leastLessOne = 0x7fff;
  int16_t most = 0;
  for (size_t i = 0; i < kSquareBlock; ++i) {
    const auto magnitude = static_cast<int16_t>(values[i] & 0x7fff);
    const auto lessOne = static_cast<int16_t>((magnitude - 1) & 0x7fff);
    leastLessOne = std::min(leastLessOne, lessOne);
    most = std::max(most, magnitude);
  }
  constexpr size_t kLanes = 16;
  std::array<double, kLanes> lanes{};
  for (size_t i = 0; i < kSquareBlock; i += kLanes) {
    for (size_t lane = 0; lane < kLanes; ++lane) {
      const auto value = static_cast<double>(fromBf16(values[i + lane]));
      lanes[lane] += value * value;
    }
  }
  double sum = 0;
  for (const double lane : lanes) {
    sum += lane;
  }
  return {sum, static_cast<uint16_t>(leastLessOne + 1), static_cast<uint16_t>(most)};
}

void squareBlocksLoop(const uint16_t* values, size_t blocks, BlockSquares* results) {
  for (size_t b = 0; b < blocks; ++b) {
    results[b] = squareBlock(values + b * kSquareBlock);
  }
}

void widenLoop(const uint16_t* __restrict values, float* __restrict sums, size_t count) {
  for (size_t i = 0; i < count; ++i) {
    sums[i] = fromBf16(values[i]);
  }
}

void addLoop(const uint16_t* __restrict values, float* __restrict sums, size_t count) {
  for (size_t i = 0; i < count; ++i) {
    sums[i] += fromBf16(values[i]);
  }
}

void addAndRoundLoop(uint16_t* __restrict values, const float* __restrict sums, size_t count) {
  for (size_t i = 0; i < count; ++i) {
    values[i] = toBf16(sums[i] + fromBf16(values[i]));
  }
}

void roundLoop(const float* __restrict values, uint16_t* __restrict rounded, size_t count) {
  for (size_t i = 0; i < count; ++i) {
    rounded[i] = toBf16(values[i]);
  }
}

constexpr Loops kLoops{adamwLoop, squareBlocksLoop, widenLoop, addLoop, addAndRoundLoop, roundLoop};

}  // namespace
}  // namespace peal::zero
