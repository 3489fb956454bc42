// CUDA graphs that hold operations of communicators on simulated GPUs: replays beside calls, and what ends
// first: the graph, its communicator, or a peer.
#include <barrier>

#include "tests/cuda/gpu_floats.h"

namespace {

using namespace peal::test;

constexpr size_t kGraphCount = 1500;

TEST(ApiGraphs, ReplaysMixWithCalls) {
  inProcess(smallGpu(), [] {
    const std::vector<pealComm_t> comms = initAll({0, 0, 1});
    const std::vector<int> devices{0, 0, 1};
    onThreads(3, [&](int rank) {
      const auto index = static_cast<size_t>(rank);
      const pealComm_t comm = comms[index];
      const GpuStream stream(devices[index]);
      const GpuBuffer data = filled(devices[index], kGraphCount, 1.0F);
      const GpuBuffer all = filled(devices[index], 3 * kGraphCount, 0.0F);
      const Graph graph(stream, [&] {
        PEAL_EXPECT_OK(
            pealAllReduce(data.data(), data.data(), kGraphCount, pealFloat32, pealSum, comm, stream.peal()));
        PEAL_EXPECT_OK(pealAllGather(data.data(), all.data(), kGraphCount, pealFloat32, comm, stream.peal()));
      });
      float expected = 1;
      for (int turn = 0; turn < 5; ++turn) {
        graph.launch(stream);
        PEAL_EXPECT_OK(
            pealAllReduce(data.data(), data.data(), kGraphCount, pealFloat32, pealSum, comm, stream.peal()));
        expected *= 9;
      }
      graph.launch(stream);
      graph.launch(stream);
      expected *= 9;
      stream.synchronize();
      EXPECT_EQ(floatsOf(all), std::vector<float>(3 * kGraphCount, expected));
      graph.destroy();
    });
    destroyAll(comms);
  });
}

TEST(ApiGraphs, SeveralCommunicatorsAndRanksInOneCapture) {
  inProcess(smallGpu(), [] {
    Driven first({0, 0}, kGraphCount);
    Driven second({0, 0}, kGraphCount);
    const GpuStream stream(0);
    const Graph graph(stream, [&] {
      PEAL_EXPECT_OK(pealGroupStart());
      for (size_t rank = 0; rank < 2; ++rank) {
        for (const Driven* ranks : {&first, &second}) {
          std::byte* const data = ranks->buffers[rank].data();
          PEAL_EXPECT_OK(pealAllReduce(data, data, kGraphCount, pealFloat32, pealSum, ranks->comms[rank],
                                       stream.peal()));
        }
      }
      PEAL_EXPECT_OK(pealGroupEnd());
    });
    for (int turn = 0; turn < 3; ++turn) {
      graph.launch(stream);
    }
    stream.synchronize();
    EXPECT_EQ(floatsOf(first.buffers[1]), std::vector<float>(kGraphCount, 12.0F));
    EXPECT_EQ(floatsOf(second.buffers[0]), std::vector<float>(kGraphCount, 12.0F));
    graph.destroy();
  });
}

TEST(ApiGraphs, ACommunicatorWithGraphsCannotBeDestroyed) {
  inProcess(smallGpu(), [] {
    const std::vector<pealComm_t> comms = initAll({0});
    const GpuStream stream(0);
    const GpuBuffer data = filled(0, kGraphCount, 1.0F);
    const auto call = [&] {
      PEAL_EXPECT_OK(pealAllReduce(data.data(), data.data(), kGraphCount, pealFloat32, pealSum, comms[0],
                                   stream.peal()));
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
      const GpuBuffer data = filled(rank, kGraphCount, 1.0F);
      const Graph graph(stream, [&] {
        PEAL_EXPECT_OK(pealAllReduce(data.data(), data.data(), kGraphCount, pealFloat32, pealSum,
                                     comms[static_cast<size_t>(rank)], stream.peal()));
      });
      captured.arrive_and_wait();
      PEAL_EXPECT_OK(pealCommAbort(comms[static_cast<size_t>(rank)]));
      const auto start = std::chrono::steady_clock::now();
      graph.launch(stream);
      stream.synchronize();
      EXPECT_LT(std::chrono::steady_clock::now() - start, kAtOnce);
      EXPECT_EQ(floatsOf(data), std::vector<float>(kGraphCount, 1.0F));
      graph.destroy();
    });
    destroyAll(initAll({0}));  // frees what the graphs kept
  });
}

