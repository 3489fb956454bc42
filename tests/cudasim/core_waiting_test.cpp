// The simulator's core: schedules, threads that wait, deadlocks, time, residency.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <thread>

#include "tests/cudasim/core/access.h"
#include "tests/cudasim/core/threads.h"
#include "tests/cudasim/core_fixture.h"

namespace peal::cudasim {
namespace {

using namespace peal::cuda;  // what kernels call

// ---- schedules ----

struct Visits {
  uint64_t trace;
  std::vector<uint32_t> order;
};
// Four blocks note the order in which they run.
Visits visits() {
  Visits seen;
  const DeviceBuffer memory(4096);
  seen.trace = runAlone(4, 32, [&] {
                 for (int i = 0; i < 200; ++i) {
                   storeGlobal(memory.device<uint32_t>() + threadIndex(), 1u);
                   pause(1);
                   seen.order.push_back(blockIndex());
                 }
               }).trace;
  return seen;
}

TEST_F(CoreTest, TheSameSeedGivesTheSameSchedule) {
  for (int64_t starve : {0, 1}) {
    options().random = 1;
    options().starve = starve;
    options().seed = 5;
    const Visits first = visits(), again = visits();
    EXPECT_EQ(first.trace, again.trace);
    EXPECT_EQ(first.order, again.order);
    options().seed = 6;
    EXPECT_NE(first.trace, visits().trace);
  }
}

TEST_F(CoreTest, StarvationKeepsOneBlockBack) {
  options().starve = 1;
  // When the first block is through, a starved one has hardly begun.
  bool keptBack = false;
  for (options().seed = 1; options().seed < 8; ++options().seed) {
    uint32_t done[4] = {};
    for (uint32_t block : visits().order) {
      if (++done[block] == 32 * 200) {
        break;
      }
    }
    keptBack = keptBack || *std::min_element(done, done + 4) < 32 * 200 / 4;
  }
  EXPECT_TRUE(keptBack);
}

// ---- waiting ----

void waitFor(const uint64_t* flag, uint64_t value) {
  while (loadAcquire(flag) < value) {
  }
}

TEST_F(CoreTest, BlocksAndGridsWaitForEachOther) {
  const DeviceBuffer flags(2 * sizeof(uint64_t));
  for (int64_t random : {0, 1}) {
    options().random = options().starve = random;
    flags.fill(0);
    const auto pingPong = [&](uint64_t self) {
      for (uint64_t i = 1; i <= 100; ++i) {
        if (threadIndex() == 0) {
          storeRelease(flags.device<uint64_t>() + self, i);
          waitFor(flags.device<uint64_t>() + (1 - self), i);
        }
        syncBlock();
      }
    };
    ASSERT_TRUE(completed(runGrids({gridOf(
                                        1, 64, [&] { pingPong(0); }, 0),
                                    gridOf(
                                        1, 64, [&] { pingPong(1); }, 1)})));
    EXPECT_EQ(flags.host<uint64_t>()[0], 100u);
  }
}

TEST_F(CoreTest, DeadlockSaysWhoWaitsForWhat) {
  const DeviceBuffer flags(256);
  flags.fill(0);
  flags.host<uint64_t>()[2] = 3;
  const RunResult result = runGrids({gridOf(
      2, 64,
      [&] {
        if (blockIndex() == 1 && threadIndex() == 8) {
          waitFor(flags.device<uint64_t>() + 2, 4);
        }
        if (blockIndex() == 1) {
          syncBlock();
        }
      },
      3)});
  EXPECT_TRUE(trapped(result, TrapKind::Deadlock,
                      {"every thread waits for what nobody will write",
                       "device 3, block 1 of kernel: 1 of 64", "63 threads wait at barrier 0 (",
                       "core_waiting_test.cpp", "thread 8 polls 0x3 at", "byte 16 of the 256 bytes at"}));
}

TEST_F(CoreTest, DeadlockOfLoopsOverManyWords) {
  const DeviceBuffer flags(64 * sizeof(uint64_t));
  flags.fill(0);
  options().deadlockPolls = 100;
  // One thread looks at 40 words in turn, the others at flags of LL and, by a ballot, of LL128.
  const RunResult result = runAlone(3, 32, [&] {
    if (blockIndex() == 0 && threadIndex() == 0) {
      for (uint64_t i = 0; loadRelaxed(flags.device<uint64_t>() + i % 40) == 0; ++i) {
      }
    }
    if (blockIndex() == 1) {
      while (loadFlagged(flags.device(threadIndex() * 16)).flag0 == 0) {
      }
    }
    if (blockIndex() == 2) {
      while (ballot(loadLinePart(flags.device(threadIndex() * 16)).b != 0) == 0) {
      }
    }
  });
  EXPECT_TRUE(trapped(result, TrapKind::Deadlock, {"block 0", "block 1", "block 2"}));
}

TEST_F(CoreTest, DeadlockOfFailingCompareExchangesAndOfWeakLoads) {
  const DeviceBuffer flag(sizeof(uint64_t));
  flag.fill(0);
  EXPECT_TRUE(trapped(runAlone(2, 1,
                               [&] {
                                 while (compareExchange(flag.device<uint64_t>(), 1, 2) != 1) {
                                 }
                               }),
                      TrapKind::Deadlock, {"polls 0 at"}));
  EXPECT_TRUE(trapped(runAlone(2, 1,
                               [&] {
                                 while (loadGlobal(flag.device<uint64_t>()) != 1) {
                                 }
                               }),
                      TrapKind::Deadlock, {"block 0", "block 1"}));
}

TEST_F(CoreTest, DeadlockOfBarriersAlone) {
  EXPECT_TRUE(trapped(runAlone(1, 96,
                               [] {
                                 if (threadIndex() < 64) {
                                   syncThreads(1, 96);
                                 }
                               }),
                      TrapKind::Deadlock,
                      {"wait for others of their block that will not come", "64 threads wait at barrier 1",
                       "of 96, 32 have exited"}));
}

TEST_F(CoreTest, LongWorkIsNoDeadlock) {
  const DeviceBuffer memory(1 << 20);
  memory.fill(0);
  options().deadlockPolls = 50;
  EXPECT_TRUE(completed(runAlone(2, 1, [&] {
    uint64_t* flag = memory.device<uint64_t>();
    if (blockIndex() == 0) {
      waitFor(flag, 1);
      return;
    }
    for (int i = 0; i < 5000; ++i) {
      syncBlock();
      ballot(true);
    }
    uint64_t sum = 0;
    for (uint64_t i = 1; i < 4000; ++i) {
      sum += loadGlobal(flag + i);
    }
    storeRelease(flag, sum + 1);
  })));
}

TEST_F(CoreTest, TimeJumpsWhenAllWaitForDeadlines) {
  const DeviceBuffer memory(2 * sizeof(uint64_t));
  memory.fill(0);
  const auto began = std::chrono::steady_clock::now();
  ASSERT_TRUE(completed(runAlone(2, 1, [&] {
    const uint64_t beganNs = clockNs();
    uint32_t spins = 0;
    while (loadAcquire(memory.device<uint64_t>()) == 0) {
      if (++spins % 300 == 0 && clockNs() - beganNs > 600'000'000'000) {
        storeGlobal(memory.device<uint64_t>() + 1, uint64_t{1});
        return;
      }
    }
  })));
  EXPECT_EQ(memory.host<uint64_t>()[1], 1u);
  EXPECT_LT(std::chrono::steady_clock::now() - began, std::chrono::seconds(60));
}

TEST_F(CoreTest, ClocksAdvanceByRealTime) {
  uint64_t passedNs = 0;
  const uint64_t beforeNs = std::chrono::steady_clock::now().time_since_epoch().count();
  ASSERT_TRUE(completed(runAlone(1, 1, [&] {
    const uint64_t beganNs = clockNs();
    while (clockNs() < beganNs + 2'000'000) {
      pause(1000);
    }
    passedNs = clockNs() - beganNs;
  })));
  const uint64_t afterNs = std::chrono::steady_clock::now().time_since_epoch().count();
  EXPECT_GE(passedNs, 2'000'000u);
  EXPECT_LE(passedNs, afterNs - beforeNs);
}

// ---- a world that is shared ----

TEST_F(CoreTest, AnotherThreadMayEndTheWait) {
  const DeviceBuffer flags(2 * sizeof(uint64_t));
  flags.fill(0);
  std::thread other([&] {
    auto* words = flags.host<uint64_t>();
    while (std::atomic_ref(words[0]).load() == 0) {
      std::this_thread::yield();
    }
    std::atomic_ref(words[1]).store(1);
  });
  const RunResult result = runGrids({gridOf(1, 32,
                                            [&] {
                                              if (threadIndex() == 0) {
                                                storeRelease(flags.device<uint64_t>(), 1);
                                                waitFor(flags.device<uint64_t>() + 1, 1);
                                              }
                                              syncBlock();
                                            })},
                                    World::Shared);
  other.join();
  EXPECT_TRUE(completed(result));
}

TEST_F(CoreTest, NoProgressIsReportedLikeADeadlock) {
  const DeviceBuffer flag(sizeof(uint64_t));
  flag.fill(0);
  options().timeoutMs = 30;
  EXPECT_TRUE(trapped(runGrids({gridOf(1, 1, [&] { waitFor(flag.device<uint64_t>(), 1); })}, World::Shared),
                      TrapKind::NoProgress, {"no progress for 30 ms", "thread 0 polls 0 at"}));
}

TEST_F(CoreTest, RunsAreCancelled) {
  const DeviceBuffer flag(sizeof(uint64_t));
  flag.fill(0);
  std::atomic<bool> cancelled{false};
  Grid grid = gridOf(1, 1, [&] {
    if (loadRelaxed(flag.device<uint64_t>()) == 0) {
      cancelled = true;
    }
    waitFor(flag.device<uint64_t>(), 1);
  });
  Grid* const grids[] = {&grid};
  EXPECT_TRUE(
      trapped(run(grids, World::Shared, OnTrap::Return, &cancelled), TrapKind::Cancelled, {"cancelled"}));
}

// ---- residency ----

TEST_F(CoreTest, BlocksBeyondTheCapWait) {
  options().residentBlocks = 3;
  const DeviceBuffer count(sizeof(uint64_t));
  count.fill(0);
  uint64_t most = 0;
  ASSERT_TRUE(completed(runAlone(20, 32, [&] {
    if (threadIndex() == 0) {
      most = std::max(most, fetchAdd(count.device<uint64_t>(), 1) + 1);
    }
    for (int i = 0; i < 10; ++i) {
      syncBlock();
      pause(1);
    }
    if (threadIndex() == 0) {
      fetchAdd(count.device<uint64_t>(), ~uint64_t{0});
    }
  })));
  EXPECT_EQ(most, 3u);
  EXPECT_EQ(*count.host<uint64_t>(), 0u);
}

// Every block waits for all: 4 on one device of 3 cannot, 3 on each of two can.
TEST_F(CoreTest, ADeadlockByTheCapSaysSo) {
  options().residentBlocks = 3;
  const DeviceBuffer count(sizeof(uint64_t));
  const auto meet = [&](uint64_t all) {
    fetchAdd(count.device<uint64_t>(), 1);
    waitFor(count.device<uint64_t>(), all);
  };
  count.fill(0);
  EXPECT_TRUE(completed(runGrids({gridOf(
                                      3, 1, [&] { meet(6); }, 0),
                                  gridOf(
                                      3, 1, [&] { meet(6); }, 1)})));
  count.fill(0);
  EXPECT_TRUE(
      trapped(runGrids({gridOf(
                            2, 1, [&] { meet(4); }, 1),
                        gridOf(
                            2, 1, [&] { meet(4); }, 1)}),
              TrapKind::Deadlock,
              {"device 1: 1 blocks have not started, block 1 first, because it runs at most 3 at once"}));
}

TEST_F(CoreTest, RunsOfOneDeviceShareItsCap) {
  options().residentBlocks = 1;
  const DeviceBuffer flags(2 * sizeof(uint64_t));
  flags.fill(0);
  std::atomic<bool> holds{false};
  std::thread other([&] {
    EXPECT_TRUE(completed(runGrids({gridOf(1, 1,
                                           [&] {
                                             storeRelease(flags.device<uint64_t>(), 1);
                                             holds = true;
                                             waitFor(flags.device<uint64_t>() + 1, 1);
                                             storeRelease(flags.device<uint64_t>(), 2);
                                           })},
                                   World::Shared)));
  });
  while (!holds) {
    std::this_thread::yield();
  }
  std::thread release([&] { std::atomic_ref(flags.host<uint64_t>()[1]).store(1); });
  uint64_t seen = 0;
  EXPECT_TRUE(completed(
      runGrids({gridOf(1, 1, [&] { seen = loadAcquire(flags.device<uint64_t>()); })}, World::Shared)));
  release.join();
  other.join();
  EXPECT_EQ(seen, 2u);  // it started after the other had finished
}

}  // namespace
}  // namespace peal::cudasim
