// The same for the optimizer step, alone and fused with the all-reduce.
#include "peal/adamw.h"
#include "tests/cuda/injection.h"

namespace {

using namespace peal::test;

// A step of this rank alone, and one fused with the all-reduce. The gradients are zeros, and so is the decay:
// the weights stay.
void useAdamw(pealComm_t comm, int rank, int device, const GpuStream& stream, const GpuBuffer& buffer,
              Outcomes& outcomes) {
  constexpr size_t kCount = kInjectedCount;  // of both ranks' shards together
  void* memory = nullptr;                    // gradients, weights, three arrays of floats, the control block
  constexpr size_t kBytes = 2 * kCount * 2 + 3 * kCount * sizeof(float) + 256;
  bool good = outcomes.ok(pealMemAllocDevice(&memory, kBytes, device));
  good = good && outcomes.ok(cudaMemsetAsync(memory, 0, kBytes, stream.get()));
  auto* const bytes = static_cast<std::byte*>(memory);
  auto* const floats = reinterpret_cast<float*>(bytes + 2 * kCount * 2);
  const pealAdamw_t state{0.9,
                          0.95,
                          1e-8,
                          floats,
                          floats + kCount,
                          floats + 2 * kCount,
                          kCount / 2,
                          nullptr,
                          0,
                          0,
                          1,
                          static_cast<uint64_t>(rank) * (kCount / 2),
                          reinterpret_cast<pealAdamwControl_t*>(floats + 3 * kCount)};
  good = good && outcomes.ok(pealAdamwStep(bytes, bytes + kCount * 2, &state, device, stream.peal()));
  constexpr size_t kCounts[] = {kCount / 2, kCount / 2};
  good = good &&
         outcomes.ok(pealReduceAdamwGather(bytes, bytes + kCount * 2, kCounts, &state, comm, stream.peal()));
  auto* const data = reinterpret_cast<float*>(buffer.data());
  good = good && outcomes.ok(pealAllReduce(data, data, kCount, pealFloat32, pealSum, comm, stream.peal()));
  good = good && outcomes.ok(pealCommFinalize(comm));
  outcomes.ok(good ? pealCommDestroy(comm) : pealCommAbort(comm));
  if (memory != nullptr && !outcomes.ok(pealMemFree(memory))) {
    static_cast<void>(pealMemFree(memory));
  }
}

TEST(InjectionKinds, Adamw) {
  inProcess(
      injected(),
      [] {
        failEveryCall({0, 1}, useAdamw, 2);
      },
      std::chrono::seconds(110));
}

}  // namespace
