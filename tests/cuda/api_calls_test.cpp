// Groups, sends and receives, scalars, several communicators, splitting, registered buffers and CUDA graphs
// on simulated GPUs, through the public API.
#include <barrier>

#include "tests/cuda/gpu_ranks.h"

namespace {

using namespace peal::test;

std::vector<std::byte> bytesOf(const std::vector<float>& values) {
  std::vector<std::byte> bytes(values.size() * sizeof(float));
  if (!bytes.empty()) {
    std::memcpy(bytes.data(), values.data(), bytes.size());
  }
  return bytes;
}
std::vector<float> floatsOf(const GpuBuffer& buffer) {
  const std::vector<std::byte> bytes = buffer.read();
  std::vector<float> values(bytes.size() / sizeof(float));
  if (!bytes.empty()) {
    std::memcpy(values.data(), bytes.data(), bytes.size());
  }
  return values;
}
GpuBuffer filled(int device, size_t count, float value) {
  return {device, bytesOf(std::vector<float>(count, value))};
}

// Ranks that one thread drives: a buffer for each.
struct Driven {
  std::vector<int> devices;
  std::vector<pealComm_t> comms;
  std::vector<GpuBuffer> buffers;

  Driven(const std::vector<int>& on, size_t count) : devices(on), comms(initAll(on)) {
    for (size_t rank = 0; rank < on.size(); ++rank) {
      buffers.push_back(filled(on[rank], count, static_cast<float>(rank + 1)));
    }
  }
  ~Driven() {
    buffers.clear();
    destroyAll(comms);
  }
  int size() const { return static_cast<int>(comms.size()); }
  void synchronize() const {
    for (const int device : devices) {
      CUDA_OK(cudaSetDevice(peal::cudasim::deviceOf(device)));
      CUDA_OK(cudaDeviceSynchronize());
    }
  }
};

constexpr size_t kCount = 1500;

TEST(ApiCalls, OneThreadDrivesRanksOfOneDeviceInAGroup) {
  inProcess(smallGpu(), [] {
    Driven ranks({0, 0, 0, 1}, kCount);
    // All on the default stream, which would put rank 1's kernel behind rank 0's, and that one waits for it.
    PEAL_ASSERT_OK(pealGroupStart());
    for (int turn = 0; turn < 2; ++turn) {
      for (size_t rank = 0; rank < ranks.comms.size(); ++rank) {
        std::byte* const data = ranks.buffers[rank].data();
        PEAL_ASSERT_OK(pealAllReduce(data, data, kCount, pealFloat32, pealSum, ranks.comms[rank], nullptr));
      }
    }
    PEAL_ASSERT_OK(pealGroupEnd());
    ranks.synchronize();
    for (const GpuBuffer& buffer : ranks.buffers) {
      EXPECT_EQ(floatsOf(buffer), std::vector<float>(kCount, 40.0F));
    }
  });
}

TEST(ApiCalls, GroupedCommunicatorsDoNotWaitForEachOther) {
  inProcess(smallGpu(), [] {
    Driven first({0, 0}, kCount);
    Driven second({0, 0}, kCount);
    PEAL_ASSERT_OK(pealGroupStart());
    for (size_t rank = 0; rank < 2; ++rank) {  // rank by rank: each communicator's calls come apart
      for (const Driven* ranks : {&first, &second}) {
        std::byte* const data = ranks->buffers[rank].data();
        PEAL_ASSERT_OK(pealAllReduce(data, data, kCount, pealFloat32, pealMax, ranks->comms[rank], nullptr));
      }
    }
    PEAL_ASSERT_OK(pealGroupEnd());
    first.synchronize();
    EXPECT_EQ(floatsOf(first.buffers[0]), std::vector<float>(kCount, 2.0F));
    EXPECT_EQ(floatsOf(second.buffers[1]), std::vector<float>(kCount, 2.0F));
  });
}

TEST(ApiCalls, SendsAndReceivesOfAGroupProgressTogether) {
  inProcess(smallGpu(), [] {
    constexpr int kRanks = 3;
    const std::vector<int> devices{0, 1, 0};
    const std::vector<pealComm_t> comms = initAll(devices);
    onThreads(kRanks, [&](int rank) {
      const auto index = static_cast<size_t>(rank);
      const GpuStream stream(devices[index]);
      // Everybody to everybody, itself included; different lengths, 0 among them.
      std::vector<GpuBuffer> out;
      std::vector<GpuBuffer> in;
      const auto count = [](int from, int to) { return static_cast<size_t>(from * to * 700); };
      for (int peer = 0; peer < kRanks; ++peer) {
        out.push_back(filled(devices[index], count(rank, peer), static_cast<float>(10 * rank + peer)));
        in.push_back(filled(devices[index], count(peer, rank), -1));
      }
      PEAL_ASSERT_OK(pealGroupStart());
      for (int peer = 0; peer < kRanks; ++peer) {
        const auto at = static_cast<size_t>(peer);
        PEAL_EXPECT_OK(
            pealRecv(in[at].data(), count(peer, rank), pealFloat32, peer, comms[index], stream.peal()));
        PEAL_EXPECT_OK(
            pealSend(out[at].data(), count(rank, peer), pealFloat32, peer, comms[index], stream.peal()));
      }
      PEAL_ASSERT_OK(pealGroupEnd());
      stream.synchronize();
      for (int peer = 0; peer < kRanks; ++peer) {
        EXPECT_EQ(floatsOf(in[static_cast<size_t>(peer)]),
                  std::vector<float>(count(peer, rank), static_cast<float>(10 * peer + rank)));
      }
      // Alone, one after the other.
      if (rank == 0) {
        PEAL_EXPECT_OK(pealSend(out[1].data(), 0, pealFloat32, 1, comms[index], stream.peal()));
      } else if (rank == 1) {
        PEAL_EXPECT_OK(pealRecv(in[0].data(), 0, pealFloat32, 0, comms[index], stream.peal()));
      }
      stream.synchronize();
      pealCommStats_t stats{};
      PEAL_EXPECT_OK(pealCommGetStats(comms[index], &stats));
      EXPECT_EQ(stats.calls[pealStatSend], rank == 0 ? 4u : 3u);
    });
    destroyAll(comms);
  });
}

TEST(ApiCalls, PreMultipliedSumsTakeScalarsOfHostAndDevice) {
  inProcess(smallGpu(), [] {
    const std::vector<int> devices{0, 1};
    const std::vector<pealComm_t> comms = initAll(devices);
    onThreads(2, [&](int rank) {
      const auto index = static_cast<size_t>(rank);
      const int device = devices[index];
      const GpuStream stream(device);
      const GpuBuffer data = filled(device, kCount, 1.0F);
      float factor = static_cast<float>(rank) + 0.5F;
      pealRedOp_t now{};
      PEAL_EXPECT_OK(
          pealRedOpCreatePreMulSum(&now, &factor, pealFloat32, pealScalarHostImmediate, comms[index]));
      factor = 100;  // was read
      PEAL_EXPECT_OK(
          pealAllReduce(data.data(), data.data(), kCount, pealFloat32, now, comms[index], stream.peal()));
      stream.synchronize();
      EXPECT_EQ(floatsOf(data), std::vector<float>(kCount, 2.0F));

      const GpuBuffer scalar = filled(device, 1, 3.0F);
      pealRedOp_t later{};
      PEAL_EXPECT_OK(
          pealRedOpCreatePreMulSum(&later, scalar.data(), pealFloat32, pealScalarDevice, comms[index]));
      scalar.write(bytesOf({0.25F}));  // read when the operation runs
      PEAL_EXPECT_OK(
          pealAllReduce(data.data(), data.data(), kCount, pealFloat32, later, comms[index], stream.peal()));
      stream.synchronize();
      EXPECT_EQ(floatsOf(data), std::vector<float>(kCount, 1.0F));
      PEAL_EXPECT_OK(pealRedOpDestroy(now, comms[index]));
      PEAL_EXPECT_OK(pealRedOpDestroy(later, comms[index]));
    });
    destroyAll(comms);
  });
}

// As many blocks fit on the device as one communicator has: two whose kernels start in different orders on
// their ranks would wait for each other until the deadline.
TEST(ApiCalls, CommunicatorsInProgramOrderNeverDeadlock) {
  peal::cudasim::Machine small;
  small.devices = 1;
  small.multiprocessors = 1;
  small.blocksPerMultiprocessor = 4;
  inProcess(
      with(smallGpu(), {{"PEAL_PROTOCOL", "simple"}, {"PEAL_ALGO", "ring"}}),
      [] {
        constexpr size_t kLarge = 40000;  // both channels
        const std::vector<pealComm_t> first = initAll({0, 0});
        const std::vector<pealComm_t> second = initAll({0, 0});
        onThreads(2, [&](int rank) {
          const auto index = static_cast<size_t>(rank);
          const GpuStream one(0);
          const GpuStream other(0);
          const GpuBuffer a = filled(0, kLarge, 1.0F);
          const GpuBuffer b = filled(0, kLarge, 1.0F);
          for (int turn = 0; turn < 4; ++turn) {
            PEAL_EXPECT_OK(
                pealAllReduce(a.data(), a.data(), kLarge, pealFloat32, pealSum, first[index], one.peal()));
            PEAL_EXPECT_OK(
                pealAllReduce(b.data(), b.data(), kLarge, pealFloat32, pealSum, second[index], other.peal()));
          }
          one.synchronize();
          other.synchronize();
          EXPECT_EQ(floatsOf(a), std::vector<float>(kLarge, 16.0F));
          EXPECT_EQ(floatsOf(b), std::vector<float>(kLarge, 16.0F));
        });
        destroyAll(first);
        destroyAll(second);
      },
      std::chrono::seconds(60), small);
}

TEST(ApiCalls, OneCommunicatorIsOrderedAcrossStreams) {
  inProcess(smallGpu(), [] {
    const std::vector<pealComm_t> comms = initAll({0, 1});
    onThreads(2, [&](int rank) {
      const GpuStream one(rank);
      const GpuStream other(rank);
      const GpuBuffer data = filled(rank, kCount, 1.0F);
      // The same memory on two streams: right only in the order of the calls.
      for (int turn = 0; turn < 6; ++turn) {
        const GpuStream& stream = turn % 2 == 0 ? one : other;
        PEAL_EXPECT_OK(pealAllReduce(data.data(), data.data(), kCount, pealFloat32, pealSum,
                                     comms[static_cast<size_t>(rank)], stream.peal()));
      }
      other.synchronize();
      EXPECT_EQ(floatsOf(data), std::vector<float>(kCount, 64.0F));
      one.synchronize();
    });
    destroyAll(comms);
  });
}

TEST(ApiCalls, SplitMakesCommunicatorsOnTheSameDevices) {
  inProcess(smallGpu(), [] {
    const std::vector<int> devices{0, 1, 1, 2};
    const std::vector<pealComm_t> comms = initAll(devices);
    onThreads(4, [&](int rank) {
      const auto index = static_cast<size_t>(rank);
      pealComm_t child = nullptr;
      PEAL_ASSERT_OK(pealCommSplit(comms[index], rank % 2, -rank, &child, nullptr));
      int device = -5;
      int childRank = -5;
      PEAL_EXPECT_OK(pealCommCuDevice(child, &device));
      PEAL_EXPECT_OK(pealCommUserRank(child, &childRank));
      EXPECT_EQ(device, peal::cudasim::deviceOf(devices[index]));
      EXPECT_EQ(childRank, rank < 2 ? 1 : 0);
      const GpuStream stream(device);
      const GpuBuffer data = filled(device, kCount, static_cast<float>(rank));
      PEAL_EXPECT_OK(
          pealAllReduce(data.data(), data.data(), kCount, pealFloat32, pealSum, child, stream.peal()));
      PEAL_EXPECT_OK(
          pealAllReduce(data.data(), data.data(), kCount, pealFloat32, pealSum, comms[index], stream.peal()));
      stream.synchronize();
      EXPECT_EQ(floatsOf(data), std::vector<float>(kCount, 12.0F));
      PEAL_EXPECT_OK(pealCommDestroy(child));
    });
    destroyAll(comms);
  });
}

TEST(ApiCalls, RegisteredBuffersAreReadInPlace) {
  // Slots that a reference pays for.
  inProcess(with(smallGpu(), {{"PEAL_PROTOCOL", "simple"}, {"PEAL_SLOT_BYTES", "8192"}}), [] {
    constexpr size_t kLarge = 20000;
    const std::vector<int> devices{0, 0, 1};
    const std::vector<pealComm_t> comms = initAll(devices);
    onThreads(3, [&](int rank) {
      const auto index = static_cast<size_t>(rank);
      const GpuStream stream(devices[index]);
      const GpuBuffer in = filled(devices[index], kLarge, static_cast<float>(rank));
      const GpuBuffer out = filled(devices[index], kLarge * 3, -1);
      void* inHandle = nullptr;
      void* outHandle = nullptr;
      PEAL_ASSERT_OK(pealCommRegister(comms[index], in.data(), in.bytes(), &inHandle));
      PEAL_ASSERT_OK(pealCommRegister(comms[index], out.data(), out.bytes(), &outHandle));
      PEAL_EXPECT_OK(pealAllGather(in.data(), out.data(), kLarge, pealFloat32, comms[index], stream.peal()));
      PEAL_EXPECT_OK(
          pealAllReduce(in.data(), in.data(), kLarge, pealFloat32, pealSum, comms[index], stream.peal()));
      stream.synchronize();
      EXPECT_EQ(floatsOf(in), std::vector<float>(kLarge, 3.0F));
      std::vector<float> gathered(kLarge * 3);
      for (size_t i = 0; i < gathered.size(); ++i) {
        gathered[i] = static_cast<float>(i / kLarge);
      }
      EXPECT_EQ(floatsOf(out), gathered);
      PEAL_EXPECT_OK(pealCommDeregister(comms[index], inHandle));
      PEAL_EXPECT_OK(pealCommDeregister(comms[index], outHandle));
      EXPECT_EQ(pealCommDeregister(comms[index], outHandle), pealInvalidArgument);
    });
    destroyAll(comms);
  });
}

TEST(ApiCalls, StatisticsCountWhatWasIssued) {
  inProcess(with(smallGpu(), {{"PEAL_ALGO", "ring"}}), [] {
    const std::vector<pealComm_t> comms = initAll({0, 1});
    onThreads(2, [&](int rank) {
      const GpuStream stream(rank);
      const GpuBuffer data = filled(rank, kCount, 1.0F);
      const pealComm_t comm = comms[static_cast<size_t>(rank)];
      PEAL_EXPECT_OK(
          pealAllReduce(data.data(), data.data(), kCount, pealFloat32, pealSum, comm, stream.peal()));
      stream.synchronize();
      pealCommStats_t stats{};
      PEAL_EXPECT_OK(pealCommGetStats(comm, &stats));
      EXPECT_EQ(stats.calls[pealStatAllReduce], 1u);
      EXPECT_EQ(stats.bytesSent[pealStatAllReduce], kCount * sizeof(float));  // 2 S - b(r) - b(r+1), N = 2
      EXPECT_GE(stats.messages[pealStatAllReduce], 2u);
      EXPECT_EQ(stats.calls[pealStatBroadcast], 0u);
    });
    destroyAll(comms);
  });
}

// ---- CUDA graphs ----

// A captured pair of collectives.
struct Graph {
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t instance = nullptr;