void expectRefusedForGraphs(pealResult_t result, const char* words) {
  const std::string sentence = pealGetLastError(nullptr);
  EXPECT_EQ(result, pealInvalidUsage) << sentence;
  EXPECT_NE(sentence.find(words), std::string::npos) << sentence;
}

// Sends, receives and registered buffers in graphs: the addresses at which peers read stay good.
TEST(ApiGraphs, RegisteredBuffersStayWhileGraphsReadThem) {
  inProcess(with(smallGpu(), {{"PEAL_PROTOCOL", "simple"}, {"PEAL_SLOT_BYTES", "8192"}}), [] {
    constexpr size_t kLarge = 5000;
    const std::vector<pealComm_t> comms = initAll({0, 1});
    onThreads(2, [&](int rank) {
      const pealComm_t comm = comms[static_cast<size_t>(rank)];
      const GpuStream stream(rank);
      const GpuBuffer own = filled(rank, kLarge, static_cast<float>(rank + 1));
      const GpuBuffer theirs = filled(rank, kLarge, -1.0F);
      void* handle = nullptr;
      PEAL_ASSERT_OK(pealCommRegister(comm, own.data(), own.bytes(), &handle));
      const Graph graph(stream, [&] {
        PEAL_EXPECT_OK(pealGroupStart());
        PEAL_EXPECT_OK(pealSend(own.data(), kLarge, pealFloat32, 1 - rank, comm, stream.peal()));
        PEAL_EXPECT_OK(pealRecv(theirs.data(), kLarge, pealFloat32, 1 - rank, comm, stream.peal()));
        PEAL_EXPECT_OK(pealGroupEnd());
        PEAL_EXPECT_OK(
            pealAllReduce(own.data(), own.data(), kLarge, pealFloat32, pealSum, comm, stream.peal()));
      });
      expectRefusedForGraphs(pealCommDeregister(comm, handle), "1 CUDA graph ");
      graph.launch(stream);
      graph.launch(stream);
      stream.synchronize();
      EXPECT_EQ(floatsOf(theirs), std::vector<float>(kLarge, 3.0F));
      EXPECT_EQ(floatsOf(own), std::vector<float>(kLarge, 6.0F));
      PEAL_EXPECT_OK(pealBarrier(comm, stream.peal()));  // the peer has read, too
      stream.synchronize();
      graph.destroy();
      PEAL_EXPECT_OK(pealCommDeregister(comm, handle));
    });
    destroyAll(comms);
  });
}

TEST(ApiGraphs, AnExecutableOrAnUnfinishedCaptureHoldsTheCommunicator) {
  inProcess(smallGpu(), [] {
    const std::vector<pealComm_t> comms = initAll({0});
    const GpuStream stream(0);
    const GpuBuffer data = filled(0, kGraphCount, 1.0F);
    const auto call = [&] {
      PEAL_EXPECT_OK(pealAllReduce(data.data(), data.data(), kGraphCount, pealFloat32, pealSum, comms[0],
                                   stream.peal()));
    };
    const Graph graph(stream, call);
    CUDA_OK(cudaGraphDestroy(graph.graph));
    expectRefusedForGraphs(pealCommDestroy(comms[0]), "1 CUDA graph ");
    graph.launch(stream);
    stream.synchronize();
    CUDA_OK(cudaGraphExecDestroy(graph.instance));
    peal::cudasim::settle();

    CUDA_OK(cudaStreamBeginCapture(stream.get(), cudaStreamCaptureModeGlobal));
    call();
    expectRefusedForGraphs(pealCommDestroy(comms[0]), "1 CUDA graph ");
    PEAL_EXPECT_OK(pealCommAbort(comms[0]));
    cudaGraph_t captured = nullptr;
    CUDA_OK(cudaStreamEndCapture(stream.get(), &captured));  // the abort has not broken it
    cudaGraphExec_t instance = nullptr;
    CUDA_OK(cudaGraphInstantiate(&instance, captured, 0));
    CUDA_OK(cudaGraphLaunch(instance, stream.get()));
    stream.synchronize();
    CUDA_OK(cudaGraphExecDestroy(instance));
    CUDA_OK(cudaGraphDestroy(captured));
    peal::cudasim::settle();
    destroyAll(initAll({0}));  // frees what the graph kept
  });
}

