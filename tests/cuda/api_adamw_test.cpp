// The optimizer step through the public API on simulated GPUs: the bits of host memory, alone and fused, in a
// CUDA graph, and what is refused.
#include <cstring>
#include <numeric>

#include "peal/adamw.h"
#include "tests/cuda/node_ranks.h"

namespace {

using namespace peal;
using namespace peal::test;

template <class T>
std::vector<std::byte> bytesOf(const std::vector<T>& values) {
  std::vector<std::byte> bytes(values.size() * sizeof(T));
  if (!bytes.empty()) {
    std::memcpy(bytes.data(), values.data(), bytes.size());
  }
  return bytes;
}

// A shard's arrays on the host; the device's copy beside it.
struct Shard {
  explicit Shard(size_t count, int rank = 0) : master(count), moment1(count), moment2(count) {
    for (size_t i = 0; i < count; ++i) {
      master[i] = static_cast<float>(static_cast<int>((i * 5 + static_cast<size_t>(rank)) % 31) - 15) * 0.1F;
    }
  }
  pealAdamw_t state() {
    return {0.9,
            0.95,
            1e-8,
            master.data(),
            moment1.data(),
            moment2.data(),
            master.size(),
            segments.data(),
            segments.size(),
            1,
            11,
            100,
            &control,
            nullptr};
  }
  std::vector<float> master, moment1, moment2;
  std::vector<pealAdamwSegment_t> segments{{10, 0.1}, {1U << 20, 0}};
  pealAdamwControl_t control{0, 1e-2, 0.5, 0, 0};
};

struct GpuShard {
  GpuShard(int device, const Shard& shard)
      : master(device, bytesOf(shard.master)),
        moment1(device, bytesOf(shard.moment1)),
        moment2(device, bytesOf(shard.moment2)),
        segments(device, bytesOf(shard.segments)),
        control(device, bytesOf(std::vector<pealAdamwControl_t>{shard.control})),
        segmentCount(shard.segments.size()),
        count(shard.master.size()) {}
  pealAdamw_t state() const {
    const auto floats = [](const GpuBuffer& buffer) { return reinterpret_cast<float*>(buffer.data()); };
    return {0.9,
            0.95,
            1e-8,
            floats(master),
            floats(moment1),
            floats(moment2),
            count,
            reinterpret_cast<const pealAdamwSegment_t*>(segments.data()),
            segmentCount,
            1,
            11,
            100,
            reinterpret_cast<pealAdamwControl_t*>(control.data()),
            nullptr};
  }
  void expectEqual(const Shard& shard) const {
    EXPECT_EQ(master.read(), bytesOf(shard.master));
    EXPECT_EQ(moment1.read(), bytesOf(shard.moment1));
    EXPECT_EQ(moment2.read(), bytesOf(shard.moment2));
    EXPECT_EQ(control.read(), bytesOf(std::vector<pealAdamwControl_t>{shard.control}));
  }
  GpuBuffer master, moment1, moment2, segments, control;
  size_t segmentCount, count;
};

TEST(ApiAdamw, OneStepAndGraphsGiveTheHostsBits) {
  inProcess(smallGpu(), [] {
    constexpr size_t kCount = 3001;
    Shard host(kCount);
    const std::vector<std::byte> gradient = valuesOf(pealBfloat16, kCount, 3);
    std::vector<std::byte> expected(gradient.size());
    const GpuShard gpu(0, host);
    const GpuBuffer from(0, gradient), to(0, gradient.size());
    const GpuStream stream(0);
    const pealAdamw_t onGpu = gpu.state();
    const auto hostStep = [&] {
      const pealAdamw_t state = host.state();
      PEAL_EXPECT_OK(pealAdamwStep(gradient.data(), expected.data(), &state, PEAL_DEVICE_HOST, nullptr));
    };
    const auto gpuStep = [&] {
      PEAL_EXPECT_OK(pealAdamwStep(from.data(), to.data(), &onGpu, 0, stream.peal()));
    };
    hostStep();
    gpuStep();
    stream.synchronize();
    EXPECT_EQ(to.read(), expected);
    gpu.expectEqual(host);

    // The same launch three times more: the step count goes up on the device.
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t executable = nullptr;
    CUDA_OK(cudaStreamBeginCapture(stream.get(), cudaStreamCaptureModeGlobal));
    gpuStep();
    CUDA_OK(cudaStreamEndCapture(stream.get(), &graph));
    CUDA_OK(cudaGraphInstantiate(&executable, graph, 0));
    for (int launch = 0; launch < 3; ++launch) {
      CUDA_OK(cudaGraphLaunch(executable, stream.get()));
      hostStep();
    }
    stream.synchronize();
    CUDA_OK(cudaGraphExecDestroy(executable));
    CUDA_OK(cudaGraphDestroy(graph));
    EXPECT_EQ(to.read(), expected);
    gpu.expectEqual(host);
    EXPECT_EQ(host.control.step, 4U);
  });
}

// Two steps of one rank of three, on a GPU and on host memory.
void expectFusedHostsBits(pealComm_t gpuComm, pealComm_t hostComm, int rank, int device) {
  const std::vector<size_t> counts{1500, 0, 37};
  const size_t total = std::accumulate(counts.begin(), counts.end(), size_t{0});
  const auto own = static_cast<size_t>(rank);
  Shard host(counts[own], rank);
  host.segments.back().end = 1U << 20;
  const GpuShard gpu(device, host);
  const GpuStream stream(device);
  const std::vector<std::byte> gradients = valuesOf(pealBfloat16, total, 7 + own);
  std::vector<std::byte> expected(gradients.size());
  const GpuBuffer from(device, gradients), to(device, gradients.size());
  for (int step = 0; step < 2; ++step) {
    pealAdamw_t state = host.state();
    PEAL_EXPECT_OK(
        pealReduceAdamwGather(gradients.data(), expected.data(), counts.data(), &state, hostComm, nullptr));
    state = gpu.state();
    PEAL_EXPECT_OK(
        pealReduceAdamwGather(from.data(), to.data(), counts.data(), &state, gpuComm, stream.peal()));
    stream.synchronize();
    EXPECT_EQ(to.read(), expected);
    gpu.expectEqual(host);
  }
  PEAL_EXPECT_OK(pealBarrier(gpuComm, stream.peal()));  // memory is freed when no kernel waits
  stream.synchronize();
  PEAL_EXPECT_OK(pealBarrier(hostComm, nullptr));
}

TEST(ApiAdamw, FusedGivesTheHostsBits) {
  for (const char* algorithm : {"auto", "ring"}) {
    inProcess(with(smallGpu(), {{"PEAL_ALGO", algorithm}}), [] {
      const std::vector<pealComm_t> hostComms = initAll({-1, -1, -1});
      const std::vector<pealComm_t> gpuComms = initAll({0, 1, 1});
      onThreads(3, [&](int rank) {
        const auto own = static_cast<size_t>(rank);
        expectFusedHostsBits(gpuComms[own], hostComms[own], rank, rank == 0 ? 0 : 1);
      });
      destroyAll(hostComms);
      destroyAll(gpuComms);
    });
  }
}

TEST(ApiAdamw, FusedGivesTheHostsBitsOverNodes) {
  PEAL_NEEDS_UCX();
  for (const char* algorithm : {"two_shot", "ring", "hierarchical"}) {
    runOnNodes({.nodes = {0, 0, 1}, .environment = with(nodeGpu(), {{"PEAL_ALGO", algorithm}})},
               [](NodeRank& self) { expectFusedHostsBits(self.gpu, self.host, self.rank, self.device); });
  }
}

TEST(ApiAdamw, RefusesWhatIsNotOfTheDevice) {
  inProcess(smallGpu(), [] {
    Shard host(16);
    const GpuShard gpu(0, host);
    const GpuBuffer data(0, 32);
    const auto refused = [&](const pealAdamw_t& state, const void* gradient, int device, pealStream_t stream,
                             const char* words) {
      EXPECT_EQ(pealAdamwStep(gradient, data.data(), &state, device, stream), pealInvalidArgument);
      EXPECT_NE(std::string(pealGetLastError(nullptr)).find(words), std::string::npos)
          << pealGetLastError(nullptr);
    };
    std::vector<uint16_t> onHost(16);
    refused(gpu.state(), onHost.data(), 0, nullptr, "gradient");
    pealAdamw_t state = gpu.state();
    state.master = host.master.data();
    refused(state, data.data(), 0, nullptr, "state->master");
    refused(gpu.state(), data.data(), 99, nullptr, "99");
    state = gpu.state();
    state.segments = host.segments.data();
    refused(state, data.data(), 0, nullptr, "state->segments");
    state = gpu.state();
    state.count = uint64_t{1} << 62;  // its bytes are 0 in 64 bits
    refused(state, data.data(), 0, nullptr, "more than the address space");
    state = gpu.state();
    state.segmentCount = uint64_t{1} << 60;
    refused(state, data.data(), 0, nullptr, "more than the address space");
    pealStream_t hostStream = nullptr;
    PEAL_EXPECT_OK(pealStreamCreate(&hostStream));
    refused(gpu.state(), data.data(), 0, hostStream, "pealStreamCreate");
    PEAL_EXPECT_OK(pealStreamDestroy(hostStream));
    const GpuStream elsewhere(1);
    refused(gpu.state(), data.data(), 0, elsewhere.peal(), "device 1");
  });
}

// One rank's calls with this state, each with these words in its sentence.
void expectBothRefuse(const pealAdamw_t& state, const GpuBuffer& from, const GpuBuffer& to, pealComm_t comm,
                      const GpuStream& stream, const char* words) {
  const size_t counts[] = {static_cast<size_t>(state.count)};
  EXPECT_EQ(pealAdamwStep(from.data(), to.data(), &state, 0, stream.peal()), pealInvalidArgument);
  EXPECT_NE(std::string(pealGetLastError(nullptr)).find(words), std::string::npos)
      << pealGetLastError(nullptr);
  EXPECT_EQ(pealReduceAdamwGather(from.data(), to.data(), counts, &state, comm, stream.peal()),
            pealInvalidArgument);
  EXPECT_NE(std::string(pealGetLastError(nullptr)).find(words), std::string::npos)
      << pealGetLastError(nullptr);
}

// Kernels read it and count in it.
TEST(ApiAdamw, RefusesAControlBlockThatKernelsDoNotReach) {
  inProcess(smallGpu(), [] {
    Shard host(16);
    const GpuShard gpu(0, host);
    const GpuBuffer from(0, 32), to(0, 32), elsewhere(1, sizeof(pealAdamwControl_t));
    const GpuStream stream(0);
    const std::vector<pealComm_t> comms = initAll({0});
    pealAdamw_t state = gpu.state();
    const auto expectRefused = [&](void* control, const char* words) {
      state.control = static_cast<pealAdamwControl_t*>(control);
      expectBothRefuse(state, from, to, comms[0], stream, words);
    };
    expectRefused(&host.control, "state->control");
    expectRefused(elsewhere.data(), "memory of device 1");
    expectRefused(gpu.control.data() + 4, "not a multiple of 8");
    expectRefused(gpu.control.data() + 24, "needs 40 bytes");
    destroyAll(comms);
  });
}

// Where sums are kept is looked at by both calls, on this rank's device.
TEST(ApiAdamw, RefusesAPlaceForSumsThatKernelsDoNotReach) {
  inProcess(smallGpu(), [] {
    Shard host(16);
    const GpuShard gpu(0, host);
    const GpuBuffer from(0, 32), to(0, 32), sums(0, 32), elsewhere(1, 32);
    const GpuStream stream(0);
    const std::vector<pealComm_t> comms = initAll({0});
    const auto expectRefused = [&](void* reduced, const char* words) {
      pealAdamw_t state = gpu.state();
      state.reduced = reduced;
      expectBothRefuse(state, from, to, comms[0], stream, words);
    };
    std::vector<uint16_t> onHost(16);
    expectRefused(onHost.data(), "state->reduced");
    expectRefused(elsewhere.data(), "memory of device 1");
    expectRefused(sums.data() + 1, "not a multiple of 2");
    expectRefused(sums.data() + 24, "needs 32 bytes");
    destroyAll(comms);
  });
}

TEST(ApiAdamw, TheControlBlockMayLieInPinnedMemory) {
  inProcess(smallGpu(), [] {
    Shard host(16);
    const GpuShard gpu(0, host);
    const std::vector<std::byte> gradient = valuesOf(pealBfloat16, 16, 3);
    std::vector<std::byte> expected(gradient.size());
    const GpuBuffer from(0, gradient), to(0, gradient.size());
    const GpuStream stream(0);
    pealAdamw_t state = gpu.state();
    void* pinned = nullptr;
    CUDA_OK(cudaMallocHost(&pinned, sizeof(pealAdamwControl_t)));
    std::memcpy(pinned, &host.control, sizeof host.control);
    state.control = static_cast<pealAdamwControl_t*>(pinned);
    PEAL_EXPECT_OK(pealAdamwStep(from.data(), to.data(), &state, 0, stream.peal()));
    stream.synchronize();
    const pealAdamw_t onHost = host.state();
    PEAL_EXPECT_OK(pealAdamwStep(gradient.data(), expected.data(), &onHost, PEAL_DEVICE_HOST, nullptr));
    EXPECT_EQ(to.read(), expected);
    EXPECT_EQ(state.control->step, host.control.step);
    EXPECT_EQ(gpu.master.read(), bytesOf(host.master));
    CUDA_OK(cudaFreeHost(pinned));
  });
}

}  // namespace
