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

// No two arrays overlap, but weight may be gradient.
struct AdamwArgs {
  const uint16_t* gradient;
  float* master;
  float* moment1;
  float* moment2;
  uint16_t* weight;
  size_t count;
};

// The same with masters as remainders (lib/reduce/adamw.h). weight is read and written.
struct AdamwRemainderArgs {
  const uint16_t* gradient;
  int16_t* remainder;
  float* moment1;
  float* moment2;
  uint16_t* weight;
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

struct Loops {
  // bf16 gradient in, fp32 master and moments in and out, bf16 weight out: 28 bytes of memory traffic per
  // parameter.
  void (*adamw)(const AdamwScalars& scalars, const AdamwArgs& args);
  // The same; the weight is rounded up or down by roundingBits(seed, step, firstIndex + i).
  void (*adamwStochastic)(const AdamwScalars& scalars, const AdamwArgs& args, const StochasticKey& key);
  // The same masters and moments as adamw: 26 bytes of memory traffic per parameter.
  void (*adamwRemainder)(const AdamwScalars& scalars, const AdamwRemainderArgs& args);
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
};

const Loops& loops(Isa isa);
const Loops& loops();  // of bestIsa()

}  // namespace peal::zero
