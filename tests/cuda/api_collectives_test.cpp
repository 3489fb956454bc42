// Collectives on simulated GPUs through the public API give the bits of a communicator on host memory, for
// every algorithm and protocol, ranks as threads that share devices or not, and as processes over CUDA IPC.
#include "tests/cuda/gpu_ranks.h"

namespace {

using namespace peal::test;

// Every rank's result on GPUs equals its result on host memory.
void compareOnThreads(const std::vector<int>& devices, const std::vector<Call>& calls) {
  const int ranks = static_cast<int>(devices.size());
  const std::vector<pealComm_t> gpus = initAll(devices);
  const std::vector<pealComm_t> hosts = initAll(std::vector<int>(devices.size(), PEAL_DEVICE_HOST));
  onThreads(ranks, [&](int rank) {
    const auto index = static_cast<size_t>(rank);
    const GpuStream stream(devices[index]);
    uint64_t seed = 1;
    for (Call call : calls) {
      call.root = std::min(call.root, ranks - 1);
      ++seed;
      EXPECT_EQ(onGpu(call, gpus[index], devices[index], rank, ranks, seed, stream),
                onHost(call, hosts[index], rank, ranks, seed))
          << call.text() << " on rank " << rank << " of " << ranks;
    }
  });
  destroyAll(gpus);
  destroyAll(hosts);
}

class Forced : public ::testing::TestWithParam<std::tuple<const char*, const char*>> {};

TEST_P(Forced, GivesTheHostsBits) {
  const auto [algorithm, protocol] = GetParam();
  inProcess(with(smallGpu(), {{"PEAL_ALGO", algorithm}, {"PEAL_PROTOCOL", protocol}}), [] {
    compareOnThreads({0, 0, 1}, sampleCalls());
    compareOnThreads({2, 2}, sampleCalls());
  });
}
INSTANTIATE_TEST_SUITE_P(Api, Forced,
                         ::testing::Combine(::testing::Values("ring", "one_shot", "two_shot"),
                                            ::testing::Values("simple", "ll", "ll128")),
                         [](const auto& test) {
                           return std::string(std::get<0>(test.param)) + "_" + std::get<1>(test.param);
                         });

TEST(ApiCollectives, OneToEightRanks) {
  // Forced, so that host and GPU run the same algorithm whatever their tuners think of the size.
  inProcess(with(smallGpu(), {{"PEAL_ALGO", "ring"}}), [] {
    const std::vector<Call> calls{{.kind = pealStatAllReduce, .type = pealBfloat16, .count = 900},
                                  {.kind = pealStatReduceScatter, .type = pealFloat32, .count = 31},
                                  {.kind = pealStatAllGather, .type = pealInt32, .count = 130}};
    compareOnThreads({0}, calls);
    compareOnThreads({3, 1, 0, 2}, calls);
    compareOnThreads({0, 1, 2, 3, 4, 5, 6, 7}, calls);
    compareOnThreads({0, 0, 0, 0, 1, 1, 1, 1}, calls);
  });
}

TEST(ApiCollectives, TheTunerChoosesAlikeOnAllRanks) {
  inProcess(smallGpu(), [] {
    // From LL to Simple, from one shot to two; deterministic, so that the algorithm does not show in the
    // bits.
    setenv("PEAL_DETERMINISTIC", "1", 1);
    std::vector<Call> calls;
    for (const size_t count : {1, 500, 5000, 40000, 150000}) {
      calls.push_back({.kind = pealStatAllReduce, .type = pealFloat32, .count = count});
    }
    compareOnThreads({0, 1}, calls);
  });
}

TEST(ApiCollectives, ProcessesOverCudaIpc) {
  constexpr int kRanks = 4;
  SharedValue<Meeting> gpuMeeting;
  SharedValue<Meeting> hostMeeting;
  expectAllSucceeded(runProcesses(kRanks, kHangs, [&](const Child& child) {
    enter(with(smallGpu(), {{"PEAL_ALGO", "two_shot"}}), {});
    const int rank = child.index();
    const int device = rank / 2;  // two processes on each of two devices
    pealConfig_t config = PEAL_CONFIG_INITIALIZER;
    config.device = peal::cudasim::deviceOf(device);
    pealComm_t gpu = nullptr;
    pealComm_t host = nullptr;
    PEAL_EXPECT_OK(gpuMeeting->join(&gpu, rank, kRanks, &config));
    pealConfig_t onHostMemory = PEAL_CONFIG_INITIALIZER;
    PEAL_EXPECT_OK(hostMeeting->join(&host, rank, kRanks, &onHostMemory));
    if (gpu == nullptr || host == nullptr) {
      child.say(pealGetLastError(nullptr));
      return 2;
    }
    {
      const GpuStream stream(device);
      uint64_t seed = 50;
      for (const Call& call : sampleCalls()) {
        ++seed;
        EXPECT_EQ(onGpu(call, gpu, device, rank, kRanks, seed, stream),
                  onHost(call, host, rank, kRanks, seed))
            << call.text();
      }
    }
    PEAL_EXPECT_OK(pealCommDestroy(gpu));
    PEAL_EXPECT_OK(pealCommDestroy(host));
    expectNothingAlive();
    return 0;
  }));
}

// Without PEAL_SLOT_BYTES a GPU's slots are as large as fit: not what the variable's default says.
TEST(ApiCollectives, SlotsOfTheDefaultSizeAreNotThoseThatFit) {
  SharedValue<Meeting> meeting;
  expectAllSucceeded(runProcesses(2, kHangs, [&](const Child& child) {
    const int rank = child.index();
    Environment environment = with(smallGpu(), {{"PEAL_SLOT_BYTES", "65536"}});
    if (rank == 0) {
      environment.erase("PEAL_SLOT_BYTES");
    }
    enter(environment, {});
    pealConfig_t config = PEAL_CONFIG_INITIALIZER;
    config.device = peal::cudasim::deviceOf(rank);
    pealComm_t comm = nullptr;
    EXPECT_EQ(meeting->join(&comm, rank, 2, &config), pealInvalidUsage);
    const std::string error = pealGetLastError(nullptr);
    EXPECT_NE(error.find("PEAL_SLOT_BYTES"), std::string::npos) << error;
    EXPECT_NE(error.find("it must be the same on all ranks"), std::string::npos) << error;
    expectNothingAlive();
    return 0;
  }));
}

}  // namespace
