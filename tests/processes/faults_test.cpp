// What goes wrong between ranks: a killed rank, ranks that disagree, a rank that never comes, abort. Each
// must end with an error that names the rank, in time, on every rank.
#include <signal.h>
#include <sys/wait.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>

#include "peal/adamw.h"
#include "tests/processes/ranks.h"

namespace peal::test {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

bool mentions(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

pealConfig_t withTimeout(int timeoutMs) {
  pealConfig_t config = PEAL_CONFIG_INITIALIZER;
  config.timeoutMs = timeoutMs;
  return config;
}

// Calls all-reduce until it fails; the error.
pealResult_t untilFailure(pealComm_t comm, size_t count) {
  std::vector<float> data(count, 1.0F);
  for (;;) {
    const pealResult_t result =
        pealAllReduce(data.data(), data.data(), count, pealFloat32, pealMax, comm, nullptr);
    if (result != pealSuccess) {
      return result;
    }
  }
}

// Of pretended nodes a small one may hold a single rank.
int ranksWithLocalPeers(int size) {
  const int nodes = pretendedNodes();
  int ranks = 0;
  for (int rank = 0; rank < size; ++rank) {
    ranks += rank >= nodes || rank + nodes < size ? 1 : 0;
  }
  return ranks;
}

// The inodes of the sockets that a process has open, as /proc spells them.
std::set<std::string> socketInodes(pid_t pid) {
  std::set<std::string> inodes;
  std::error_code gone;
  for (const auto& entry :
       std::filesystem::directory_iterator("/proc/" + std::to_string(pid) + "/fd", gone)) {
    const std::string target = std::filesystem::read_symlink(entry.path(), gone).string();
    if (target.starts_with("socket:[")) {
      inodes.insert(target.substr(8, target.size() - 9));
    }
  }
  return inodes;
}

// Which of these sockets exist as Unix sockets anywhere on the machine. Other tests may run at the same
// time, so a mere count would say nothing.
std::set<std::string> unixSocketsAmong(const std::set<std::string>& inodes) {
  std::ifstream table("/proc/net/unix");
  std::set<std::string> found;
  std::string line;
  std::getline(table, line);  // the headings
  while (std::getline(table, line)) {
    std::istringstream words(line);
    std::string address, references, protocol, flags, type, state, inode;
    words >> address >> references >> protocol >> flags >> type >> state >> inode;
    if (inodes.contains(inode)) {
      found.insert(inode);
    }
  }
  return found;
}

class KillARank : public ::testing::TestWithParam<std::pair<int, size_t>> {};

TEST_P(KillARank, EveryOtherRankNamesItAtOnce) {
  const auto [size, count] = GetParam();
  const int victim = size - 1;
  std::set<std::string> sockets;
  {
    SharedValue<Meeting> meeting;
    SharedValue<std::atomic<int64_t>> killedAtNs;
    SharedValue<std::atomic<int>> started;
    Processes processes(size, [&](const Child& child) {
      pealComm_t comm = nullptr;
      pealConfig_t config = PEAL_CONFIG_INITIALIZER;
      if (meeting->join(&comm, child.index(), size, &config) != pealSuccess) {
        child.say(pealGetLastError(nullptr));
        return 2;
      }
      started->fetch_add(1);
      const pealResult_t result = untilFailure(comm, count);
      const int64_t lateNs = steady_clock::now().time_since_epoch().count() - killedAtNs->load();
      child.say(pealGetLastError(comm));
      EXPECT_EQ(result, pealRemoteError);
      EXPECT_LT(std::chrono::nanoseconds(lateNs), kAtOnce);
      pealCommAbort(comm);
      return 0;
    });
    while (started->load() < size) {
      std::this_thread::yield();
    }
    std::this_thread::sleep_for(milliseconds(20));  // somewhere inside their calls
    for (int rank = 0; rank < size; ++rank) {
      sockets.merge(socketInodes(processes.pid(rank)));
    }
    sockets = unixSocketsAmong(sockets);
    EXPECT_GE(sockets.size(), static_cast<size_t>(ranksWithLocalPeers(size)))
        << "every rank has a Unix socket to its peers on its node";
    killedAtNs->store(steady_clock::now().time_since_epoch().count());
    processes.kill(victim);
    const std::vector<ChildResult> results = processes.wait(kHangs);
    for (int rank = 0; rank < victim; ++rank) {
      const ChildResult& result = results[static_cast<size_t>(rank)];
      EXPECT_EQ(result.exitCode, 0) << "rank " << rank << ": " << result.message;
      EXPECT_TRUE(mentions(result.message, "rank " + std::to_string(victim))) << result.message;
    }
  }
  EXPECT_EQ(unixSocketsAmong(sockets), std::set<std::string>()) << "sockets outlive their ranks";
}

INSTANTIATE_TEST_SUITE_P(SizesAndCounts, KillARank,
                         ::testing::Values(std::pair{2, size_t{2}}, std::pair{2, size_t{1} << 20},
                                           std::pair{4, size_t{1000}}, std::pair{5, size_t{1} << 18}));

// Of broadcasts that root and receiver copy together, each writing memory that the other sees.
TEST(KillOneOfTwo, WhileTheyCopyTogether) {
  for (const int victim : {0, 1}) {
    SharedValue<Meeting> meeting;
    SharedValue<std::atomic<int>> started;
    Processes processes(2, [&](const Child& child) {
      pealComm_t comm = nullptr;
      pealConfig_t config = PEAL_CONFIG_INITIALIZER;
      constexpr size_t kBytes = 3000001;
      void* memory = nullptr;
      PEAL_EXPECT_OK(meeting->join(&comm, child.index(), 2, &config));
      PEAL_EXPECT_OK(pealMemAlloc(&memory, kBytes));
      pealResult_t result = pealSuccess;
      for (int call = 0; result == pealSuccess; ++call) {
        std::memset(memory, child.index() == 0 ? call : -1, kBytes);
        result = pealBcast(memory, kBytes, pealUint8, 0, comm, nullptr);
        const auto* const bytes = static_cast<const uint8_t*>(memory);
        EXPECT_TRUE(result != pealSuccess || std::all_of(bytes, bytes + kBytes, [&](uint8_t byte) {
                      return byte == static_cast<uint8_t>(call);
                    }));
        started->fetch_add(call == 0 ? 1 : 0);
      }
      EXPECT_EQ(result, pealRemoteError);
      child.say(pealGetLastError(comm));
      pealCommAbort(comm);
      PEAL_EXPECT_OK(pealMemFree(memory));
      return 0;
    });
    while (started->load() < 2) {
      std::this_thread::yield();
    }
    std::this_thread::sleep_for(milliseconds(20));
    processes.kill(victim);
    const ChildResult left = processes.wait(kHangs)[static_cast<size_t>(1 - victim)];
    EXPECT_EQ(left.exitCode, 0) << left.message;
    EXPECT_TRUE(mentions(left.message, "rank " + std::to_string(victim))) << left.message;
  }
}

// Each rank makes its own call; all must get pealInvalidUsage or the news of it, naming what differs.
void expectDisagreement(const std::string& field, const std::function<pealResult_t(pealComm_t, int)>& call) {
  runAsProcesses(
      3,
      [&](pealComm_t comm, int rank) {
        const pealResult_t result = call(comm, rank);
        EXPECT_TRUE(result == pealInvalidUsage || result == pealRemoteError) << pealGetErrorString(result);
        EXPECT_TRUE(mentions(pealGetLastError(comm), field))
            << "rank " << rank << ": " << pealGetLastError(comm);
        // The communicator stays broken, with the same sentence.
        EXPECT_NE(pealBarrier(comm, nullptr), pealSuccess);
        pealResult_t state = pealSuccess;
        PEAL_EXPECT_OK(pealCommGetAsyncError(comm, &state));
        EXPECT_NE(state, pealSuccess);
      },
      withTimeout(kFarMs));
}

TEST(RanksDisagree, OnTheCount) {
  expectDisagreement("count", [](pealComm_t comm, int rank) {
    std::vector<float> data(100, 1.0F);
    return pealAllReduce(data.data(), data.data(), rank == 1 ? 90 : 100, pealFloat32, pealSum, comm, nullptr);
  });
}

TEST(RanksDisagree, OnAnEmptyCount) {
  expectDisagreement("count", [](pealComm_t comm, int rank) {
    std::vector<float> data(100, 1.0F);
    return pealAllReduce(data.data(), data.data(), rank == 2 ? 0 : 100, pealFloat32, pealSum, comm, nullptr);
  });
}

TEST(RanksDisagree, OnTheType) {
  expectDisagreement("data type", [](pealComm_t comm, int rank) {
    std::vector<float> data(100, 1.0F);
    return pealAllReduce(data.data(), data.data(), 50, rank == 0 ? pealInt32 : pealFloat32, pealSum, comm,
                         nullptr);
  });
}

TEST(RanksDisagree, OnTheReduction) {
  expectDisagreement("reduction", [](pealComm_t comm, int rank) {
    std::vector<float> data(100, 1.0F);
    return pealAllReduce(data.data(), data.data(), 50, pealFloat32, rank == 0 ? pealMax : pealSum, comm,
                         nullptr);
  });
}

TEST(RanksDisagree, OnTheRoot) {
  expectDisagreement("root", [](pealComm_t comm, int rank) {
    // Two ranks that both take themselves for the root and a third that listens to one of them.
    std::vector<float> data(100, 1.0F);
    PEAL_EXPECT_OK(pealBarrier(comm, nullptr));
    const pealResult_t first =
        pealReduce(data.data(), data.data(), 100, pealFloat32, pealSum, rank == 1 ? 1 : 0, comm, nullptr);
    return first != pealSuccess ? first : pealBarrier(comm, nullptr);
  });
}

TEST(RanksDisagree, OnTheRootOfABroadcast) {
  expectDisagreement("root", [](pealComm_t comm, int rank) {
    std::vector<float> data(100000, 1.0F);
    const pealResult_t first =
        pealBroadcast(data.data(), data.data(), data.size(), pealFloat32, rank == 1 ? 1 : 0, comm, nullptr);
    return first != pealSuccess ? first : pealBarrier(comm, nullptr);
  });
}

TEST(RanksDisagree, OnAPreMultipliedSum) {
  expectDisagreement("reduction", [](pealComm_t comm, int rank) {
    float value = 2;
    pealRedOp_t op = pealSum;
    if (rank == 1) {
      PEAL_EXPECT_OK(pealRedOpCreatePreMulSum(&op, &value, pealFloat32, pealScalarHostImmediate, comm));
    }
    return pealAllReduce(&value, &value, 1, pealFloat32, op, comm, nullptr);
  });
}

TEST(RanksDisagree, OnTheOperation) {
  expectDisagreement("operation", [](pealComm_t comm, int rank) {
    std::vector<float> data(100, 1.0F);
    std::vector<float> gathered(300);
    return rank == 2 ? pealAllGather(data.data(), gathered.data(), 100, pealFloat32, comm, nullptr)
                     : pealAllReduce(data.data(), data.data(), 100, pealFloat32, pealSum, comm, nullptr);
  });
}

TEST(RanksDisagree, OnTheCountsOfAVForm) {
  expectDisagreement("ount", [](pealComm_t comm, int rank) {
    std::vector<float> in(10, 1.0F);
    std::vector<float> out(10);
    const std::vector<size_t> counts =
        rank == 0 ? std::vector<size_t>{3, 3, 4} : std::vector<size_t>{4, 3, 3};
    return pealAllGatherV(in.data(), out.data(), counts.data(), pealFloat32, comm, nullptr);
  });
}

TEST(RanksDisagree, OnAForcedAlgorithm) {
  runAsProcesses(
      2,
      [](pealComm_t comm, int rank) {
        std::vector<float> data(100000, 1.0F);
        PEAL_EXPECT_OK(pealCommForceAlgorithm(comm, rank == 0 ? "ring" : "two_shot"));
        const pealResult_t result =
            pealAllReduce(data.data(), data.data(), data.size(), pealFloat32, pealSum, comm, nullptr);
        EXPECT_TRUE(result == pealInvalidUsage || result == pealRemoteError) << result;
        EXPECT_TRUE(
            mentions(pealGetLastError(comm), "the algorithm is ring on rank 0 and two_shot on rank 1") ||
            mentions(pealGetLastError(comm), "the algorithm is two_shot on rank 1 and ring on rank 0"))
            << pealGetLastError(comm);
      },
      withTimeout(kFarMs));
}

TEST(RanksDisagree, OnASendsCount) {
  runAsProcesses(
      2,
      [](pealComm_t comm, int rank) {
        std::vector<float> data(10, 1.0F);
        if (rank == 0) {
          static_cast<void>(pealSend(data.data(), 10, pealFloat32, 1, comm, nullptr));
          return;
        }
        EXPECT_EQ(pealRecv(data.data(), 9, pealFloat32, 0, comm, nullptr), pealInvalidUsage);
        EXPECT_TRUE(mentions(pealGetLastError(comm), "count is 9 on rank 1 and 10 on rank 0"))
            << pealGetLastError(comm);
      },
      withTimeout(kFarMs));
}

TEST(Deadline, NamesTheRankThatHasNotComeAndWhatItDidLast) {
  SharedValue<std::atomic<bool>> over;
  runAsProcesses(
      3,
      [&](pealComm_t comm, int rank) {
        float value = 1;
        PEAL_EXPECT_OK(pealAllReduce(&value, &value, 1, pealFloat32, pealSum, comm, nullptr));
        if (rank == 2) {
          while (!over->load()) {
            std::this_thread::sleep_for(milliseconds(5));
          }
          return;
        }
        const auto start = steady_clock::now();
        const pealResult_t result = pealBarrier(comm, nullptr);
        EXPECT_TRUE(result == pealTimeout || result == pealRemoteError);
        EXPECT_LT(steady_clock::now() - start, kAtOnce);
        EXPECT_TRUE(mentions(pealGetLastError(comm), "rank 2 has not arrived")) << pealGetLastError(comm);
        EXPECT_TRUE(mentions(pealGetLastError(comm), "all_reduce #1")) << pealGetLastError(comm);
        over->store(true);
      },
      withTimeout(2000));
}

// More than what lies between two ranks holds.
TEST(Deadline, SaysHowRanksThatSendToEachOtherMayDoSo) {
  SharedValue<std::atomic<int>> said;
  runAsProcesses(
      2,
      [&](pealComm_t comm, int rank) {
        const std::vector<char> data(size_t{32} << 20, 'x');
        const pealResult_t result = pealSend(data.data(), data.size(), pealInt8, 1 - rank, comm, nullptr);
        // Whoever notices second may hear of the first.
        EXPECT_TRUE(result == pealTimeout || result == pealRemoteError) << result;
        const std::string error = pealGetLastError(comm);
        EXPECT_TRUE(mentions(error, "rank")) << error;
        *said += mentions(error, "it is inside send") && mentions(error, "pealGroupStart") ? 1 : 0;
      },
      withTimeout(2000));
  EXPECT_GE(said->load(), 1);
}

TEST(AsyncError, ReportsADeadRankOutsideACall) {
  SharedValue<Meeting> meeting;
  SharedValue<std::atomic<int>> joined;
  Processes processes(2, [&](const Child& child) {
    pealComm_t comm = nullptr;
    pealConfig_t config = PEAL_CONFIG_INITIALIZER;
    EXPECT_EQ(meeting->join(&comm, child.index(), 2, &config), pealSuccess);
    joined->fetch_add(1);
    pealResult_t state = pealSuccess;
    while (state == pealSuccess) {
      EXPECT_EQ(pealCommGetAsyncError(comm, &state), pealSuccess);
      std::this_thread::yield();
    }
    EXPECT_EQ(state, pealRemoteError);
    EXPECT_TRUE(mentions(pealGetLastError(comm), "rank 1")) << pealGetLastError(comm);
    EXPECT_EQ(pealCommDestroy(comm), pealSuccess);
    return 0;
  });
  while (joined->load() < 2) {
    std::this_thread::yield();
  }
  processes.kill(1);
  const std::vector<ChildResult> results = processes.wait(kHangs);
  EXPECT_EQ(results[0].exitCode, 0) << results[0].message;
}

TEST(Leaving, AFastRankMayLeaveWhileASlowOneStillReads) {
  SharedValue<Meeting> meeting;
  SharedValue<std::atomic<bool>> gone;
  expectAllSucceeded(runProcesses(2, kHangs, [&](const Child& child) {
    pealComm_t comm = nullptr;
    pealConfig_t config = PEAL_CONFIG_INITIALIZER;
    EXPECT_EQ(meeting->join(&comm, child.index(), 2, &config), pealSuccess);
    std::vector<int32_t> data(3000, child.index() + 1);  // so short that it goes by a slot
    if (child.index() == 0) {
      PEAL_EXPECT_OK(pealSend(data.data(), data.size(), pealInt32, 1, comm, nullptr));
      PEAL_EXPECT_OK(pealCommDestroy(comm));
      gone->store(true);
      return 0;
    }
    while (!gone->load()) {
      std::this_thread::yield();
    }
    PEAL_EXPECT_OK(pealRecv(data.data(), data.size(), pealInt32, 0, comm, nullptr));
    EXPECT_EQ(data.front(), 1);
    EXPECT_EQ(data.back(), 1);
    PEAL_EXPECT_OK(pealCommDestroy(comm));
    return 0;
  }));
}

TEST(AsyncError, TellsTheOthersWhoDiedAndNotWhoNoticed) {
  SharedValue<Meeting> meeting;
  SharedValue<std::atomic<int>> joined;
  SharedValue<std::atomic<bool>> noticed;
  Processes processes(3, [&](const Child& child) {
    pealComm_t comm = nullptr;
    pealConfig_t config = PEAL_CONFIG_INITIALIZER;
    EXPECT_EQ(meeting->join(&comm, child.index(), 3, &config), pealSuccess);
    joined->fetch_add(1);
    if (child.index() == 2) {
      for (;;) {
        std::this_thread::sleep_for(milliseconds(100));  // until it is killed
      }
    }
    pealResult_t state = pealSuccess;
    if (child.index() == 1) {  // looks only after rank 0 has told
      while (!noticed->load()) {
        std::this_thread::yield();
      }
    }
    while (state == pealSuccess) {
      EXPECT_EQ(pealCommGetAsyncError(comm, &state), pealSuccess);
      std::this_thread::yield();
    }
    noticed->store(true);
    EXPECT_TRUE(mentions(pealGetLastError(comm), "rank 2")) << pealGetLastError(comm);
    EXPECT_FALSE(mentions(pealGetLastError(comm), "because of itself")) << pealGetLastError(comm);
    EXPECT_EQ(pealCommDestroy(comm), pealSuccess);
    return 0;
  });
  while (joined->load() < 3) {
    std::this_thread::yield();
  }
  processes.kill(2);
  const std::vector<ChildResult> results = processes.wait(kHangs);
  EXPECT_EQ(results[0].exitCode, 0) << results[0].message;
  EXPECT_EQ(results[1].exitCode, 0) << results[1].message;
}

}  // namespace
}  // namespace peal::test
