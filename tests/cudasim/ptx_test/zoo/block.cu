// Kernels whose threads work together. zoo_test.cpp knows what they must leave behind.
#include <cuda_fp16.h>

#include "tests/cudasim/ptx_test/zoo/functions.h"

namespace zoo {

extern __shared__ uint64_t dynamic[];

namespace {

// A scan in shared memory, reached through `this`.
struct Scan {
  uint64_t values[128];

  __device__ __noinline__ void run(uint32_t t, uint32_t threads) {
    for (uint32_t by = 1; by < threads; by *= 2) {
      const uint64_t add = t >= by ? values[t - by] : 0;
      __syncthreads();
      values[t] += add;
      __syncthreads();
    }
  }
};

}  // namespace

__global__ void sharing(Args args) {
  __shared__ Scan scan;
  __shared__ float4 quads[32];
  const uint32_t t = threadIdx.x, threads = blockDim.x, i = blockIdx.x * threads + t;
  scan.values[t] = args.in[i];
  dynamic[t] = args.in[i] * 3;
  if (t < 32) {
    quads[t] = make_float4(static_cast<float>(t), 2, static_cast<float>(args.in[i] & 255), 4);
  }
  __syncthreads();
  scan.run(t, threads);
  const float4 quad = quads[31 - t % 32];
  const int odd = __syncthreads_count(static_cast<int>(args.in[i] & 1));
  const int all = __syncthreads_and(args.in[i] != 0 ? 1 : 0),
            any = __syncthreads_or(args.in[i] == 12345 ? 1 : 0);
  uint64_t hash = mix(scan.values[t], dynamic[threads - 1 - t]);
  hash = mixBits(hash, quad.x + quad.y * quad.z - quad.w);
  args.out[i] = mix(hash, static_cast<uint64_t>(odd * 4 + all * 2 + any));
}

__global__ void warps(Args args) {
  constexpr unsigned kAll = 0xffffffffu;
  const uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
  const uint64_t value = args.in[i];
  const auto word = static_cast<uint32_t>(value);
  uint64_t hash = 1;
  hash = mix(hash, __shfl_xor_sync(kAll, word, 5));
  hash = mix(hash, __shfl_down_sync(kAll, word, 3));
  hash = mix(hash, __shfl_up_sync(kAll, word, 2, 8));
  hash = mix(hash, __shfl_down_sync(kAll, word, 5, 16));
  hash = mix(hash, __shfl_sync(kAll, static_cast<unsigned long long>(value),
                               static_cast<int>(threadIdx.x * 7 % 32)));
  hash = mixBits(hash, __shfl_sync(kAll, static_cast<double>(word), 3, 4));
  hash = mix(hash, __ballot_sync(kAll, (word & 4) != 0));
  hash = mix(hash,
             static_cast<uint64_t>(__any_sync(kAll, word % 50 == 0) + 2 * __all_sync(kAll, word % 50 != 0)));
  hash = mix(hash, static_cast<uint64_t>(__popc(word) + __clz(static_cast<int>(word)) +
                                         __ffsll(static_cast<long long>(value))));
  hash = mix(hash, __brev(word) ^ __byte_perm(word, static_cast<uint32_t>(value >> 32), 0x5146));
  hash = mix(hash, __funnelshift_r(word, static_cast<uint32_t>(value >> 32), word & 31));
  const __half half = __float2half_rn(boundedFloat(value));
  hash = mix(hash, __half_as_ushort(half));
  hash = mixBits(hash, __half2float(half));
  args.out[i] = hash;
}

__global__ void atomics(Counters c) {
  __shared__ uint32_t count;
  __shared__ unsigned long long most;
  const uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
  if (threadIdx.x == 0) {
    count = 0;
    most = 0;
  }
  __syncthreads();
  atomicAdd(&count, threadIdx.x);
  atomicMax(&most, static_cast<unsigned long long>(i) << 33);
  __syncthreads();
  atomicAdd(&c.words[0], 1);
  atomicSub(&c.words[1], 2);
  atomicMin(&c.words[2], i + 5);
  atomicMax(reinterpret_cast<int*>(&c.words[3]), static_cast<int>(i) - 1000);
  atomicOr(&c.words[4], 1u << i % 32);
  atomicAnd(&c.words[5], ~(1u << i % 16));
  atomicXor(&c.words[6], i);
  atomicInc(&c.words[7], 9);
  atomicDec(&c.words[8], 6);
  auto* const longs = reinterpret_cast<unsigned long long*>(c.longs);
  atomicAdd(&longs[0], static_cast<unsigned long long>(i) << 32);
  if (threadIdx.x == 0) {
    atomicAdd(&longs[1], count);
    atomicMax(&longs[2], most);
  }
  // Each ticket is drawn once.
  unsigned long long ticket = 0, seen;
  do {
    seen = ticket;
    ticket = atomicCAS(&longs[3], seen, seen + 1);
  } while (ticket != seen);
  c.flags[seen] = atomicExch(&c.words[9], i) != 0 ? 1 : 2;
  atomicAdd(&c.sums[0], 0.5F);
}

// Each block waits for the one before it: volatile and acquire, release and fences.
__global__ void strong(Counters c) {
  const uint32_t b = blockIdx.x;
  if (threadIdx.x == 0) {
    if (b > 0) {
      if (b % 2 == 0) {
        while (*const_cast<volatile uint32_t*>(&c.flags[b - 1]) == 0) {
          __nanosleep(20);
        }
        __threadfence_system();
      } else {
        uint32_t flag;
        do {
          asm volatile("ld.acquire.sys.global.u32 %0, [%1];"
                       : "=r"(flag)
                       : "l"(__cvta_generic_to_global(&c.flags[b - 1]))
                       : "memory");
        } while (flag == 0);
      }
    }
    c.longs[0] = c.longs[0] * 3 + b;
    if (b % 2 == 0) {
      asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(__cvta_generic_to_global(&c.flags[b])), "r"(1)
                   : "memory");
    } else {
      __threadfence_system();
      *const_cast<volatile uint32_t*>(&c.flags[b]) = 1;
    }
  } else if (threadIdx.x < 64) {
    // Two of the block's warps meet at a barrier of their own, the others do not.
    asm volatile("bar.sync 3, 64;" ::: "memory");
  }
  if (threadIdx.x == 0) {
    asm volatile("bar.sync 3, 64;" ::: "memory");
  }
}

// One thread that does what the simulator must not let pass. sums is memory of the host.
__global__ void wrong(Counters c, Wrong what) {
  __shared__ uint32_t few[4];
  few[threadIdx.x] = c.threads;
  __syncthreads();
  switch (what) {
    case Wrong::NarrowScope:
      asm volatile("st.release.gpu.global.u32 [%0], 1;" ::"l"(__cvta_generic_to_global(c.words)) : "memory");
      break;
    case Wrong::NonCoherent:
      c.longs[0] = __ldg(c.words);
      break;
    case Wrong::Misaligned:
      *reinterpret_cast<uint4*>(c.longs + 1) = make_uint4(1, 2, 3, 4);
      break;
    case Wrong::Trap:
      __trap();
      break;
    case Wrong::HostMemory:
      c.sums[0] = 1;
      break;
    case Wrong::SharedBounds:
      few[c.threads * 65536] = 1;
      break;
    case Wrong::Nothing:
      break;
  }
  c.longs[3] = few[0];
}

}  // namespace zoo
