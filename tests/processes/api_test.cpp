// The C API used wrongly, and its smaller promises.
#include <sys/resource.h>

#include <chrono>
#include <cstring>
#include <fstream>
#include <thread>

#include "lib/executor/device_executor.h"
#include "tests/processes/ranks.h"

namespace peal::test {
namespace {

std::string lastError() { return pealGetLastError(nullptr); }

#define EXPECT_REFUSED(call, code, part)                                                       \
  do {                                                                                         \
    EXPECT_EQ((call), code) << #call;                                                          \
    EXPECT_NE(lastError().find(part), std::string::npos) << #call << " said: " << lastError(); \
  } while (false)

class OneRank : public ::testing::Test {
 protected:
  void SetUp() override { PEAL_ASSERT_OK(pealCommInitAll(&comm_, 1, nullptr)); }
  void TearDown() override { PEAL_EXPECT_OK(pealCommDestroy(comm_)); }
  pealComm_t comm_ = nullptr;
  float a_[8]{}, b_[8]{};
};

TEST_F(OneRank, NullPointersAreNamed) {
  EXPECT_REFUSED(pealAllReduce(nullptr, b_, 8, pealFloat32, pealSum, comm_, nullptr), pealInvalidArgument,
                 "sendbuff");
  EXPECT_REFUSED(pealAllReduce(a_, nullptr, 8, pealFloat32, pealSum, comm_, nullptr), pealInvalidArgument,
                 "recvbuff");
  EXPECT_REFUSED(pealAllReduce(a_, b_, 8, pealFloat32, pealSum, nullptr, nullptr), pealInvalidArgument,
                 "communicator");
  EXPECT_REFUSED(pealAlltoAll(a_, b_, 8, pealFloat32, nullptr, nullptr), pealInvalidArgument, "communicator");
  EXPECT_REFUSED(pealGather(a_, nullptr, 8, pealFloat32, 0, comm_, nullptr), pealInvalidArgument, "recvbuff");
  EXPECT_REFUSED(pealScatter(nullptr, b_, 8, pealFloat32, 0, comm_, nullptr), pealInvalidArgument,
                 "sendbuff");
  EXPECT_REFUSED(pealReduceScatterV(a_, b_, nullptr, pealFloat32, pealSum, comm_, nullptr),
                 pealInvalidArgument, "counts");
  EXPECT_REFUSED(pealCommCount(comm_, nullptr), pealInvalidArgument, "count");
  EXPECT_REFUSED(pealGetUniqueId(nullptr), pealInvalidArgument, "uniqueId");
  EXPECT_REFUSED(pealGetVersion(nullptr), pealInvalidArgument, "version");
  EXPECT_REFUSED(pealMemAlloc(nullptr, 1), pealInvalidArgument, "ptr");
  EXPECT_REFUSED(pealStreamCreate(nullptr), pealInvalidArgument, "stream");
  EXPECT_REFUSED(pealEventRecord(nullptr, nullptr), pealInvalidArgument, "event");
  EXPECT_REFUSED(pealCommInitAll(nullptr, 1, nullptr), pealInvalidArgument, "comms");
  EXPECT_REFUSED(pealSystemInfo(nullptr), pealInvalidArgument, "json");
}

TEST_F(OneRank, NullBuffersOfNoElementsAreLegal) {
  PEAL_EXPECT_OK(pealAllReduce(nullptr, nullptr, 0, pealFloat32, pealSum, comm_, nullptr));
  PEAL_EXPECT_OK(pealAllGather(nullptr, nullptr, 0, pealFloat32, comm_, nullptr));
}

TEST_F(OneRank, BadEnumsAreNamedWithTheirRange) {
  EXPECT_REFUSED(pealAllReduce(a_, b_, 8, static_cast<pealDataType_t>(12), pealSum, comm_, nullptr),
                 pealInvalidArgument, "datatype is 12");
  EXPECT_REFUSED(pealAllReduce(a_, b_, 8, static_cast<pealDataType_t>(15), pealSum, comm_, nullptr),
                 pealInvalidArgument, "datatype is 15");
  EXPECT_REFUSED(pealAllReduce(a_, b_, 8, pealFloat32, static_cast<pealRedOp_t>(9), comm_, nullptr),
                 pealInvalidArgument, "reduction 9");
  EXPECT_REFUSED(pealBroadcast(a_, b_, 8, pealFloat32, 1, comm_, nullptr), pealInvalidArgument, "root is 1");
  EXPECT_REFUSED(pealReduce(a_, b_, 8, pealFloat32, pealSum, -1, comm_, nullptr), pealInvalidArgument,
                 "root is -1");
  EXPECT_REFUSED(pealGather(a_, b_, 8, pealFloat32, 1, comm_, nullptr), pealInvalidArgument, "root is 1");
  EXPECT_REFUSED(pealScatter(a_, b_, 8, pealFloat32, -1, comm_, nullptr), pealInvalidArgument, "root is -1");
  EXPECT_REFUSED(pealAlltoAll(a_, b_, 8, static_cast<pealDataType_t>(13), comm_, nullptr),
                 pealInvalidArgument, "datatype is 13");
  EXPECT_REFUSED(pealSend(a_, 8, pealFloat32, 3, comm_, nullptr), pealInvalidArgument, "peer is 3");
  EXPECT_REFUSED(pealSend(a_, 8, pealFloat32, 0, comm_, nullptr), pealInvalidArgument, "group");
}

TEST_F(OneRank, OverlapThatIsNotInPlaceIsRefused) {
  EXPECT_REFUSED(pealAllReduce(a_, a_ + 1, 4, pealFloat32, pealSum, comm_, nullptr), pealInvalidArgument,
                 "overlap");
  EXPECT_REFUSED(pealBroadcast(a_ + 2, a_, 4, pealFloat32, 0, comm_, nullptr), pealInvalidArgument,
                 "overlap");
  EXPECT_REFUSED(pealAlltoAll(a_, a_, 4, pealFloat32, comm_, nullptr), pealInvalidArgument, "overlap");
  EXPECT_REFUSED(pealGather(a_ + 1, a_, 4, pealFloat32, 0, comm_, nullptr), pealInvalidArgument, "overlap");
  EXPECT_REFUSED(pealScatter(a_, a_ + 1, 4, pealFloat32, 0, comm_, nullptr), pealInvalidArgument, "overlap");
}

TEST_F(OneRank, CountsBeyondTheAddressSpaceAreRefused) {
  EXPECT_REFUSED(pealAllReduce(a_, b_, SIZE_MAX, pealFloat32, pealSum, comm_, nullptr), pealInvalidArgument,
                 "address space");
  EXPECT_REFUSED(pealAllGather(a_, b_, SIZE_MAX / 2, pealFloat32, comm_, nullptr), pealInvalidArgument,
                 "address space");
  EXPECT_REFUSED(pealAlltoAll(a_, b_, SIZE_MAX / 8, pealFloat32, comm_, nullptr), pealInvalidArgument,
                 "address space");
}

TEST_F(OneRank, AnOperationMadeForOneTypeIsRefusedForAnother) {
  pealRedOp_t op{};
  float scalar = 2;
  PEAL_ASSERT_OK(pealRedOpCreatePreMulSum(&op, &scalar, pealFloat32, pealScalarHostImmediate, comm_));
  double x = 1;
  EXPECT_REFUSED(pealAllReduce(&x, &x, 1, pealFloat64, op, comm_, nullptr), pealInvalidArgument,
                 "made for float");
  a_[0] = 3;
  PEAL_EXPECT_OK(pealAllReduce(a_, b_, 1, pealFloat32, op, comm_, nullptr));
  EXPECT_EQ(b_[0], 6.0F);
  PEAL_EXPECT_OK(pealRedOpDestroy(op, comm_));
  EXPECT_REFUSED(pealRedOpDestroy(op, comm_), pealInvalidArgument, "destroyed already");
  EXPECT_REFUSED(pealRedOpDestroy(pealSum, comm_), pealInvalidArgument, "was not made");
}

TEST_F(OneRank, ADeferredScalarIsReadWhenTheOperationRuns) {
  pealRedOp_t op{};
  float scalar = 2;
  PEAL_ASSERT_OK(pealRedOpCreatePreMulSum(&op, &scalar, pealFloat32, pealScalarDevice, comm_));
  scalar = 5;
  a_[0] = 3;
  PEAL_EXPECT_OK(pealAllReduce(a_, b_, 1, pealFloat32, op, comm_, nullptr));
  EXPECT_EQ(b_[0], 15.0F);
  PEAL_EXPECT_OK(pealRedOpDestroy(op, comm_));
}

TEST_F(OneRank, AFailureInsideAGroupIssuesNothing) {
  a_[0] = 1;
  b_[0] = 7;
  PEAL_EXPECT_OK(pealGroupStart());
  PEAL_EXPECT_OK(pealAllReduce(a_, b_, 1, pealFloat32, pealSum, comm_, nullptr));
  EXPECT_EQ(pealAllReduce(nullptr, b_, 1, pealFloat32, pealSum, comm_, nullptr), pealInvalidArgument);
  EXPECT_REFUSED(pealGroupEnd(), pealInvalidArgument, "nothing of this group was issued");
  EXPECT_EQ(b_[0], 7.0F);
  EXPECT_REFUSED(pealGroupEnd(), pealInvalidUsage, "without a pealGroupStart");
}

TEST_F(OneRank, AfterFinalizeOnlyDestroyIsLegal) {
  PEAL_EXPECT_OK(pealCommFinalize(comm_));
  EXPECT_REFUSED(pealBarrier(comm_, nullptr), pealInvalidUsage, "finalized");
}

TEST(Api, ConfigsAreChecked) {
  pealComm_t comm = nullptr;
  pealUniqueId id{};
  // A library with CUDA on a machine without a driver reports what CUDA says.
  const DeviceSupport devices = probeDevices();
  const pealResult_t noSuchDevice =
      devices.built && devices.count == 0 ? pealUnhandledCudaError : pealInvalidArgument;
  pealConfig_t config = PEAL_CONFIG_INITIALIZER;
  config.magic = 1;
  EXPECT_REFUSED(pealCommInitRankConfig(&comm, 1, id, 0, &config), pealInvalidArgument,
                 "PEAL_CONFIG_INITIALIZER");
  config = PEAL_CONFIG_INITIALIZER;
  config.timeoutMs = 0;
  EXPECT_REFUSED(pealCommInitRankConfig(&comm, 1, id, 0, &config), pealInvalidArgument, "timeoutMs is 0");
  config = PEAL_CONFIG_INITIALIZER;
  config.device = 1023;
  EXPECT_REFUSED(pealCommInitRankConfig(&comm, 1, id, 0, &config), noSuchDevice, "device is 1023");
  config = PEAL_CONFIG_INITIALIZER;
  config.deterministic = 2;
  EXPECT_REFUSED(pealCommInitRankConfig(&comm, 1, id, 0, &config), pealInvalidArgument, "deterministic is 2");
  EXPECT_REFUSED(pealCommInitRank(&comm, 2, id, 2), pealInvalidArgument, "rank 2 of 2");
  EXPECT_REFUSED(pealCommInitRank(&comm, 0, id, 0), pealInvalidArgument, "rank 0 of 0");
  EXPECT_EQ(pealCommInitRank(&comm, 2, id, 0), pealInvalidArgument) << "an id of zeros";
  EXPECT_EQ(comm, nullptr);
  const int devlist[]{1023};
  EXPECT_REFUSED(pealCommInitAll(&comm, 1, devlist), noSuchDevice, "devlist[0] is 1023");
}

TEST(Api, ErrorStringsExistForEveryCode) {
  for (int code = 0; code < pealNumResults; ++code) {
    EXPECT_STRNE(pealGetErrorString(static_cast<pealResult_t>(code)), "unknown result code");
  }
  EXPECT_STREQ(pealGetErrorString(static_cast<pealResult_t>(12)), "unknown result code");
}

TEST(Api, DestroyingNothingIsLegal) {
  PEAL_EXPECT_OK(pealCommDestroy(nullptr));
  PEAL_EXPECT_OK(pealStreamDestroy(nullptr));
  PEAL_EXPECT_OK(pealEventDestroy(nullptr));
  PEAL_EXPECT_OK(pealMemFree(nullptr));
  int onStack = 0;
  EXPECT_EQ(pealMemFree(&onStack), pealInvalidArgument);
}

TEST(Api, OneThreadDrivesSeveralRanksInAGroup) {
  constexpr int kSize = 4;
  pealComm_t comms[kSize];
  PEAL_ASSERT_OK(pealCommInitAll(comms, kSize, nullptr));
  int32_t data[kSize][3];
  PEAL_EXPECT_OK(pealGroupStart());
  for (int rank = 0; rank < kSize; ++rank) {
    for (int i = 0; i < 3; ++i) {
      data[rank][i] = rank * 10 + i;
    }
    PEAL_EXPECT_OK(pealAllReduce(data[rank], data[rank], 3, pealInt32, pealSum, comms[rank], nullptr));
  }
  PEAL_EXPECT_OK(pealGroupEnd());
  for (int rank = 0; rank < kSize; ++rank) {
    for (int i = 0; i < 3; ++i) {
      EXPECT_EQ(data[rank][i], 60 + 4 * i);
    }
    int seen = -1;
    PEAL_EXPECT_OK(pealCommUserRank(comms[rank], &seen));
    EXPECT_EQ(seen, rank);
    PEAL_EXPECT_OK(pealCommCount(comms[rank], &seen));
    EXPECT_EQ(seen, kSize);
    PEAL_EXPECT_OK(pealCommCuDevice(comms[rank], &seen));
    EXPECT_EQ(seen, PEAL_DEVICE_HOST);
  }
  for (pealComm_t comm : comms) {
    PEAL_EXPECT_OK(pealCommDestroy(comm));
  }
}

TEST(Api, AGroupHasOneStreamForEachCommunicator) {
  pealComm_t comm = nullptr;
  PEAL_ASSERT_OK(pealCommInitAll(&comm, 1, nullptr));
  pealStream_t stream = nullptr;
  PEAL_ASSERT_OK(pealStreamCreate(&stream));
  float value = 7;
  PEAL_EXPECT_OK(pealGroupStart());
  PEAL_EXPECT_OK(pealAllReduce(&value, &value, 1, pealFloat32, pealSum, comm, stream));
  PEAL_EXPECT_OK(pealAllReduce(&value, &value, 1, pealFloat32, pealSum, comm, nullptr));
  EXPECT_REFUSED(pealGroupEnd(), pealInvalidUsage, "calls on two streams");
  PEAL_EXPECT_OK(pealStreamDestroy(stream));
  PEAL_EXPECT_OK(pealCommDestroy(comm));
}

#ifndef PEAL_SANITIZED  // whose shadow memory no limit on address space leaves room for
TEST(Api, AThreadThatCannotStartIsAnErrorAndNothingRuns) {
  expectAllSucceeded(runProcesses(1, kHangs, [](const Child&) {
    constexpr int kSize = 32;
    std::vector<pealComm_t> comms(kSize);
    PEAL_EXPECT_OK(pealCommInitAll(comms.data(), kSize, nullptr));
    size_t pages = 0;
    std::ifstream("/proc/self/statm") >> pages;
    const rlim_t room = rlim_t{64} << 20;  // some stacks of 8 MiB, not 32
    const rlimit limit{pages * 4096 + room, pages * 4096 + room};
    EXPECT_EQ(setrlimit(RLIMIT_AS, &limit), 0);
    PEAL_EXPECT_OK(pealGroupStart());
    for (pealComm_t comm : comms) {
      PEAL_EXPECT_OK(pealBarrier(comm, nullptr));
    }
    EXPECT_REFUSED(pealGroupEnd(), pealSystemError, "did not start");
    return ::testing::Test::HasFailure() ? 1 : 0;
  }));
}
#endif

TEST(Api, RanksJoinInsideAGroup) {
  pealUniqueId id;
  PEAL_ASSERT_OK(pealGetUniqueId(&id));
  pealComm_t comms[3]{};
  PEAL_EXPECT_OK(pealGroupStart());
  for (int rank = 0; rank < 3; ++rank) {
    PEAL_EXPECT_OK(pealCommInitRank(&comms[rank], 3, id, rank));
  }
  PEAL_EXPECT_OK(pealGroupEnd());
  for (pealComm_t comm : comms) {
    ASSERT_NE(comm, nullptr);
    PEAL_EXPECT_OK(pealCommDestroy(comm));
  }
}

TEST(Api, SplitMakesGroupsByColorAndOrdersThemByKey) {
  runAsProcesses(5, [](pealComm_t comm, int rank) {
    // Colors 0 (ranks 0, 2, 4, keys reversed), 1 (rank 1), none (rank 3).
    const int color = rank == 3 ? PEAL_SPLIT_NOCOLOR : rank % 2;
    pealComm_t child = nullptr;
    PEAL_ASSERT_OK(pealCommSplit(comm, color, -rank, &child, nullptr));
    if (rank == 3) {
      EXPECT_EQ(child, nullptr);
    } else {
      int size = 0;
      int childRank = -1;
      PEAL_EXPECT_OK(pealCommCount(child, &size));
      PEAL_EXPECT_OK(pealCommUserRank(child, &childRank));
      EXPECT_EQ(size, rank == 1 ? 1 : 3);
      EXPECT_EQ(childRank, rank == 1 ? 0 : (4 - rank) / 2);
      int32_t value = 1 << rank;
      PEAL_EXPECT_OK(pealAllReduce(&value, &value, 1, pealInt32, pealSum, child, nullptr));
      EXPECT_EQ(value, rank == 1 ? 2 : 21);
      PEAL_EXPECT_OK(pealCommDestroy(child));
    }
    // The parent goes on working.
    int32_t value = rank;
    PEAL_EXPECT_OK(pealAllReduce(&value, &value, 1, pealInt32, pealSum, comm, nullptr));
    EXPECT_EQ(value, 10);
  });
}

// Ranks that make a child wait for each other longer than the parent's operations may take.
TEST(Api, SplitOutlastsASmallTimeoutOfTheParent) {
  pealConfig_t hasty = PEAL_CONFIG_INITIALIZER;
  hasty.timeoutMs = 2000;
  runAsProcesses(2, [&](pealComm_t comm, int rank) {
    pealComm_t parent = nullptr;
    PEAL_ASSERT_OK(pealCommSplit(comm, 0, rank, &parent, &hasty));
    if (rank == 1) {
      std::this_thread::sleep_for(std::chrono::milliseconds(2500));  // how late it comes
    }
    pealComm_t child = nullptr;
    PEAL_ASSERT_OK(pealCommSplit(parent, 0, rank, &child, nullptr));
    for (pealComm_t made : {child, parent}) {
      int32_t value = rank;
      PEAL_EXPECT_OK(pealAllReduce(&value, &value, 1, pealInt32, pealSum, made, nullptr));
      EXPECT_EQ(value, 1);
      PEAL_EXPECT_OK(pealCommDestroy(made));
    }
  });
}

// By what three ranks send: all of the array to each other rank, or a third of it twice. The same call again
// and again, so that nothing of an earlier choice is kept.
TEST(Api, AnAlgorithmCanBeForcedCallByCall) {
  constexpr size_t kCount = 3000;
  pealConfig_t deterministic = PEAL_CONFIG_INITIALIZER;
  deterministic.deterministic = 1;
  const auto sentBy = [](pealComm_t comm, const char* algorithm) {
    pealCommStats_t before, after;
    std::vector<float> data(kCount, 1.0F);
    PEAL_EXPECT_OK(pealCommForceAlgorithm(comm, algorithm));
    PEAL_EXPECT_OK(pealCommGetStats(comm, &before));
    PEAL_EXPECT_OK(pealAllReduce(data.data(), data.data(), kCount, pealFloat32, pealSum, comm, nullptr));
    PEAL_EXPECT_OK(pealCommGetStats(comm, &after));
    EXPECT_EQ(data, std::vector<float>(kCount, 3.0F));
    return after.bytesSent[pealStatAllReduce] - before.bytesSent[pealStatAllReduce];
  };
  runAsProcesses(3, [&](pealComm_t comm, int) {
    for (int turn = 0; turn < 2; ++turn) {
      EXPECT_EQ(sentBy(comm, "one_shot"), kCount * 4 * 2);
      EXPECT_EQ(sentBy(comm, "ring"), kCount * 4 * 4 / 3);
      EXPECT_EQ(sentBy(comm, "one_shot"), kCount * 4 * 2);
      EXPECT_EQ(sentBy(comm, "two_shot"), kCount * 4 * 4 / 3);
    }
    EXPECT_EQ(sentBy(comm, "auto"), sentBy(comm, nullptr));
    EXPECT_EQ(pealCommForceAlgorithm(comm, "rings"), pealInvalidArgument);
    EXPECT_NE(std::string(pealGetLastError(nullptr))
                  .find("hierarchical, tree, one_shot, two_shot, ring, hierarchical_ring"),
              std::string::npos)
        << pealGetLastError(nullptr);
    PEAL_EXPECT_OK(pealGroupStart());
    EXPECT_EQ(pealCommForceAlgorithm(comm, "ring"), pealInvalidUsage);
    PEAL_EXPECT_OK(pealGroupEnd());
  });
  runAsProcesses(
      2,
      [&](pealComm_t comm, int) {
        float value = 1;
        PEAL_EXPECT_OK(pealCommForceAlgorithm(comm, "ring"));
        EXPECT_EQ(pealAllReduce(&value, &value, 1, pealFloat32, pealSum, comm, nullptr), pealInvalidUsage);
        EXPECT_NE(std::string(pealGetLastError(nullptr)).find("legal are: one_shot, two_shot"),
                  std::string::npos)
            << pealGetLastError(nullptr);
        PEAL_EXPECT_OK(pealCommForceAlgorithm(comm, "two_shot"));
        PEAL_EXPECT_OK(pealAllReduce(&value, &value, 1, pealFloat32, pealSum, comm, nullptr));
        EXPECT_EQ(value, 2);
      },
      deterministic);
}

TEST(Api, StatsCountCallsAndBytes) {
  runAsProcesses(4, [](pealComm_t comm, int) {
    std::vector<float> data(4000, 1.0F);
    PEAL_EXPECT_OK(pealReduceScatter(data.data(), data.data(), 0, pealFloat32, pealSum, comm, nullptr));
    std::vector<float> part(1000);
    PEAL_EXPECT_OK(pealReduceScatter(data.data(), part.data(), 1000, pealFloat32, pealSum, comm, nullptr));
    pealCommStats_t stats;
    PEAL_EXPECT_OK(pealCommGetStats(comm, &stats));
    EXPECT_EQ(stats.calls[pealStatReduceScatter], 2u);
    EXPECT_EQ(stats.bytesSent[pealStatReduceScatter], 3u * 1000 * 4);
    EXPECT_EQ(stats.calls[pealStatAllReduce], 0u);
  });
}

}  // namespace
}  // namespace peal::test
