// The back end of device.h for nvcc: inline PTX. Included by device.h only, which says what each function
// promises; kernels name nothing of this file that is not listed there.
//
// Every access is volatile assembly with a "memory" clobber, so that nvcc keeps the order of the source: an
// acquire that could be hoisted out of its loop would never see the peer's store. The space is always .global
// (generic addresses of global memory are converted, which costs no instruction) and the scope of a strong
// access always .sys, because the other side may be another GPU or the host. No access is .nc: peers write
// what kernels read. The simulator's PTX mode knows the 16-byte `volatile` forms as those of LL (v4.u32) and
// LL128 (v2.u64).
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>

#define PEAL_KERNEL __global__
#define PEAL_DEVICE __device__ __forceinline__
#define PEAL_DEVICE_CALL inline __device__ __noinline__
#define PEAL_LAUNCH_BOUNDS(threads) __launch_bounds__(threads, 1)
#define PEAL_UNROLL _Pragma("unroll")
#define PEAL_SHARED(Type, name) __shared__ Type name

namespace peal::cuda {

constexpr unsigned kAllLanes = 0xffffffffu;

// ---- who ----
PEAL_DEVICE uint32_t threadIndex() { return threadIdx.x; }
PEAL_DEVICE uint32_t blockThreads() { return blockDim.x; }
PEAL_DEVICE uint32_t blockIndex() { return blockIdx.x; }
PEAL_DEVICE uint32_t gridBlocks() { return gridDim.x; }
PEAL_DEVICE uint32_t laneIndex() { return threadIdx.x % 32; }  // blocks have one dimension

// ---- weak accesses ----
PEAL_DEVICE uint64_t globalAddress(const void* at) { return __cvta_generic_to_global(at); }

PEAL_DEVICE Vec16 load16(const void* from) {
  Vec16 v;
  asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.word[0]), "=r"(v.word[1]), "=r"(v.word[2]), "=r"(v.word[3])
               : "l"(globalAddress(from))
               : "memory");
  return v;
}
PEAL_DEVICE void store16(void* to, Vec16 v) {
  asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(globalAddress(to)), "r"(v.word[0]),
               "r"(v.word[1]), "r"(v.word[2]), "r"(v.word[3])
               : "memory");
}

// A word of each size as the assembly takes it: one and two bytes travel in registers of two.
PEAL_DEVICE void loadWord(const void* from, uint8_t& value) {
  uint16_t wide;
  asm volatile("ld.global.u8 %0, [%1];" : "=h"(wide) : "l"(globalAddress(from)) : "memory");
  value = static_cast<uint8_t>(wide);
}
PEAL_DEVICE void loadWord(const void* from, uint16_t& value) {
  asm volatile("ld.global.u16 %0, [%1];" : "=h"(value) : "l"(globalAddress(from)) : "memory");
}
PEAL_DEVICE void loadWord(const void* from, uint32_t& value) {
  asm volatile("ld.global.u32 %0, [%1];" : "=r"(value) : "l"(globalAddress(from)) : "memory");
}
PEAL_DEVICE void loadWord(const void* from, uint64_t& value) {
  asm volatile("ld.global.u64 %0, [%1];" : "=l"(value) : "l"(globalAddress(from)) : "memory");
}
PEAL_DEVICE void storeWord(void* to, uint8_t value) {
  asm volatile("st.global.u8 [%0], %1;" ::"l"(globalAddress(to)), "h"(static_cast<uint16_t>(value))
               : "memory");
}
PEAL_DEVICE void storeWord(void* to, uint16_t value) {
  asm volatile("st.global.u16 [%0], %1;" ::"l"(globalAddress(to)), "h"(value) : "memory");
}
PEAL_DEVICE void storeWord(void* to, uint32_t value) {
  asm volatile("st.global.u32 [%0], %1;" ::"l"(globalAddress(to)), "r"(value) : "memory");
}
PEAL_DEVICE void storeWord(void* to, uint64_t value) {
  asm volatile("st.global.u64 [%0], %1;" ::"l"(globalAddress(to)), "l"(value) : "memory");
}

template <size_t kBytes>
struct WordOf;
template <>
struct WordOf<1> {
  using Type = uint8_t;
};
template <>
struct WordOf<2> {
  using Type = uint16_t;
};
template <>
struct WordOf<4> {
  using Type = uint32_t;
};
template <>
struct WordOf<8> {
  using Type = uint64_t;
};

template <class T>
PEAL_DEVICE T loadGlobal(const T* from) {
  typename WordOf<sizeof(T)>::Type word;
  loadWord(from, word);
  T value;
  memcpy(&value, &word, sizeof value);
  return value;
}
template <class T>
PEAL_DEVICE void storeGlobal(T* to, T value) {
  typename WordOf<sizeof(T)>::Type word;
  memcpy(&word, &value, sizeof word);
  storeWord(to, word);
}

