// Communicators of GPUs over several nodes: windows inside a node, a proxy between nodes. All collectives
// give the host's bits; faults name the rank, on whichever node it is; leaving and graphs.
#include <atomic>

#include "tests/cuda/node_ranks.h"

namespace {

using namespace peal::test;
using std::chrono::steady_clock;

constexpr size_t kCount = 3000;

std::vector<std::byte> bytesOf(const std::vector<float>& values) {
  std::vector<std::byte> bytes(values.size() * sizeof(float));
  std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}
std::vector<float> floatsOf(const GpuBuffer& buffer) {
  const std::vector<std::byte> bytes = buffer.read();
  std::vector<float> values(bytes.size() / sizeof(float));
  std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}
GpuBuffer filled(int device, size_t count, float value) {
  return GpuBuffer(device, bytesOf(std::vector<float>(count, value)));
}

pealResult_t allReduce(const NodeRank& self, const GpuBuffer& data, const GpuStream& stream) {
  return pealAllReduce(data.data(), data.data(), data.bytes() / sizeof(float), pealFloat32, pealSum, self.gpu,
                       stream.peal());
}

// ---- results ----

void expectHostsBits(NodeRank& self) {
  const GpuStream stream(self.device);
  uint64_t seed = 70;
  for (Call call : sampleCalls()) {
    ++seed;
    call.root = call.root == 0 ? 0 : self.size - 1;  // on another node than rank 0
    EXPECT_EQ(onGpu(call, self.gpu, self.device, self.rank, self.size, seed, stream),
              onHost(call, self.host, self.rank, self.size, seed))
        << call.text() << " on rank " << self.rank << " of " << self.size;
  }
}

class Forced : public ::testing::TestWithParam<std::tuple<Nodes, const char*>> {};

TEST_P(Forced, GivesTheHostsBits) {
  PEAL_NEEDS_UCX();
  const auto& [nodes, algorithm] = GetParam();
  runOnNodes({.nodes = nodes, .environment = with(nodeGpu(), {{"PEAL_ALGO", algorithm}})}, expectHostsBits);
}
std::string nameOf(const ::testing::TestParamInfo<std::tuple<Nodes, const char*>>& row) {
  std::string name = std::get<1>(row.param);
  for (const int node : std::get<0>(row.param)) {
    name += std::to_string(node);
  }
  return name;
}
INSTANTIATE_TEST_SUITE_P(GpuNodes, Forced,
                         ::testing::Combine(::testing::Values(Nodes{0, 1}, Nodes{0, 1, 0, 1},
                                                              Nodes{0, 0, 0, 1}),
                                            ::testing::Values("ring", "one_shot", "two_shot")),
                         nameOf);
INSTANTIATE_TEST_SUITE_P(GpuNodesLevels, Forced,
                         ::testing::Combine(::testing::Values(Nodes{0, 0, 1, 1}, Nodes{0, 0, 1}),
                                            ::testing::Values("hierarchical", "tree")),
                         nameOf);

// Stages that run ahead, and the tuner's own choice: hierarchical for what is too long for one shot.
TEST(GpuNodes, TheTunersChoiceGivesTheHostsBits) {
  PEAL_NEEDS_UCX();
  const Environment many = with(nodeGpu(), {{"PEAL_SLOTS", "4"}});
  runOnNodes({.nodes = {0, 1, 0}, .environment = with(many, {{"PEAL_ALGO", "hierarchical"}})},
             [](NodeRank& self) {
               const GpuStream stream(self.device);
               const Call call{.kind = pealStatAllReduce, .type = pealBfloat16, .count = 90001};
               EXPECT_EQ(onGpu(call, self.gpu, self.device, self.rank, self.size, 5, stream),
                         onHost(call, self.host, self.rank, self.size, 5));
               pealCommStats_t gpu{}, host{};
               PEAL_EXPECT_OK(pealCommGetStats(self.gpu, &gpu));
               PEAL_EXPECT_OK(pealCommGetStats(self.host, &host));
               EXPECT_EQ(gpu.bytesSent[pealStatAllReduce], host.bytesSent[pealStatAllReduce]);
             });
  runOnNodes({.nodes = {0, 0, 1}, .environment = many, .withHost = false}, [](NodeRank& self) {
    const GpuStream stream(self.device);
    const Call call{.kind = pealStatAllReduce, .type = pealFloat32, .count = 60000};
    onGpu(call, self.gpu, self.device, self.rank, self.size, 6, stream);
    pealCommStats_t stats{};
    PEAL_EXPECT_OK(pealCommGetStats(self.gpu, &stats));
    // hierarchical.h; of two-shot every rank sends 4 blocks.
    constexpr size_t kBlock = 20000 * sizeof(float);
    EXPECT_EQ(stats.bytesSent[pealStatAllReduce], static_cast<size_t>(5 - self.rank) * kBlock);
  });
}

// The path inside nodes is one for all: a node whose GPUs cannot reach each other takes the others along.
TEST(GpuNodes, WindowsInHostMemoryWhereOneNodeNeedsThem) {
  PEAL_NEEDS_UCX();
  NodeTest test{.nodes = {0, 0, 1}, .environment = with(nodeGpu(), {{"PEAL_ALGO", "ring"}})};
  test.machine.peerAccess = [](int, int) { return false; };
  runOnNodes(test, expectHostsBits);
}

TEST(GpuNodes, TheTunerChoosesWhatANetworkCarries) {
  PEAL_NEEDS_UCX();
  // Deterministic, so that the algorithm does not show in the bits.
  runOnNodes({.nodes = {0, 0, 1}, .environment = with(nodeGpu(), {{"PEAL_DETERMINISTIC", "1"}})},
             [](NodeRank& self) {
               const GpuStream stream(self.device);
               for (const size_t count : {1, 500, 60000}) {
                 const Call call{.kind = pealStatAllReduce, .type = pealFloat32, .count = count};
                 EXPECT_EQ(onGpu(call, self.gpu, self.device, self.rank, self.size, count, stream),
                           onHost(call, self.host, self.rank, self.size, count))
                     << call.text();
               }
             });
}

TEST(GpuNodes, SendsGoToEverybody) {
  PEAL_NEEDS_UCX();
  runOnNodes({.nodes = {0, 0, 1}, .withHost = false}, [](NodeRank& self) {
    const GpuStream stream(self.device);
    for (int turn = 0; turn < 2; ++turn) {
      std::vector<GpuBuffer> out, in;
      PEAL_EXPECT_OK(pealGroupStart());
      for (int peer = 0; peer < self.size; ++peer) {
        out.push_back(filled(self.device, kCount, static_cast<float>(100 * self.rank + 10 * peer + turn)));
        in.push_back(filled(self.device, kCount, -1));
        PEAL_EXPECT_OK(pealSend(out.back().data(), kCount, pealFloat32, peer, self.gpu, stream.peal()));
        PEAL_EXPECT_OK(pealRecv(in.back().data(), kCount, pealFloat32, peer, self.gpu, stream.peal()));
      }
      PEAL_EXPECT_OK(pealGroupEnd());
      stream.synchronize();
      for (int peer = 0; peer < self.size; ++peer) {
        EXPECT_EQ(floatsOf(in[static_cast<size_t>(peer)]),
                  std::vector<float>(kCount, static_cast<float>(100 * peer + 10 * self.rank + turn)));
      }
      PEAL_EXPECT_OK(pealBarrier(self.gpu, stream.peal()));  // memory is freed when no kernel waits
      stream.synchronize();
    }
  });
}

TEST(GpuNodes, Split) {
  PEAL_NEEDS_UCX();
  runOnNodes({.nodes = {0, 0, 1, 1}, .withHost = false}, [](NodeRank& self) {
    for (const int color : {self.rank / 2, self.rank % 2}) {  // inside nodes, and across
      NodeRank part = self;
      PEAL_EXPECT_OK(pealCommSplit(self.gpu, color, self.rank, &part.gpu, nullptr));
      {
        const GpuStream stream(self.device);
        const GpuBuffer data = filled(self.device, kCount, static_cast<float>(1 + color));
        PEAL_EXPECT_OK(allReduce(part, data, stream));
        stream.synchronize();
        EXPECT_EQ(floatsOf(data), std::vector<float>(kCount, static_cast<float>(2 + 2 * color)));
      }
      PEAL_EXPECT_OK(pealCommDestroy(part.gpu));
    }
  });
}

// ---- what is refused ----

TEST(GpuNodes, WhatNetworksDoNotCarryIsRefused) {
  PEAL_NEEDS_UCX();
  const auto refused = [](const Environment& more, const std::vector<std::string>& words) {
    runOnNodes({.nodes = {0, 1}, .environment = with(nodeGpu(), more), .withHost = false},
               [&](NodeRank& self) {
                 const GpuStream stream(self.device);
                 const GpuBuffer data = filled(self.device, 100, 1);
                 EXPECT_EQ(allReduce(self, data, stream), pealInvalidUsage);
                 expectWords(pealGetLastError(nullptr), words);
               });
  };
  refused({{"PEAL_PROTOCOL", "ll"}}, {"PEAL_PROTOCOL=ll", "other nodes", "simple"});
  refused({{"PEAL_ALGO", "hierarchical"}, {"PEAL_DETERMINISTIC", "1"}},
          {"PEAL_ALGO=hierarchical", "deterministic", "one_shot, two_shot"});
}

// ---- graphs and leaving ----

TEST(GpuNodes, GraphsReplay) {
  PEAL_NEEDS_UCX();
  runOnNodes({.nodes = {0, 0, 1}, .withHost = false}, [](NodeRank& self) {
    const GpuStream stream(self.device);
    const GpuBuffer data = filled(self.device, kCount, 1);
    const Graph graph(stream, [&] { PEAL_EXPECT_OK(allReduce(self, data, stream)); });
    float expected = 1;
    for (int turn = 0; turn < 4; ++turn) {
      graph.launch(stream);
      PEAL_EXPECT_OK(allReduce(self, data, stream));
      expected *= 9;
    }
    stream.synchronize();
    EXPECT_EQ(floatsOf(data), std::vector<float>(kCount, expected));
    graph.destroy();
  });
}

TEST(GpuNodes, AfterAbortGraphsDoNothing) {
  PEAL_NEEDS_UCX();
  SharedValue<std::atomic<int>> captured;
  runOnNodes({.nodes = {0, 1}, .withHost = false}, [&](NodeRank& self) {
    const GpuStream stream(self.device);
    const GpuBuffer data = filled(self.device, kCount, 1);
    const Graph graph(stream, [&] { PEAL_EXPECT_OK(allReduce(self, data, stream)); });
    for (captured->fetch_add(1); captured->load() < self.size;) {
      std::this_thread::yield();
    }
    PEAL_EXPECT_OK(pealCommAbort(self.gpu));
    self.gpu = nullptr;
    const auto start = steady_clock::now();
    graph.launch(stream);
    stream.synchronize();
    EXPECT_LT(steady_clock::now() - start, kAtOnce);
    EXPECT_EQ(floatsOf(data), std::vector<float>(kCount, 1));
    graph.destroy();
    destroyAll(initAll({self.device}));  // frees what the graph kept
  });
}

TEST(GpuNodes, WhoeverHasSentWaitsUntilItIsTaken) {
  PEAL_NEEDS_UCX();
  SharedValue<std::atomic<bool>> leaving;
  runOnNodes({.nodes = {0, 1}, .withHost = false}, [&](NodeRank& self) {
    const GpuStream stream(self.device);
    const GpuBuffer data = filled(self.device, 100, static_cast<float>(self.rank));
    if (self.rank == 0) {
      PEAL_EXPECT_OK(pealSend(data.data(), 100, pealFloat32, 1, self.gpu, stream.peal()));
      stream.synchronize();  // it is in the slots
      leaving->store(true);
      PEAL_EXPECT_OK(pealCommDestroy(self.gpu));
      self.gpu = nullptr;
    } else {
      while (!leaving->load()) {
        std::this_thread::yield();
      }
      PEAL_EXPECT_OK(pealRecv(data.data(), 100, pealFloat32, 0, self.gpu, stream.peal()));
      stream.synchronize();
      EXPECT_EQ(floatsOf(data), std::vector<float>(100, 0));
    }
  });
}

// ---- faults ----

TEST(GpuNodes, AKilledRankIsNamedOnAllNodes) {
  PEAL_NEEDS_UCX();
  const NodeTest test{.nodes = {0, 0, 1, 1}, .withHost = false};
  NodeMeetings meetings;
  Processes processes(4, [&](const Child& child) {
    return runNodeRank(test, meetings, child, [](NodeRank& self) {
      const GpuStream stream(self.device);
      const GpuBuffer data = filled(self.device, kCount, 1);
      PEAL_EXPECT_OK(allReduce(self, data, stream));
      stream.synchronize();
      self.child.say("ready");
      if (self.rank == 3) {
        std::this_thread::sleep_for(std::chrono::minutes(5));  // until it is killed
      }
      PEAL_EXPECT_OK(allReduce(self, data, stream));
      const auto start = steady_clock::now();
      stream.synchronize();  // the kernel leaves by itself
      EXPECT_LT(steady_clock::now() - start, kAtOnce);
      EXPECT_EQ(awaitError(self.gpu), pealRemoteError);
      expectWords(pealGetLastError(self.gpu), {"rank 3"});
    });
  });
  for (int rank = 0; rank < 4; ++rank) {
    ASSERT_TRUE(processes.waitForMessage(rank, kHangs)) << "rank " << rank;
  }
  processes.kill(3);
  const std::vector<ChildResult> results = processes.wait(kHangs);
  EXPECT_EQ(results[3].signal, SIGKILL);
  for (size_t rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(results[rank].exitCode, 0) << results[rank].message;
  }
}

TEST(GpuNodes, AbortStopsTheKernelsOfAllNodes) {
  PEAL_NEEDS_UCX();
  runOnNodes({.nodes = {0, 0, 1}, .withHost = false}, [](NodeRank& self) {
    const GpuStream stream(self.device);
    const GpuBuffer data = filled(self.device, kCount, 1);
    if (self.rank == 1) {
      PEAL_EXPECT_OK(pealCommAbort(self.gpu));
      self.gpu = nullptr;
      return;
    }
    const pealResult_t issued = allReduce(self, data, stream);  // the abort may be known already
    EXPECT_TRUE(issued == pealSuccess || issued == pealRemoteError) << issued;
    stream.synchronize();
    EXPECT_EQ(awaitError(self.gpu), pealRemoteError);
    expectWords(pealGetLastError(self.gpu), {"rank 1", "abort"});
  });
}

TEST(GpuNodes, TheDeadlineNamesWhoDidNotCome) {
  PEAL_NEEDS_UCX();
  runOnNodes(
      {.nodes = {0, 1}, .environment = with(nodeGpu(), {{"PEAL_TIMEOUT_MS", "1000"}}), .withHost = false},
      [](NodeRank& self) {
        const GpuStream stream(self.device);
        const GpuBuffer data = filled(self.device, kCount, 1);
        if (self.rank == 0) {
          PEAL_EXPECT_OK(allReduce(self, data, stream));
          stream.synchronize();
          EXPECT_EQ(awaitError(self.gpu), pealTimeout);
          expectWords(pealGetLastError(self.gpu), {"all_reduce #", "1000 ms", "rank 1"});
        } else {
          EXPECT_EQ(awaitError(self.gpu), pealRemoteError);
          expectWords(pealGetLastError(self.gpu), {"rank 0", "all_reduce #", "1000 ms"});
        }
      });
}

TEST(GpuNodes, RanksThatDisagreeLearnTheField) {
  PEAL_NEEDS_UCX();
  runOnNodes({.nodes = {0, 1}, .withHost = false}, [](NodeRank& self) {
    const GpuStream stream(self.device);
    const GpuBuffer data = filled(self.device, 200 + static_cast<size_t>(self.rank), 1);
    PEAL_EXPECT_OK(allReduce(self, data, stream));
    stream.synchronize();
    const pealResult_t error = awaitError(self.gpu);
    EXPECT_TRUE(error == pealInvalidUsage || error == pealRemoteError) << error;
    expectWords(pealGetLastError(self.gpu), {"the count is", "200", "201"});
  });
}

}  // namespace