// The rank that goes on learns of it, and its graph's launches end at once, again and again.
TEST(ApiGraphs, AfterAPeersAbortLaunchesEnd) {
  inProcess(smallGpu(), [] {
    const std::vector<pealComm_t> comms = initAll({0, 1});
    std::barrier captured(2);
    onThreads(2, [&](int rank) {
      const pealComm_t comm = comms[static_cast<size_t>(rank)];
      const GpuStream stream(rank);
      const GpuBuffer data = filled(rank, kGraphCount, 1.0F);
      const Graph graph(stream, [&] {
        PEAL_EXPECT_OK(
            pealAllReduce(data.data(), data.data(), kGraphCount, pealFloat32, pealSum, comm, stream.peal()));
      });
      graph.launch(stream);
      stream.synchronize();
      captured.arrive_and_wait();
      if (rank == 1) {
        PEAL_EXPECT_OK(pealCommAbort(comm));
      } else {
        const auto start = std::chrono::steady_clock::now();
        for (int turn = 0; turn < 3; ++turn) {
          graph.launch(stream);
          stream.synchronize();
        }
        EXPECT_LT(std::chrono::steady_clock::now() - start, kAtOnce);
        EXPECT_EQ(pealBarrier(comm, stream.peal()), pealRemoteError) << pealGetLastError(nullptr);
        expectRefusedForGraphs(pealCommDestroy(comm), "1 CUDA graph ");
        EXPECT_EQ(floatsOf(data), std::vector<float>(kGraphCount, 2.0F));
      }
      graph.destroy();
      if (rank == 0) {
        PEAL_EXPECT_OK(pealCommDestroy(comm));
      }
    });
    destroyAll(initAll({0}));  // frees what rank 1's graph kept
  });
}

// Ranks that share a device launch beside the caller's stream, on one that a capture takes with it.
TEST(ApiGraphs, AGroupWhileAnotherOfTheSameCommunicatorsIsCaptured) {
  inProcess(smallGpu(), [] {
    Driven ranks({0, 0}, kGraphCount);
    const GpuStream capturing(0), other(0);
    const auto sums = [&](const GpuStream& stream) {
      PEAL_EXPECT_OK(pealGroupStart());
      for (size_t rank = 0; rank < 2; ++rank) {
        std::byte* const data = ranks.buffers[rank].data();
        PEAL_EXPECT_OK(
            pealAllReduce(data, data, kGraphCount, pealFloat32, pealSum, ranks.comms[rank], stream.peal()));
      }
      PEAL_EXPECT_OK(pealGroupEnd());
    };
    const Graph graph(capturing, [&] {
      sums(capturing);
      sums(other);  // not captured: it runs now
      sums(capturing);
    });
    other.synchronize();
    EXPECT_EQ(floatsOf(ranks.buffers[1]), std::vector<float>(kGraphCount, 3.0F));
    graph.launch(capturing);
    capturing.synchronize();
    EXPECT_EQ(floatsOf(ranks.buffers[0]), std::vector<float>(kGraphCount, 12.0F));
    // Two captures at once.
    CUDA_OK(cudaStreamBeginCapture(other.get(), cudaStreamCaptureModeThreadLocal));
    sums(other);
    const Graph second(capturing, [&] { sums(capturing); });
    sums(other);
    Graph first = second;
    CUDA_OK(cudaStreamEndCapture(other.get(), &first.graph));
    CUDA_OK(cudaGraphInstantiate(&first.instance, first.graph, 0));
    first.launch(other);
    other.synchronize();
    second.launch(capturing);
    capturing.synchronize();
    EXPECT_EQ(floatsOf(ranks.buffers[1]), std::vector<float>(kGraphCount, 96.0F));
    for (const Graph& one : {graph, first, second}) {
      one.destroyAtOnce();
    }
    peal::cudasim::settle();
  });
}

}  // namespace
