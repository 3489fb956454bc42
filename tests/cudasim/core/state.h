// What inline code of the simulator sees of the thread that runs: where it stands in its grid, and the hot
// state of this OS thread. Written by core/*.cpp only, except for the counters of access.h.
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "tests/cudasim/core/dim.h"

// Everything that touches simulated memory is inlined into the kernel's object file: under the thread
// sanitizer that file is instrumented and the simulator is not.
#define CUDASIM_INLINE inline __attribute__((always_inline))

namespace peal::cudasim {

struct Grid;
struct Block;

// A CUDA thread.
struct Thread {
  uint3 threadIndex{}, blockIndex{};
  uint32_t linear = 0, lane = 0, warp = 0;  // in the block
  uint32_t blockThreads = 0, gridBlocks = 0;
  uint32_t device = 0;
  const Grid* grid = nullptr;
  Block* block = nullptr;
  bool fenced = false;  // thread sanitizer, which does not know fences: the next store releases
};

// An allocation that accesses were last found in.
struct CachedRange {
  uint64_t version = 0;  // of the registry; never 0 there
  uintptr_t begin = 0;
  size_t bytes = 0;
  uint64_t devices = 0;
  uint64_t refuses = 0;  // bits of access.h: uses that this memory does not allow
};
constexpr size_t kCachedRanges = 256;
constexpr int kCachedRangeBits = 16;  // of an address's offset below those that choose the place

struct Hot {
  Thread* thread = nullptr;
  uint64_t untilPreempt = ~uint64_t{0};  // accesses until the next forced switch
  uint64_t changes = 0;                  // of memory by this OS thread's grids
  bool weak = false;                     // the memory model is on
  CachedRange ranges[kCachedRanges];
};
extern constinit thread_local Hot hot;
// Of the registry of allocations: grows with every change of it.
extern constinit std::atomic<uint64_t> rangesVersion;

CUDASIM_INLINE const Thread& thisThread() { return *hot.thread; }

}  // namespace peal::cudasim
