// The engine's passes over memory, each compiled once per instruction set and chosen at run time.
//
// Every arithmetic step is one IEEE operation (no fused multiply-add, no contraction, no approximate
// reciprocal), so every instruction set gives the same bits. Called through optimizer.h, norm.h and the
// engine's accumulation. A loop knows nothing of ranks, buckets or threads.
#pragma once
#include <cstddef>
#include <cstdint>

#include "lib/base/cpu.h"
#include "lib/reduce/adamw.h"

namespace peal::zero {

// Gradient: uint16_t (bf16) or float. No two arrays overlap, but weight may be a bf16 gradient.
template <class Gradient>
struct AdamwArgsOf {
  const Gradient* gradient;
  float* master;
  float* moment1;
  float* moment2;
  uint16_t* weight;
  size_t count;
};
using AdamwArgs = AdamwArgsOf<uint16_t>;

// The same with masters as remainders (lib/reduce/adamw.h). weight is read and written.
template <class Gradient>
struct AdamwRemainderArgsOf {
  const Gradient* gradient;
  int16_t* remainder;
  float* moment1;
  float* moment2;
  uint16_t* weight;
  size_t count;
};
using AdamwRemainderArgs = AdamwRemainderArgsOf<uint16_t>;

template <class Gradient>
struct AdamwWeightArgsOf {
  const Gradient* gradient;
  float* weight;
  float* moment1;
  float* moment2;
  size_t count;
};

// Of stochastic rounding: element i of the arrays has the global index firstIndex + i.
struct StochasticKey {
  uint64_t seed, step, firstIndex;
};

// Values per block of squareBlocks.
constexpr size_t kSquareBlock = 128;

struct BlockSquares {
  double sum;      // of squares, exact if the exponents of largest and smallest are close (norm.cpp)
  uint16_t least;  // smallest magnitude that is not zero, as bits; 0x8000 if all are zero
  uint16_t most;   // largest magnitude, as bits
};

// The same of fp32 values, each cut into a high part of 12 significant bits and the low rest: a square is
// high^2 + 2 high low + low^2, and each of the three sums is exact if the exponents are close enough.
struct WideBlockSquares {
  double high, cross, low;
  uint32_t least, most;  // as above; least is 0x80000000 if all are zero
};

struct Loops {
  // bf16 gradient in, fp32 master and moments in and out, bf16 weight out: 28 bytes of memory traffic per
  // parameter.
  void (*adamw)(const AdamwScalars& scalars, const AdamwArgs& args);
  // The same; the weight is rounded up or down by roundingBits(seed, step, firstIndex + i).
  void (*adamwStochastic)(const AdamwScalars& scalars, const AdamwArgs& args, const StochasticKey& key);
  // The same masters and moments as adamw: 26 bytes of memory traffic per parameter.
  void (*adamwRemainder)(const AdamwScalars& scalars, const AdamwRemainderArgs& args);
  // Of fp32 weights that are their own masters: 26 bytes.
  void (*adamwWeights)(const AdamwScalars& scalars, const AdamwWeightArgsOf<uint16_t>& args);
  // Masters to weights and to remainders, and back.
  void (*splitWeights)(const float* masters, uint16_t* weights, size_t count);
  void (*splitRemainders)(const float* masters, int16_t* remainders, size_t count);
  void (*join)(const uint16_t* weights, const int16_t* remainders, float* masters, size_t count);
  // results[b] for `blocks` blocks of kSquareBlock values.
  void (*squareBlocks)(const uint16_t* values, size_t blocks, BlockSquares* results);
  // sums = values; sums += values; values = sums + values, rounded once.
  void (*widen)(const uint16_t* values, float* sums, size_t count);
  void (*add)(const uint16_t* values, float* sums, size_t count);
  void (*addAndRound)(uint16_t* values, const float* sums, size_t count);
  // bf16 = rounded values.
  void (*round)(const float* values, uint16_t* rounded, size_t count);

  // With fp32 gradients: the same arithmetic.
  void (*adamwFp32)(const AdamwScalars& scalars, const AdamwArgsOf<float>& args);
  void (*adamwStochasticFp32)(const AdamwScalars& scalars, const AdamwArgsOf<float>& args,
                              const StochasticKey& key);
  void (*adamwRemainderFp32)(const AdamwScalars& scalars, const AdamwRemainderArgsOf<float>& args);
  void (*adamwWeightsFp32)(const AdamwScalars& scalars, const AdamwWeightArgsOf<float>& args);
  void (*squareBlocksFp32)(const float* values, size_t blocks, WideBlockSquares* results);
  // sums += values.
  void (*addFp32)(const float* values, float* sums, size_t count);
};

const Loops& loops(Isa isa);
const Loops& loops();  // of bestIsa()

}  // namespace peal::zero
