// The simulator's back end of lib/executor/cuda/device.h, which says what each function promises and includes
// this file: kernels compiled by the host compiler. Everything lands in tests/cudasim/core/.
#pragma once
#include <cstddef>
#include <cstdint>

#include "tests/cudasim/core/access.h"
#include "tests/cudasim/core/threads.h"

#define PEAL_KERNEL
#define PEAL_DEVICE inline __attribute__((always_inline))
#define PEAL_DEVICE_CALL inline
#define PEAL_LAUNCH_BOUNDS(threads)
#define PEAL_UNROLL
#define PEAL_SHARED(Type, name) \
  static char name##Key;        \
  Type& name = *static_cast<Type*>(::peal::cudasim::sharedVariable(&name##Key, sizeof(Type), alignof(Type)))

namespace peal::cuda {

// ---- who ----
PEAL_DEVICE uint32_t threadIndex() { return cudasim::thisThread().linear; }
PEAL_DEVICE uint32_t blockThreads() { return cudasim::thisThread().blockThreads; }
PEAL_DEVICE uint32_t blockIndex() { return cudasim::thisThread().blockIndex.x; }
PEAL_DEVICE uint32_t gridBlocks() { return cudasim::thisThread().gridBlocks; }
PEAL_DEVICE uint32_t laneIndex() { return cudasim::thisThread().lane; }

// ---- weak accesses ----
PEAL_DEVICE Vec16 load16(const void* from) { return cudasim::weakLoad<Vec16>(from); }
PEAL_DEVICE void store16(void* to, Vec16 value) { cudasim::weakStore(to, value); }
template <class T>
PEAL_DEVICE T loadGlobal(const T* from) {
  static_assert(sizeof(T) <= 8);
  return cudasim::weakLoad<T>(from);
}
template <class T>
PEAL_DEVICE void storeGlobal(T* to, T value) {
  static_assert(sizeof(T) <= 8);
  cudasim::weakStore(to, value);
}

// ---- strong accesses ----
PEAL_DEVICE uint64_t loadAcquire(const uint64_t* from) {
  return cudasim::strongLoad<uint64_t>(from, cudasim::Order::Acquire);
}
PEAL_DEVICE uint64_t loadRelaxed(const uint64_t* from) {
  return cudasim::strongLoad<uint64_t>(from, cudasim::Order::Relaxed);
}
PEAL_DEVICE void storeRelease(uint64_t* to, uint64_t value) {
  cudasim::strongStore<uint64_t>(to, value, cudasim::Order::Release);
}
PEAL_DEVICE void storeRelaxed(uint64_t* to, uint64_t value) {
  cudasim::strongStore<uint64_t>(to, value, cudasim::Order::Relaxed);
}
PEAL_DEVICE uint64_t fetchAdd(uint64_t* at, uint64_t value) {
  return cudasim::readModifyWrite<uint64_t>(
      at, [value](uint64_t before) { return before + value; }, cudasim::Order::AcquireRelease);
}
PEAL_DEVICE uint64_t compareExchange(uint64_t* at, uint64_t expected, uint64_t desired) {
  return cudasim::readModifyWrite<uint64_t>(
      at, [=](uint64_t before) { return before == expected ? desired : before; },
      cudasim::Order::AcquireRelease);
}
PEAL_DEVICE void fence() { cudasim::fence(cudasim::Scope::System); }

// ---- data and flag in one access ----
PEAL_DEVICE Flagged loadFlagged(const void* from) {
  return __builtin_bit_cast(Flagged, cudasim::flaggedLoad(from));
}
PEAL_DEVICE void storeFlagged(void* to, Flagged value) {
  cudasim::flaggedStore(to, __builtin_bit_cast(cudasim::Halves, value));
}
PEAL_DEVICE LinePart loadLinePart(const void* from) {
  return __builtin_bit_cast(LinePart, cudasim::lineLoad(from));
}
PEAL_DEVICE void storeLinePart(void* to, LinePart value) {
  cudasim::lineStore(to, __builtin_bit_cast(cudasim::Halves, value));
}

// ---- threads of the block; the default arguments say where in the source ----
PEAL_DEVICE void syncBlock(const char* file = __builtin_FILE(), unsigned line = __builtin_LINE()) {
  cudasim::blockBarrier(0, 0, cudasim::Reduction::None, false, {file, line});
}
PEAL_DEVICE bool syncBlockOr(bool value, const char* file = __builtin_FILE(),
                             unsigned line = __builtin_LINE()) {
  return cudasim::blockBarrier(0, 0, cudasim::Reduction::Or, value, {file, line}) != 0;
}
PEAL_DEVICE void syncThreads(int barrier, int threads, const char* file = __builtin_FILE(),
                             unsigned line = __builtin_LINE()) {
  cudasim::blockBarrier(barrier, static_cast<uint32_t>(threads), cudasim::Reduction::None, false,
                        {file, line});
}
PEAL_DEVICE void syncWarp(const char* file = __builtin_FILE(), unsigned line = __builtin_LINE()) {
  cudasim::warpSync(cudasim::kWholeWarp, {file, line});
}

// Lanes outside the warp answer with the caller's own value, as the hardware does.
template <class T>
PEAL_DEVICE T shuffleFrom(T value, uint32_t srcLane) {
  static_assert(sizeof(T) == 4 || sizeof(T) == 8);
  uint64_t word = 0;
  __builtin_memcpy(&word, &value, sizeof(T));
  word = cudasim::warpExchange(cudasim::kWholeWarp, word, srcLane < 32 ? srcLane : laneIndex());
  T result;
  __builtin_memcpy(&result, &word, sizeof(T));
  return result;
}
template <class T>
PEAL_DEVICE T shuffle(T value, int lane) {
  return shuffleFrom(value, static_cast<uint32_t>(lane) % 32);
}
template <class T>
PEAL_DEVICE T shuffleXor(T value, int mask) {
  return shuffleFrom(value, laneIndex() ^ static_cast<uint32_t>(mask));
}
template <class T>
PEAL_DEVICE T shuffleDown(T value, int by) {
  return shuffleFrom(value, laneIndex() + static_cast<uint32_t>(by));
}
PEAL_DEVICE uint32_t ballot(bool value) { return cudasim::warpBallot(cudasim::kWholeWarp, value); }

// ---- arithmetic ----
PEAL_DEVICE float roundedSqrt(float value) { return __builtin_sqrtf(value); }
float widenHalf(uint16_t half);
uint16_t narrowHalf(float value);

// ---- time ----
PEAL_DEVICE uint64_t clockNs() { return cudasim::clockNs(); }
PEAL_DEVICE void pause(uint32_t ns) { cudasim::pause(ns); }
constexpr uint32_t kSpinsPerLook = 256;
[[noreturn]] PEAL_DEVICE void halt() { cudasim::halt(); }

}  // namespace peal::cuda
