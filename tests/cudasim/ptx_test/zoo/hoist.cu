// What only PTX mode can see: a loop that waits by an acquire load. Written in assembly that says neither
// `volatile` nor "memory", the load is nvcc's to move out of the loop, and it does.
#include "tests/cudasim/ptx_test/zoo/zoo.h"

namespace zoo {
namespace {

__device__ __forceinline__ uint32_t loadAcquire(const uint32_t* from) {
  uint32_t value;
  asm volatile("ld.acquire.sys.global.u32 %0, [%1];"
               : "=r"(value)
               : "l"(__cvta_generic_to_global(from))
               : "memory");
  return value;
}
__device__ __forceinline__ uint32_t loadAcquireForgetful(const uint32_t* from) {
  uint32_t value;
  asm("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(__cvta_generic_to_global(from)));
  return value;
}
__device__ __forceinline__ void storeRelease(uint32_t* to, uint32_t value) {
  asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(__cvta_generic_to_global(to)), "r"(value)
               : "memory");
}

// Block 0 waits for block 1, then both have finished.
template <class Load>
__device__ __forceinline__ void handOver(const Counters& c, Load load) {
  if (blockIdx.x == 0) {
    while (load(&c.flags[0]) == 0) {
    }
    c.words[1] = c.words[0];
  } else {
    c.words[0] = 42;
    storeRelease(&c.flags[0], 1);
  }
}

}  // namespace

__global__ void waitRight(Counters c) {
  handOver(c, [](const uint32_t* from) { return loadAcquire(from); });
}
__global__ void waitHoisted(Counters c) {
  handOver(c, [](const uint32_t* from) { return loadAcquireForgetful(from); });
}

}  // namespace zoo
