// Kernels that run the loops of move.cuh alone, over a grid: for tests/cuda/ and tools/gpu-check. Not in the
// library. Any number of blocks and any multiple of 32 threads up to 512 will do, without dynamic shared
// memory.
#pragma once
#include <cstddef>
#include <cstdint>

#include "peal/peal.h"

namespace peal::cuda {

constexpr int kMostLoopSources = 72;
constexpr int kMostLoopDestinations = 4;

// MoveArgs with its addresses, as a kernel gets it.
struct LoopArgs {
  const void* sources[kMostLoopSources];
  void* destinations[kMostLoopDestinations];
  int32_t sourceCount, destinationCount;
  int32_t op;  // pealRedOp_t
  int32_t rawSource, divideBy;
  uint64_t scalarBits;
  size_t count;  // elements; bytes for the copy
};
using LoopKernel = void (*)(LoopArgs);

// nullptr: no such type.
LoopKernel reduceKernelFor(int type);
LoopKernel copyKernel();

}  // namespace peal::cuda
