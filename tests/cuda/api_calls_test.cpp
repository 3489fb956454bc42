// Groups, sends and receives, scalars, several communicators, splitting and registered buffers on simulated
// GPUs, through the public API. CUDA graphs: api_graphs_test.cpp.
#include "tests/cuda/gpu_floats.h"

namespace {

using namespace peal::test;

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

TEST(ApiCalls, ExchangesAreSendsAndReceives) {
  inProcess(smallGpu(), [] {
    constexpr int kRanks = 3;
    const std::vector<int> devices{0, 1, 0};
    const std::vector<pealComm_t> comms = initAll(devices);
    onThreads(kRanks, [&](int rank) {
      const auto index = static_cast<size_t>(rank);
      const GpuStream stream(devices[index]);
      const pealComm_t comm = comms[index];
      const GpuBuffer own = filled(devices[index], kCount, static_cast<float>(rank));
      const GpuBuffer whole = filled(devices[index], kRanks * kCount, -1),
                      all = filled(devices[index], kRanks * kCount, -1);
      PEAL_EXPECT_OK(pealGather(own.data(), whole.data(), kCount, pealFloat32, 1, comm, stream.peal()));
      PEAL_EXPECT_OK(pealBcast(whole.data(), kRanks * kCount, pealFloat32, 1, comm, stream.peal()));
      PEAL_EXPECT_OK(pealAlltoAll(whole.data(), all.data(), kCount, pealFloat32, comm, stream.peal()));
      PEAL_EXPECT_OK(pealScatter(all.data(), own.data(), kCount, pealFloat32, 2, comm, stream.peal()));
      stream.synchronize();
      std::vector<float> due;
      for (int from = 0; from < kRanks; ++from) {
        due.insert(due.end(), kCount, static_cast<float>(from));
      }
      EXPECT_EQ(floatsOf(whole), due);
      EXPECT_EQ(floatsOf(all), std::vector<float>(kRanks * kCount, static_cast<float>(rank)))
          << "block of each rank";
      EXPECT_EQ(floatsOf(own), std::vector<float>(kCount, 2.0F));
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
      kHangs, small);
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

TEST(ApiCalls, TheDefaultStreamByAllItsHandles) {
  inProcess(smallGpu(), [] {
    const std::vector<pealComm_t> comms = initAll({1});
    CUDA_OK(cudaSetDevice(peal::cudasim::deviceOf(1)));
    const GpuBuffer data = filled(1, kCount, 1.0F);
    for (cudaStream_t const stream :
         {static_cast<cudaStream_t>(nullptr), cudaStreamLegacy, cudaStreamPerThread}) {
      const GpuBuffer out = filled(1, kCount, 0.0F);
      PEAL_EXPECT_OK(
          pealAllReduce(data.data(), out.data(), kCount, pealFloat32, pealSum, comms[0], asPeal(stream)));
      CUDA_OK(cudaStreamSynchronize(stream));
      EXPECT_EQ(floatsOf(out), std::vector<float>(kCount, 1.0F));
    }
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

}  // namespace
