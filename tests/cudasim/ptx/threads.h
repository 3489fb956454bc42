// Threads and time as translated PTX sees them. Called by the code that ptx2cpp.py writes, on threads of a
// running grid. #line directives in that code make the sites of barriers lines of the PTX file.
#pragma once
#include <cstdint>

#include "tests/cudasim/core/access.h"
#include "tests/cudasim/core/run.h"
#include "tests/cudasim/core/threads.h"
#include "tests/cudasim/ptx/arithmetic.h"

namespace peal::cudasim::ptx {

// ---- special registers ----
template <class Triple>
u32 axisOf(const Triple& triple, char axis) {
  return axis == 'x' ? triple.x : axis == 'y' ? triple.y : triple.z;
}
inline u32 threadIndex(char axis) { return axisOf(thisThread().threadIndex, axis); }
inline u32 blockIndex(char axis) { return axisOf(thisThread().blockIndex, axis); }
inline u32 blockThreads(char axis) { return axisOf(thisThread().grid->block, axis); }
inline u32 gridBlocks(char axis) { return axisOf(thisThread().grid->grid, axis); }
inline u32 laneIndex() { return thisThread().lane; }
inline u32 warpIndex() { return thisThread().warp; }
inline u64 globalTimerNs() { return clockNs(); }
inline u64 clockCycles() { return clockNs(); }  // of one GHz

// ---- control ----
// Every backward branch. Not a step(): the loop of a thread that polls has accesses of memory to count, and
// no others. A relaxed atomic for the thread sanitizer, to which fibers are threads.
inline constinit thread_local u32 backEdges = 0;
inline void backEdge() {
  constexpr u32 kBetweenSwitches = 4096;
  const u32 count = __atomic_load_n(&backEdges, __ATOMIC_RELAXED) + 1;
  __atomic_store_n(&backEdges, count, __ATOMIC_RELAXED);
  if (count % kBetweenSwitches == 0) [[unlikely]] {
    preempt();
  }
}
[[noreturn]] inline void trap() { halt(); }
inline void sleep(u32 ns) { pause(ns); }
// __assertfail(message, file, line, function, character size)
template <class... Arguments>
[[noreturn]] void assertFailed(Arguments... /*addresses of texts*/) {
  halt();
}

// ---- barriers ----
inline void syncBlock(u32 barrier, u32 threads, const char* file = __builtin_FILE(),
                      unsigned line = __builtin_LINE()) {
  blockBarrier(static_cast<int>(barrier), threads, Reduction::None, false, {file, line, false});
}
inline void arriveBlock(u32 barrier, u32 threads, const char* file = __builtin_FILE(),
                        unsigned line = __builtin_LINE()) {
  arriveAtBarrier(static_cast<int>(barrier), threads, {file, line, false});
}
template <Reduction kReduction>
u32 syncBlockReduce(u32 barrier, u32 threads, bool vote, const char* file = __builtin_FILE(),
                    unsigned line = __builtin_LINE()) {
  return blockBarrier(static_cast<int>(barrier), threads, kReduction, vote, {file, line, false});
}
inline void syncWarp(u32 mask, const char* file = __builtin_FILE(), unsigned line = __builtin_LINE()) {
  warpSync(mask, {file, line, false});
}

// ---- warps ----
enum class Shuffle { Up, Down, Butterfly, Index };
template <class Word>
struct Moved {
  Word value;
  bool inRange;
};

// shfl.sync: `clamp` holds the segment mask in bits 8 to 12 and the last lane of a segment in bits 0 to 4.
template <Shuffle kMode>
Moved<u32> shuffle(u32 value, u32 by, u32 clamp, u32 mask) {
  const u32 lane = laneIndex(), segment = (clamp >> 8) & 31;
  const u32 last = (lane & segment) | (clamp & 31 & ~segment), first = lane & segment;
  by &= 31;
  u32 srcLane = lane;
  bool inRange = false;
  switch (kMode) {
    case Shuffle::Up:
      srcLane = lane - by;
      inRange = static_cast<s32>(srcLane) >= static_cast<s32>(last);
      break;
    case Shuffle::Down:
      srcLane = lane + by;
      inRange = srcLane <= last;
      break;
    case Shuffle::Butterfly:
      srcLane = lane ^ by;
      inRange = srcLane <= last;
      break;
    case Shuffle::Index:
      srcLane = first | (by & ~segment);
      inRange = srcLane <= last;
      break;
  }
  return {static_cast<u32>(warpExchange(mask, value, inRange ? srcLane : lane)), inRange};
}
inline u32 ballot(u32 mask, bool vote) { return warpBallot(mask, vote); }

}  // namespace peal::cudasim::ptx
