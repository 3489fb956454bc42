// Kernels that use CUDA broadly, for the translator's test, and what they are called with. Compiled by nvcc
// for the kernels and by the host compiler for zoo_test.cpp. Structs of kernels have more than 16 bytes
// (ptx/emit.py).
#pragma once
#include <cstddef>
#include <cstdint>

#ifdef __CUDACC__
#define ZOO_CALL __device__ __noinline__  // a real call of the device
#define ZOO_INLINE __device__ __forceinline__
#else
#define ZOO_CALL __attribute__((noinline)) inline
#define ZOO_INLINE inline
#endif

namespace zoo {

struct Args {
  const uint64_t* in;
  uint64_t* out;
  uint32_t count;
  int32_t shift;
  float scale;
  double offset;
  uint8_t bytes[11];
  bool flag;
};

// What `wrong` does.
enum class Wrong : uint32_t { NarrowScope, NonCoherent, Misaligned, Trap, HostMemory, SharedBounds, Nothing };

struct Counters {
  uint32_t *words, *flags;
  uint64_t* longs;
  float* sums;
  uint32_t threads;
};

#ifndef __CUDACC__
// As the host sees the kernels.
// functions.h, one thread for each element: the host computes the same.
void calls(Args args);
void numbers(Args args);
void places(Args args);
// block.cu
void sharing(Args args);
void warps(Args args);
void atomics(Counters counters);
void strong(Counters counters);
void wrong(Counters counters, Wrong what);
// hoist.cu
void waitRight(Counters counters);
void waitHoisted(Counters counters);
#endif

}  // namespace zoo
