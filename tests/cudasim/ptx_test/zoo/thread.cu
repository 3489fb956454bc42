// Kernels whose threads do the same as the host does for each element: functions.h.
#include "tests/cudasim/ptx_test/zoo/functions.h"

namespace zoo {
namespace {

// Constants in each of their places.
__constant__ uint32_t kPrimes[8] = {2, 3, 5, 7, 11, 13, 17, 19};
__device__ const double kTable[4] = {0.5, 1.25, -3, 1e300};
__device__ uint32_t scratch[64];
struct Named {
  const char* name;
  uint32_t value;
};
__constant__ Named kNamed[3] = {{"one", 1}, {"two", 2}, {"three", 3}};

__device__ __forceinline__ uint32_t element() { return blockIdx.x * blockDim.x + threadIdx.x; }

}  // namespace

__global__ void calls(Args args) {
  if (element() < args.count) {
    args.out[element()] = callsOf(args, element());
  }
}

__global__ void numbers(const __grid_constant__ Args args) {
  const uint32_t i = element();
  if (i < args.count) {
    const uint64_t a = args.in[i], b = args.in[(i + 1) % args.count];
    args.out[i] = mix(integersOf(a, b, args.shift), floatsOf(a, b, args));
  }
}

// The same functions on memory of every kind. The caller compares with what `fill` and `sum` do on the host.
__global__ void __launch_bounds__(64) places(const __grid_constant__ Args args) {
  __shared__ uint32_t shared[64][9];
  uint32_t local[9];
  const uint32_t t = threadIdx.x;
  const auto seed = static_cast<uint32_t>(args.in[element()]);
  auto* const global = reinterpret_cast<uint32_t*>(args.out + args.count + 5 * element());
  fill(shared[t], 9, seed);
  fill(local, 9, seed + 1);
  fill(global, 9, seed + 2);
  uint32_t* const any = (seed & 1) != 0 ? shared[t] : (seed & 2) != 0 ? local : global;  // a generic address
  any[3] += args.bytes[t % 11];
  uint64_t hash = mix(sum(shared[t], 9), sum(local, 9));
  hash = mix(hash, sum(global, 9));
  hash = mix(hash, sum(kPrimes + t % 4, 5));
  hash = mixBits(hash, kTable[t % 4]);
  scratch[t] = seed;
  hash = mix(hash, scratch[t]);
  const Named& named = kNamed[t % 3];
  hash = mix(hash, named.value + static_cast<uint64_t>(named.name[t % 3]));
  args.out[element()] = hash;
}

}  // namespace zoo
