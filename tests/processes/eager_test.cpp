// Calls whose root, or whose senders, need not wait: they return before anybody has taken what they sent, up
// to what links have room for, and everything arrives in order whatever follows.
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#include <array>
#include <cstddef>
#include <cstring>

#include "lib/comm/claim.h"
#include "tests/processes/ranks.h"

namespace peal::test {
namespace {

constexpr int kSize = 3;
constexpr std::array<size_t, 6> kCounts{1, 2, 0, 9, 250, 1000};  // floats: in a line, in the ring of bytes

float valueOf(int call, int rank, size_t i) {
  return static_cast<float>(1 + (call * 7 + rank * 3 + static_cast<int>(i)) % 11);
}

void expectSums(const std::vector<float>& data, size_t count, int call) {
  for (size_t i = 0; i < count; ++i) {
    float sum = 0;
    for (int rank = 0; rank < kSize; ++rank) {
      sum += valueOf(call, rank, i);
    }
    ASSERT_EQ(data[i], sum) << "call " << call << ", element " << i;
  }
}

// Roots and kinds change from call to call, so that ranks run ahead of each other and meet again.
TEST(Eager, RootsChangeAndKindsMix) {
  runAsProcesses(kSize, [](pealComm_t comm, int rank) {
    std::vector<float> in(1000), out(1000);
    for (int call = 0; call < 2000; ++call) {
      const int root = call / 90 % kSize, kind = call % 97 == 0 ? 2 : call / 40 % 2;
      const size_t count = kCounts[static_cast<size_t>(call) % kCounts.size()];
      for (size_t i = 0; i < count; ++i) {
        in[i] = valueOf(call, rank, i);
      }
      if (kind == 0) {
        PEAL_ASSERT_OK(pealBroadcast(in.data(), out.data(), count, pealFloat32, root, comm, nullptr));
        for (size_t i = 0; i < count; ++i) {
          ASSERT_EQ(out[i], valueOf(call, root, i)) << "call " << call << ", element " << i;
        }
      } else if (kind == 1) {
        PEAL_ASSERT_OK(pealReduce(in.data(), out.data(), count, pealFloat32, pealSum, root, comm, nullptr));
        if (rank == root) {
          expectSums(out, count, call);
        }
      } else {
        PEAL_ASSERT_OK(pealAllReduce(in.data(), out.data(), count, pealFloat32, pealSum, comm, nullptr));
        expectSums(out, count, call);
      }
    }
  });
}

// The root makes more calls than slots while no peer has entered the first.
TEST(Eager, ARootReturnsBeforeAnybodyHasTakenItsMessages) {
  constexpr int kCalls = 30;
  if (pretendedNodes() > 1) {
    GTEST_SKIP() << "between nodes a call ends when its message has gone";
  }
  SharedValue<std::atomic<int>> rootIsThrough;
  runAsProcesses(kSize, [&](pealComm_t comm, int rank) {
    float value = 0;
    if (rank != 0) {
      while (rootIsThrough->load(std::memory_order_acquire) == 0) {
        std::this_thread::yield();
      }
    }
    for (int call = 0; call < kCalls; ++call) {
      value = rank == 0 ? static_cast<float>(call) : -1;
      PEAL_ASSERT_OK(pealBcast(&value, 1, pealFloat32, 0, comm, nullptr));
      ASSERT_EQ(value, static_cast<float>(call));
    }
    if (rank == 0) {
      rootIsThrough->store(1, std::memory_order_release);
    }
  });
}

// A rank that leaves with messages of others not taken: whoever goes on gets an error in time, and nothing
// hangs.
TEST(Eager, AbortWhileMessagesAreOnTheirWay) {
  pealConfig_t config = PEAL_CONFIG_INITIALIZER;
  config.timeoutMs = kFarMs;
  SharedValue<Meeting> meeting;
  const auto start = std::chrono::steady_clock::now();
  expectAllSucceeded(runProcesses(kSize, kHangs, [&](const Child& child) {
    pealComm_t comm = nullptr;
    pealConfig_t mine = config;
    EXPECT_EQ(meeting->join(&comm, child.index(), kSize, &mine), pealSuccess);
    std::array<float, 100> data{};
    pealResult_t result = pealSuccess;
    for (int call = 0; result == pealSuccess && (child.index() != 2 || call < 20); ++call) {
      result = pealBcast(data.data(), data.size(), pealFloat32, 0, comm, nullptr);
    }
    if (child.index() != 2) {
      EXPECT_EQ(result, pealRemoteError);
      const std::string text = pealGetLastError(comm);
      EXPECT_NE(text.find("rank 2"), std::string::npos) << text;
    }
    EXPECT_EQ(pealCommAbort(comm), pealSuccess);
    return 0;
  }));
  EXPECT_LT(std::chrono::steady_clock::now() - start, kAtOnce);
}

// As a container's filter of system calls does.
void forbidFencingOthers() {
  std::array<sock_filter, 4> program{
      sock_filter BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      sock_filter BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_membarrier, 0, 1),
      sock_filter BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
      sock_filter BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
  const sock_fprog filter{static_cast<unsigned short>(program.size()), program.data()};
  EXPECT_EQ(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
  EXPECT_EQ(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter), 0);
}

// One rank of two, both, or one only after it has made its communicator: whoever sleeps is woken.
TEST(Eager, RanksThatMayNotFenceOthers) {
  constexpr int kCalls = 100;
  for (const int forbidden : {0b01, 0b11, 0b100}) {
    SharedValue<Meeting> meeting;
    expectAllSucceeded(runProcesses(2, kHangs, [&](const Child& child) {
      const int rank = child.index();
      if ((forbidden >> rank & 1) != 0) {
        forbidFencingOthers();
      }
      pealComm_t comm = nullptr;
      pealConfig_t config = PEAL_CONFIG_INITIALIZER;
      PEAL_EXPECT_OK(meeting->join(&comm, rank, 2, &config));
      if (forbidden == 0b100 && rank == 0) {
        forbidFencingOthers();
      }
      for (int call = 0; call < kCalls; ++call) {
        if (call % 2 == rank) {
          std::this_thread::sleep_for(std::chrono::milliseconds(1));  // the other one sleeps by then
        }
        float value = 1;
        PEAL_EXPECT_OK(pealAllReduce(&value, &value, 1, pealFloat32, pealSum, comm, nullptr));
        EXPECT_EQ(value, 2.0F);
        PEAL_EXPECT_OK(pealBcast(&value, 1, pealFloat32, call % 2, comm, nullptr));
        pealCommStats_t stats{};
        PEAL_EXPECT_OK(pealCommGetStats(comm, &stats));
        EXPECT_EQ(stats.calls[pealStatAllReduce], static_cast<uint64_t>(call) + 1);
      }
      PEAL_EXPECT_OK(pealCommDestroy(comm));
      return 0;
    }));
  }
}

// Other threads look at health and counters between and during calls.
TEST(Eager, InspectorsDoNotDisturbCalls) {
  runAsProcesses(2, [](pealComm_t comm, int /*rank*/) {
    constexpr int kCalls = 3000;
    std::atomic<bool> over{false};
    std::atomic<int> looks{0};
    const auto inspect = [&](bool stats) {
      while (!over.load(std::memory_order_acquire)) {
        pealResult_t result = pealInternalError;
        pealCommStats_t counters{};
        PEAL_EXPECT_OK(stats ? pealCommGetStats(comm, &counters) : pealCommGetAsyncError(comm, &result));
        EXPECT_TRUE(stats || result == pealSuccess);
        looks.fetch_add(1, std::memory_order_relaxed);
      }
    };
    std::thread health(inspect, false), counters(inspect, true);
    for (int call = 0; call < kCalls; ++call) {
      float value = 1;
      PEAL_EXPECT_OK(pealAllReduce(&value, &value, 1, pealFloat32, pealSum, comm, nullptr));
      EXPECT_EQ(value, 2.0F);
    }
    while (looks.load(std::memory_order_relaxed) < 10) {
      std::this_thread::yield();
    }
    over.store(true, std::memory_order_release);
    health.join();
    counters.join();
  });
}

// ---- who uses the endpoint: lib/comm/claim.h ----

// A caller that inspects inside of its own operation waits for itself.
TEST(Claim, AnInspectionEndsAtItsDeadline) {
  Claim claim;
  claim.beginOperation();
  EXPECT_FALSE(claim.inspect(Deadline::afterMs(30)));
  claim.endOperation();
  EXPECT_TRUE(claim.inspect(Deadline::afterMs(30)));
  EXPECT_FALSE(claim.inspect(Deadline::afterMs(30))) << "somebody else inspects";
  claim.endInspection();
  claim.beginOperation();
  claim.endOperation();
}

// The thread that held it at the fork is not there.
TEST(Claim, NobodyIsWaitedForInAForkedChild) {
  for (const bool byOperation : {true, false}) {
    Claim claim;
    if (byOperation) {
      claim.beginOperation();
    } else {
      EXPECT_TRUE(claim.tryInspect());
    }
    expectAllSucceeded(runProcesses(1, kAtOnce, [&](const Child&) {
      claim.beginOperation();
      claim.endOperation();
      EXPECT_TRUE(claim.inspect(Deadline::afterMs(30)));
      claim.endInspection();
      return 0;
    }));
  }
}

}  // namespace
}  // namespace peal::test
