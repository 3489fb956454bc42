// The same for what else a communicator's life may hold: groups, graphs, communicators made by splitting, and
// the optimizer step, alone and fused.
#include "peal/adamw.h"
#include "tests/cuda/injection.h"

namespace {

using namespace peal::test;

// Sums once, in a graph.
bool sumInGraph(pealComm_t comm, float* data, const GpuStream& stream, Outcomes& outcomes) {
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t launchable = nullptr;
  bool good = outcomes.ok(cudaStreamBeginCapture(stream.get(), cudaStreamCaptureModeThreadLocal));
  if (good) {
    good = outcomes.ok(pealAllReduce(data, data, kInjectedCount, pealFloat32, pealSum, comm, stream.peal()));
    good = outcomes.ok(cudaStreamEndCapture(stream.get(), &graph)) && good;
  }
  good = good && outcomes.ok(cudaGraphInstantiate(&launchable, graph, 0));
  good = good && outcomes.ok(cudaGraphLaunch(launchable, stream.get()));
  good = good && outcomes.ok(cudaStreamSynchronize(stream.get()));
  if (launchable != nullptr) {
    outcomes.ok(cudaGraphExecDestroy(launchable));
  }
  if (graph != nullptr) {
    outcomes.ok(cudaGraphDestroy(graph));
  }
  return good;
}

// Sums twice in a group, once in a graph, and once in a communicator of both ranks that is split off.
void useGroupsGraphsAndSplits(pealComm_t comm, int rank, int, const GpuStream& stream,
                              const GpuBuffer& buffer, Outcomes& outcomes) {
  auto* const data = reinterpret_cast<float*>(buffer.data());
  const auto sum = [&](pealComm_t in) {
    return outcomes.ok(pealAllReduce(data, data, kInjectedCount, pealFloat32, pealSum, in, stream.peal()));
  };
  bool good = outcomes.ok(pealGroupStart());
  if (good) {
    good = sum(comm) && sum(comm);
    good = outcomes.ok(pealGroupEnd()) && good;
  }
  good = good && sumInGraph(comm, data, stream, outcomes);
  pealComm_t child = nullptr;
  outcomes.connectingBegins();
  good = good && outcomes.ok(pealCommSplit(comm, 0, rank, &child, nullptr));
  outcomes.connectingEnds();
  good = good && sum(child) && outcomes.ok(pealCommFinalize(child));
  if (child != nullptr) {
    good = outcomes.ok(good ? pealCommDestroy(child) : pealCommAbort(child)) && good;
  }
  good = good && outcomes.ok(pealCommFinalize(comm));
  outcomes.ok(good ? pealCommDestroy(comm) : pealCommAbort(comm));
}

TEST(InjectionKinds, GroupsGraphsAndSplits) {
  inProcess(
      injected(),
      [] {
        failEveryCall({0, 1}, useGroupsGraphsAndSplits, 16);
      },
      kHangs);
}

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
                          reinterpret_cast<pealAdamwControl_t*>(floats + 3 * kCount),
                          nullptr};
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
      kHangs);
}

}  // namespace
