// The kernels of the engine's passes over memory, as host code finds them for cudaLaunchKernel. They give the
// bits of the host's loops (lib/zero/loops.h, norm.h). Any number of blocks, which need not be resident
// together.
//
// Called by device.cpp and by the kernels' tests; defined in passes.cu.
#pragma once
#include <cstdint>

namespace peal::cuda {

constexpr unsigned kZeroPassThreads = 256;  // a multiple of 32
constexpr unsigned kZeroSquareThreads = 128;
constexpr uint64_t kZeroElementsPerThread = 8;

// Of `count` bf16 values and fp32 sums: kind is a zero::Pass::Kind.
struct ZeroPassArgs {
  uint16_t* values;
  float* sums;
  uint64_t count;
  int kind;
};
using ZeroPassKernel = void (*)(ZeroPassArgs);

// Adds the squares of the values to the device's zero::CountedSquares, of which `counted` is the first
// number.
struct ZeroSquaresArgs {
  const uint16_t* values;
  uint64_t count;
  uint64_t* counted;
};
using ZeroSquaresKernel = void (*)(ZeroSquaresArgs);

ZeroPassKernel zeroPassKernel();
// With kZeroSquareThreads threads.
ZeroSquaresKernel zeroSquaresKernel();

}  // namespace peal::cuda
