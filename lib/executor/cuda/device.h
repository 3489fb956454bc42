// The only place where kernels meet the machine: memory, other threads, time. Kernel code includes this
// header and uses nothing else of CUDA, so that the same text is compiled by nvcc and by the host compiler
// for the simulator of tests/cudasim/ (docs/DESIGN.md, D9).
//
// Both back ends define, with these names and in namespace peal::cuda:
//
//   PEAL_KERNEL, PEAL_DEVICE (inlined), PEAL_DEVICE_CALL (a real call: code shared by several callers),
//   PEAL_LAUNCH_BOUNDS(threads), PEAL_UNROLL (before a loop), PEAL_SHARED(Type, name): a variable of the
//   block, not initialised; Type has a trivial default constructor. PEAL_GRID_CONSTANT: before the type of a
//   kernel's parameter, which is then read where the launch put it, with no copy per thread.
//   PEAL_KEEP_LOOP (before a loop): its body is compiled once. nvcc unrolls loops of unknown length fourfold
//   otherwise, which makes code that is not quicker and takes long to compile.
//
//   uint32_t threadIndex(), blockThreads(), blockIndex(), gridBlocks(), laneIndex();    one-dimensional
//
//   Global memory. Addresses are aligned to the size of the access.
//     Weak accesses, ordered only by the strong ones and barriers around them:
//       Vec16 load16(const void*)                 void store16(void*, Vec16)
//       T loadGlobal<T>(const T*)                 void storeGlobal<T>(T*, T)   T of 1, 2, 4 or 8 bytes
//     Strong accesses, at the scope of the whole system (peers on other devices and the host):
//       uint64_t loadAcquire(const uint64_t*)     void storeRelease(uint64_t*, uint64_t)
//       uint64_t loadRelaxed(const uint64_t*)     void storeRelaxed(uint64_t*, uint64_t)
//       uint64_t fetchAdd(uint64_t*, uint64_t)    acquire and release; returns the value before
//       uint64_t compareExchange(uint64_t*, uint64_t expected, uint64_t desired)   likewise
//       void fence()                              acquire and release
//     LL: two pairs of data and flag. Each pair (8 bytes) becomes visible as one; the two in any order.
//       Flagged loadFlagged(const void*)          void storeFlagged(void*, Flagged)     16 bytes
//     LL128: all 32 lanes of a warp together, lane i at `line + 16 * i`: each 128-byte line, the accesses of
//     eight neighbouring lanes, becomes visible as one. True of one device's memory and over NVLink, not of
//     PCIe. Every lane of the warp takes part.
//       LinePart loadLinePart(const void*)        void storeLinePart(void*, LinePart)
//
//   Threads of the block:
//     void syncBlock()                            barrier of all threads
//     bool syncBlockOr(bool)                      the same; true for all if true for any
//     void syncThreads(int barrier, int threads)  named barrier 1 .. 15 of `threads` threads: 32 times n
//     Of a warp, all lanes together; T of 4 or 8 bytes:
//       void syncWarp()                           uint32_t ballot(bool)
//       T shuffle<T>(T value, int lane)           T shuffleXor<T>(T value, int mask)
//       T shuffleDown<T>(T value, int by)
//
//   Arithmetic: float roundedSqrt(float), float widenHalf(uint16_t), uint16_t narrowHalf(float) (to nearest
//   even, overflow to infinity, NaN to 0x7e00). + - * / are IEEE, never contracted: kernels are compiled with
//   -fmad=false.
//
//   Time: uint64_t clockNs()                      advances at least every millisecond; the same on all blocks
//         void pause(uint32_t ns)                 at most about that long
//         uint32_t kSpinsPerLook                  how often a wait asks for its condition between
//                                                 two looks at what lies in host memory
//   [[noreturn]] void halt()                      ends the kernel with an error: for what cannot happen
#pragma once
#include <cstddef>
#include <cstdint>

namespace peal::cuda {

struct alignas(16) Vec16 {
  uint32_t word[4];
};
struct alignas(16) Flagged {
  uint32_t data0, flag0, data1, flag1;
};
struct alignas(16) LinePart {
  uint64_t a, b;
};

}  // namespace peal::cuda

#ifdef __CUDACC__
#define PEAL_GRID_CONSTANT const __grid_constant__
#define PEAL_KEEP_LOOP _Pragma("unroll 1")
#include "lib/executor/cuda/device_ptx.h"
#else
#define PEAL_GRID_CONSTANT const
#define PEAL_KEEP_LOOP
#include <cudasim/device.h>
#endif