  Graph(const GpuStream& stream, const std::function<void()>& calls) {
    cudaOk(cudaStreamBeginCapture(stream.get(), cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture");
    calls();
    cudaOk(cudaStreamEndCapture(stream.get(), &graph), "cudaStreamEndCapture");
    cudaOk(cudaGraphInstantiate(&instance, graph, 0), "cudaGraphInstantiate");
  }
  void launch(const GpuStream& stream) const {
    cudaOk(cudaGraphLaunch(instance, stream.get()), "cudaGraphLaunch");
  }
  void destroyAtOnce() const {
    cudaOk(cudaGraphExecDestroy(instance), "cudaGraphExecDestroy");
    cudaOk(cudaGraphDestroy(graph), "cudaGraphDestroy");
  }
  void destroy() const {
    destroyAtOnce();
    peal::cudasim::settle();
  }
};

TEST(ApiGraphs, ReplaysMixWithCalls) {
  inProcess(smallGpu(), [] {
    const std::vector<pealComm_t> comms = initAll({0, 0, 1});
    const std::vector<int> devices{0, 0, 1};
    onThreads(3, [&](int rank) {
      const auto index = static_cast<size_t>(rank);
      const pealComm_t comm = comms[index];
      const GpuStream stream(devices[index]);
      const GpuBuffer data = filled(devices[index], kCount, 1.0F);
      const GpuBuffer all = filled(devices[index], 3 * kCount, 0.0F);
      const Graph graph(stream, [&] {
        PEAL_EXPECT_OK(
            pealAllReduce(data.data(), data.data(), kCount, pealFloat32, pealSum, comm, stream.peal()));
        PEAL_EXPECT_OK(pealAllGather(data.data(), all.data(), kCount, pealFloat32, comm, stream.peal()));
      });
      float expected = 1;
      for (int turn = 0; turn < 5; ++turn) {
        graph.launch(stream);
        PEAL_EXPECT_OK(
            pealAllReduce(data.data(), data.data(), kCount, pealFloat32, pealSum, comm, stream.peal()));
        expected *= 9;
      }
      graph.launch(stream);
      graph.launch(stream);
      expected *= 9;
      stream.synchronize();
      EXPECT_EQ(floatsOf(all), std::vector<float>(3 * kCount, expected));
      graph.destroy();
    });
    destroyAll(comms);
  });
}

TEST(ApiGraphs, SeveralCommunicatorsAndRanksInOneCapture) {
  inProcess(smallGpu(), [] {
    Driven first({0, 0}, kCount);
    Driven second({0, 0}, kCount);
    const GpuStream stream(0);
    const Graph graph(stream, [&] {
      PEAL_EXPECT_OK(pealGroupStart());
      for (size_t rank = 0; rank < 2; ++rank) {
        for (const Driven* ranks : {&first, &second}) {
          std::byte* const data = ranks->buffers[rank].data();
          PEAL_EXPECT_OK(
              pealAllReduce(data, data, kCount, pealFloat32, pealSum, ranks->comms[rank], stream.peal()));
        }
      }
      PEAL_EXPECT_OK(pealGroupEnd());
    });
    for (int turn = 0; turn < 3; ++turn) {
      graph.launch(stream);
    }
    stream.synchronize();
    EXPECT_EQ(floatsOf(first.buffers[1]), std::vector<float>(kCount, 12.0F));
    EXPECT_EQ(floatsOf(second.buffers[0]), std::vector<float>(kCount, 12.0F));
    graph.destroy();
  });
}

TEST(ApiGraphs, ACommunicatorWithGraphsCannotBeDestroyed) {
  inProcess(smallGpu(), [] {
    const std::vector<pealComm_t> comms = initAll({0});
    const GpuStream stream(0);
    const GpuBuffer data = filled(0, kCount, 1.0F);
    const auto call = [&] {
      PEAL_EXPECT_OK(
          pealAllReduce(data.data(), data.data(), kCount, pealFloat32, pealSum, comms[0], stream.peal()));
    };
    const Graph one(stream, call);
    const Graph other(stream, call);
    EXPECT_EQ(pealCommDestroy(comms[0]), pealInvalidUsage);
    EXPECT_NE(std::string(pealGetLastError(nullptr)).find("2 CUDA graphs"), std::string::npos)
        << pealGetLastError(nullptr);
    one.destroy();
    EXPECT_EQ(pealCommFinalize(comms[0]), pealInvalidUsage);
    EXPECT_NE(std::string(pealGetLastError(nullptr)).find("1 CUDA graph "), std::string::npos)
        << pealGetLastError(nullptr);
    other.launch(stream);
    stream.synchronize();
    other.destroyAtOnce();  // that it is gone is said later, on a thread of the runtime
    PEAL_EXPECT_OK(pealCommDestroy(comms[0]));
  });
}

TEST(ApiGraphs, AfterAbortLaunchesDoNothing) {
  inProcess(smallGpu(), [] {
    const std::vector<pealComm_t> comms = initAll({0, 1});
    std::barrier captured(2);
    onThreads(2, [&](int rank) {
      const GpuStream stream(rank);
      const GpuBuffer data = filled(rank, kCount, 1.0F);
      const Graph graph(stream, [&] {
        PEAL_EXPECT_OK(pealAllReduce(data.data(), data.data(), kCount, pealFloat32, pealSum,
                                     comms[static_cast<size_t>(rank)], stream.peal()));
      });
      captured.arrive_and_wait();
      PEAL_EXPECT_OK(pealCommAbort(comms[static_cast<size_t>(rank)]));
      const auto start = std::chrono::steady_clock::now();
      graph.launch(stream);
      stream.synchronize();
      EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(5));
      EXPECT_EQ(floatsOf(data), std::vector<float>(kCount, 1.0F));
      graph.destroy();
    });
    destroyAll(initAll({0}));  // frees what the graphs kept
  });
}

}  // namespace
