// The kernels of the engine's passes over memory, as host code finds them for cudaLaunchKernel. They give the
// bits of the host's loops (lib/zero/loops.h, norm.h). Any number of blocks, which need not be resident
// together.
//
// Called by device.cpp and by the kernels' tests; defined in passes.cu, squares.cu and update.cu.
#pragma once
#include <cstdint>

#include "lib/reduce/adamw.h"

namespace peal::cuda {

constexpr unsigned kZeroPassThreads = 256;  // a multiple of 32
constexpr unsigned kZeroSquareThreads = 128;
constexpr uint64_t kZeroElementsPerThread = 8;

// Of `count` values, bf16 or fp32 (isWide), and fp32 sums: kind is a zero::Pass::Kind.
struct ZeroPassArgs {
  void* values;
  float* sums;
  uint64_t count;
  int kind;
  int isWide;
};
using ZeroPassKernel = void (*)(ZeroPassArgs);

// Adds the squares of the values (bf16, or fp32 for the wide kernel) to the device's zero::CountedSquares, of
// which `counted` is the first number.
struct ZeroSquaresArgs {
  const void* values;
  uint64_t count;
  uint64_t* counted;
};
using ZeroSquaresKernel = void (*)(ZeroSquaresArgs);

// AdamW where pealAdamwStep has none: fp32 gradients, or masters that are kept otherwise. One stretch of
// elements with the same numbers.
enum class ZeroUpdateKind : int {
  Remainders,      // bf16 gradients; masters are remainders of bf16 weights
  OwnMasters,      // bf16 gradients; the weights are fp32 and their own masters
  WideGradients,   // fp32 gradients, fp32 masters, bf16 weights
  WideRemainders,  // fp32 gradients; masters are remainders of bf16 weights
  WideWeights,     // fp32 gradients; the weights are fp32 and their own masters
};
struct ZeroUpdateArgs {
  const void* gradient;
  void* master;  // fp32 or int16_t; of weights that are their own: those again
  float* moment1;
  float* moment2;
  void* weight;
  uint64_t count;
  AdamwScalars scalars;
  ZeroUpdateKind kind;
  int stochasticRounding;  // of WideGradients
  uint64_t seed, step, firstIndex;
};
using ZeroUpdateKernel = void (*)(ZeroUpdateArgs);

ZeroPassKernel zeroPassKernel();
// With kZeroSquareThreads threads.
ZeroSquaresKernel zeroSquaresKernel();
ZeroSquaresKernel zeroWideSquaresKernel();
ZeroUpdateKernel zeroUpdateKernel();

}  // namespace peal::cuda