// ---- strong accesses ----
PEAL_DEVICE uint64_t loadAcquire(const uint64_t* from) {
  uint64_t value;
  asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(globalAddress(from)) : "memory");
  return value;
}
PEAL_DEVICE uint64_t loadRelaxed(const uint64_t* from) {
  uint64_t value;
  asm volatile("ld.relaxed.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(globalAddress(from)) : "memory");
  return value;
}
PEAL_DEVICE void storeRelease(uint64_t* to, uint64_t value) {
  asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(globalAddress(to)), "l"(value) : "memory");
}
PEAL_DEVICE void storeRelaxed(uint64_t* to, uint64_t value) {
  asm volatile("st.relaxed.sys.global.u64 [%0], %1;" ::"l"(globalAddress(to)), "l"(value) : "memory");
}
PEAL_DEVICE uint64_t fetchAdd(uint64_t* at, uint64_t value) {
  uint64_t before;
  asm volatile("atom.acq_rel.sys.global.add.u64 %0, [%1], %2;"
               : "=l"(before)
               : "l"(globalAddress(at)), "l"(value)
               : "memory");
  return before;
}
PEAL_DEVICE uint64_t compareExchange(uint64_t* at, uint64_t expected, uint64_t desired) {
  uint64_t before;
  asm volatile("atom.acq_rel.sys.global.cas.b64 %0, [%1], %2, %3;"
               : "=l"(before)
               : "l"(globalAddress(at)), "l"(expected), "l"(desired)
               : "memory");
  return before;
}
PEAL_DEVICE void fence() { asm volatile("fence.acq_rel.sys;" ::: "memory"); }

// ---- data and flag in one access ----
PEAL_DEVICE Flagged loadFlagged(const void* from) {
  Flagged v;
  asm volatile("ld.volatile.global.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.data0), "=r"(v.flag0), "=r"(v.data1), "=r"(v.flag1)
               : "l"(globalAddress(from))
               : "memory");
  return v;
}
PEAL_DEVICE void storeFlagged(void* to, Flagged v) {
  asm volatile("st.volatile.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(globalAddress(to)), "r"(v.data0),
               "r"(v.flag0), "r"(v.data1), "r"(v.flag1)
               : "memory");
}
PEAL_DEVICE LinePart loadLinePart(const void* from) {
  LinePart v;
  asm volatile("ld.volatile.global.v2.u64 {%0, %1}, [%2];"
               : "=l"(v.a), "=l"(v.b)
               : "l"(globalAddress(from))
               : "memory");
  return v;
}
PEAL_DEVICE void storeLinePart(void* to, LinePart v) {
  asm volatile("st.volatile.global.v2.u64 [%0], {%1, %2};" ::"l"(globalAddress(to)), "l"(v.a), "l"(v.b)
               : "memory");
}

// ---- threads of the block ----
// The barriers of all threads and the shuffles are nvcc's own functions: it must know that no thread may be
// split off before them, which it cannot see in assembly.
PEAL_DEVICE void syncBlock() { __syncthreads(); }
PEAL_DEVICE bool syncBlockOr(bool value) { return __syncthreads_or(value ? 1 : 0) != 0; }
PEAL_DEVICE void syncThreads(int barrier, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}
PEAL_DEVICE void syncWarp() { __syncwarp(kAllLanes); }

// Shuffles move words of 4 and 8 bytes, whatever T is.
template <class T>
using ShuffleWord = typename WordOf<sizeof(T)>::Type;
template <class T>
PEAL_DEVICE auto shuffleWord(T value) {
  static_assert(sizeof(T) == 4 || sizeof(T) == 8);
  ShuffleWord<T> word;
  memcpy(&word, &value, sizeof word);
  if constexpr (sizeof(T) == 8) {
    return static_cast<unsigned long long>(word);
  } else {
    return word;
  }
}
template <class T, class Word>
PEAL_DEVICE T shuffled(Word word) {
  T value;
  memcpy(&value, &word, sizeof value);
  return value;
}
template <class T>
PEAL_DEVICE T shuffle(T value, int lane) {
  return shuffled<T>(__shfl_sync(kAllLanes, shuffleWord(value), lane));
}
template <class T>
PEAL_DEVICE T shuffleXor(T value, int mask) {
  return shuffled<T>(__shfl_xor_sync(kAllLanes, shuffleWord(value), mask));
}
template <class T>
PEAL_DEVICE T shuffleDown(T value, int by) {
  return shuffled<T>(__shfl_down_sync(kAllLanes, shuffleWord(value), static_cast<unsigned>(by)));
}
PEAL_DEVICE uint32_t ballot(bool value) { return __ballot_sync(kAllLanes, value); }

// ---- arithmetic ----
PEAL_DEVICE float roundedSqrt(float value) { return __fsqrt_rn(value); }
PEAL_DEVICE float widenHalf(uint16_t half) {
  float value;
  asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(half));
  return value;
}
PEAL_DEVICE uint16_t narrowHalf(float value) {
  uint16_t half;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(half) : "f"(value));
  return value == value ? half : static_cast<uint16_t>(0x7e00);  // the instruction's NaN is 0x7fff
}

// ---- time ----
PEAL_DEVICE uint64_t clockNs() {
  uint64_t now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now)::"memory");
  return now;
}
PEAL_DEVICE void pause(uint32_t ns) { __nanosleep(ns); }
constexpr uint32_t kSpinsPerLook = 256;  // some 100 us

[[noreturn]] PEAL_DEVICE void halt() {
  __trap();
  __builtin_unreachable();
}

}  // namespace peal::cuda
