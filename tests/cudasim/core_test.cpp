// The simulator's core: threads, barriers, warps, schedules, deadlocks, residency, time, fp16.
#include <bit>
#include <cmath>
#include <cstring>
#include <numeric>
#include <thread>

#include "tests/cudasim/core/access.h"
#include "tests/cudasim/core/threads.h"
#include "tests/cudasim/core_fixture.h"

namespace peal::cudasim {
namespace {

using namespace peal::cuda;  // what kernels call

using Words = float[32];

// ---- who, barriers, warps ----

TEST_F(CoreTest, EveryThreadOfEveryBlockRunsOnce) {
  for (unsigned threads : {1u, 31u, 32u, 33u, 256u, 1024u}) {
    const DeviceBuffer out(3 * threads * sizeof(uint32_t));
    out.fill(0);
    ASSERT_TRUE(completed(runAlone(3, threads, [&] {
      uint32_t* at = out.device<uint32_t>() + blockIndex() * blockThreads() + threadIndex();
      storeGlobal(at, loadGlobal(at) + 1 + laneIndex() + gridBlocks() * 100);
    })));
    for (unsigned i = 0; i < 3 * threads; ++i) {
      ASSERT_EQ(out.host<uint32_t>()[i], 301 + i % threads % 32) << "thread " << i << " of " << threads;
    }
  }
}

TEST_F(CoreTest, BlockReductionOverShufflesAndSharedMemory) {
  for (int64_t random : {0, 1}) {
    options().random = random;
    for (unsigned threads : {32u, 64u, 256u, 1024u}) {
      const DeviceBuffer out(4 * sizeof(float));
      ASSERT_TRUE(completed(runAlone(4, threads, [&] {
        PEAL_SHARED(Words, part);
        auto value = static_cast<float>(threadIndex() + 1);
        for (int mask = 16; mask != 0; mask /= 2) {
          value += shuffleXor(value, mask);
        }
        if (laneIndex() == 0) {
          part[threadIndex() / 32] = value;
        }
        syncBlock();
        if (threadIndex() < 32) {
          float sum = threadIndex() < blockThreads() / 32 ? part[threadIndex()] : 0.0f;
          for (int by = 16; by != 0; by /= 2) {
            sum += shuffleDown(sum, by);
          }
          if (threadIndex() == 0) {
            storeGlobal(out.device<float>() + blockIndex(), sum);
          }
        }
      })));
      for (int block = 0; block < 4; ++block) {
        EXPECT_EQ(out.host<float>()[block], static_cast<float>(threads * (threads + 1) / 2));
      }
    }
  }
}

TEST_F(CoreTest, ShufflesAndBallotsAsTheHardwareHasThem) {
  const DeviceBuffer out(32 * 4 * sizeof(uint64_t));
  ASSERT_TRUE(completed(runAlone(1, 32, [&] {
    uint64_t* mine = out.device<uint64_t>() + threadIndex() * 4;
    const uint64_t value = uint64_t{threadIndex()} << 33;
    storeGlobal(mine, shuffle(value, 37));
    storeGlobal(mine + 1, shuffleXor(value, 5));
    storeGlobal(mine + 2, shuffleDown(value, 8));
    storeGlobal(mine + 3, uint64_t{ballot(threadIndex() % 3 == 0)});
  })));
  for (uint64_t lane = 0; lane < 32; ++lane) {
    const uint64_t* mine = out.host<uint64_t>() + lane * 4;
    EXPECT_EQ(mine[0], uint64_t{5} << 33);
    EXPECT_EQ(mine[1], (lane ^ 5) << 33);
    EXPECT_EQ(mine[2], (lane + 8 < 32 ? lane + 8 : lane) << 33);
    EXPECT_EQ(mine[3], 0x49249249u);
  }
}

TEST_F(CoreTest, SharedVariablesAreOfTheBlockAndNotInitialised) {
  const DeviceBuffer out(2 * 2 * sizeof(uint64_t));
  ASSERT_TRUE(completed(runAlone(2, 64, [&] {
    PEAL_SHARED(uint64_t, first);
    PEAL_SHARED(uint64_t, second);
    uint64_t* mine = out.device<uint64_t>() + blockIndex() * 2;
    if (threadIndex() == 0) {
      storeGlobal(mine, first);
      first = blockIndex();
      second = 7;
    }
    syncBlock();
    if (threadIndex() == 63) {
      storeGlobal(mine + 1, first * 10 + second);
    }
  })));
  for (uint64_t block = 0; block < 2; ++block) {
    EXPECT_EQ(out.host<uint64_t>()[block * 2], 0xa5a5a5a5a5a5a5a5u);
    EXPECT_EQ(out.host<uint64_t>()[block * 2 + 1], block * 10 + 7);
  }
}

TEST_F(CoreTest, BarriersReduceAndCount) {
  const DeviceBuffer out(128 * sizeof(uint32_t));
  ASSERT_TRUE(completed(runAlone(1, 128, [&] {
    const Site site{"test", 1};
    uint32_t seen = syncBlockOr(threadIndex() == 77) ? 1 : 0;
    seen += syncBlockOr(false) ? 2 : 0;
    seen += blockBarrier(0, 0, Reduction::And, threadIndex() != 5, site) * 4;
    seen += blockBarrier(0, 0, Reduction::Count, threadIndex() < 9, site) * 8;
    storeGlobal(out.device<uint32_t>() + threadIndex(), seen);
  })));
  for (int i = 0; i < 128; ++i) {
    ASSERT_EQ(out.host<uint32_t>()[i], 1u + 9 * 8);
  }
}

// Two halves of a block pass their own barriers a different number of times; then one hands over to the
// other.
TEST_F(CoreTest, NamedBarriersAndArrivals) {
  const DeviceBuffer out(sizeof(uint64_t));
  out.fill(0);
  ASSERT_TRUE(completed(runAlone(1, 128, [&] {
    PEAL_SHARED(uint64_t, handed);
    const bool producer = threadIndex() < 64;
    for (uint32_t i = 0; i < (producer ? 3u : 8u); ++i) {
      syncThreads(producer ? 1 : 2, 64);
    }
    if (producer) {
      if (threadIndex() == 17) {
        handed = 42;
      }
      arriveAtBarrier(3, 128, {"test", 2});
    } else {
      blockBarrier(3, 128, Reduction::None, false, {"test", 2});
      if (threadIndex() == 64) {
        storeGlobal(out.device<uint64_t>(), handed);
      }
    }
  })));
  EXPECT_EQ(*out.host<uint64_t>(), 42u);
}

TEST_F(CoreTest, ThreadsThatExitedAreNotWaitedFor) {
  EXPECT_TRUE(completed(runAlone(1, 128, [] {
    if (threadIndex() % 2 == 0) {
      syncBlock();
    }
  })));
}

TEST_F(CoreTest, ThreadsThatDisagreeAboutABarrier) {
  const auto twoPlaces = [] {
    if (threadIndex() < 32) {
      syncBlock();
    } else {
      syncBlock();
    }
  };
  EXPECT_TRUE(trapped(runAlone(1, 64, twoPlaces), TrapKind::Barrier,
                      {"different barriers: 32 wait at", "core_test.cpp", "block 0, thread 32"}));
  options().sites = 0;
  EXPECT_TRUE(completed(runAlone(1, 64, twoPlaces)));
  EXPECT_TRUE(trapped(runAlone(1, 64, [] { syncThreads(1, threadIndex() < 32 ? 64 : 32); }),
                      TrapKind::Barrier, {"disagree about barrier 1", "64 threads (0: all)"}));
  EXPECT_TRUE(trapped(runAlone(1, 64, [] { syncThreads(1, 33); }), TrapKind::Barrier,
                      {"for 33 threads: must be a multiple of 32"}));
  EXPECT_TRUE(trapped(runAlone(1, 64, [] { syncThreads(16, 64); }), TrapKind::Barrier, {"barriers 0 to 15"}));
}

TEST_F(CoreTest, LanesThatDisagree) {
  EXPECT_TRUE(trapped(runAlone(1, 32,
                               [] {
                                 if (threadIndex() < 16) {
                                   syncWarp();
                                 } else {
                                   ballot(true);
                                 }
                               }),
                      TrapKind::Warp,
                      {"different operations: 0000ffff are in syncWarp, lane 16 comes to a ballot"}));
  EXPECT_TRUE(trapped(runAlone(1, 32,
                               [] {
                                 if (threadIndex() != 3) {
                                   syncWarp();
                                 }
                               }),
                      TrapKind::Warp, {"lane 3 exits while the lanes 00000007 wait for it in syncWarp"}));
  EXPECT_TRUE(trapped(runAlone(1, 32,
                               [] {
                                 warpSync(0xfffe, {"test", 3});
                               }),
                      TrapKind::Warp, {"lane 0 calls syncWarp for the lanes 0000fffe"}));
  EXPECT_TRUE(trapped(runAlone(1, 32,
                               [] {
                                 if (threadIndex() < 16) {
                                   warpExchange(0xffff, 1, 20);
                                 }
                               }),
                      TrapKind::Warp, {"reads lane 20 in a shuffle of the lanes 0000ffff"}));
}

// ---- sizes, stacks, halt ----

TEST_F(CoreTest, ImpossibleLaunches) {
  EXPECT_TRUE(trapped(runAlone(1, 1025, [] {}), TrapKind::Launch, {"1 blocks of 1025 threads"}));
  EXPECT_TRUE(trapped(runAlone(0, 32, [] {}), TrapKind::Launch, {"0 blocks"}));
  Grid grid = gridOf(1, 32, [] {});
  grid.sharedBytes = 300000;
  EXPECT_TRUE(trapped(runGrids({grid}), TrapKind::Launch, {"300000 bytes of dynamic shared memory"}));
  EXPECT_TRUE(trapped(runGrids({gridOf(
                          1, 32, [] {}, 64)}),
                      TrapKind::Launch, {"device 64"}));
}

TEST_F(CoreTest, DynamicSharedMemoryIsOfTheBlock) {
  const DeviceBuffer out(2 * sizeof(uint64_t));
  Grid grid = gridOf(2, 64, [&] {
    auto* words = static_cast<uint64_t*>(dynamicShared());
    words[threadIndex()] = threadIndex() + blockIndex();
    syncBlock();
    if (threadIndex() == 0) {
      storeGlobal(out.device<uint64_t>() + blockIndex(), std::accumulate(words, words + 64, uint64_t{0}));
    }
  });
  grid.sharedBytes = 64 * sizeof(uint64_t);
  ASSERT_TRUE(completed(runGrids({grid})));
  EXPECT_EQ(out.host<uint64_t>()[0], 2016u);
  EXPECT_EQ(out.host<uint64_t>()[1], 2080u);
}

struct Large {
  std::byte bytes[30 << 10];
};

TEST_F(CoreTest, TooManySharedVariables) {
  EXPECT_TRUE(trapped(runAlone(1, 32,
                               [] {
                                 PEAL_SHARED(Large, first);
                                 PEAL_SHARED(Large, second);
                                 first.bytes[0] = second.bytes[0];
                               }),
                      TrapKind::SharedMemory, {"a block has at most 49152"}));
}

TEST_F(CoreTest, AStackThatOverflowed) {
  options().stackBytes = 16 << 10;
  EXPECT_TRUE(trapped(runAlone(1, 32,
                               [] {
                                 if (threadIndex() == 5) {
                                   char here = 0;
                                   std::byte* deep = reinterpret_cast<std::byte*>(&here) - (16 << 10);
                                   asm volatile("" : "+r"(deep));  // no compiler knows where that is
                                   *reinterpret_cast<volatile uint8_t*>(deep) = 1;
                                 }
                               }),
                      TrapKind::Stack, {"more than its 16384 bytes of stack", "thread 5"}));
}

TEST_F(CoreTest, HaltEndsTheRun) {
  const RunResult result = runAlone(2, 64, [] {
    if (blockIndex() == 1 && threadIndex() == 40) {
      halt();
    }
    syncBlock();
  });
  EXPECT_TRUE(trapped(result, TrapKind::Halt, {"halt()", "device 0, block 1, thread 40 of kernel"}));
  EXPECT_TRUE(completed(runAlone(2, 64, [] { syncBlock(); })));  // nothing is left of it
}

TEST_F(CoreTest, ATrapEndsTheProcess) {
  EXPECT_EXIT(
      {
        Grid grid = gridOf(1, 1, [] { halt(); });
        Grid* const grids[] = {&grid};
        run(grids);
      },
      ::testing::ExitedWithCode(kTrapStatus), "halt\\(\\)");
}

TEST_F(CoreTest, ObserversSeeTraps) {
  std::string seen;
  setTrapObserver([&seen](const RunResult& result) { seen = result.text; });
  const RunResult result = runAlone(1, 1, [] { halt(); });
  setTrapObserver(nullptr);
  EXPECT_FALSE(seen.empty());
  EXPECT_EQ(seen, result.text);
}

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
                       "core_test.cpp", "thread 8 polls 0x3 at", "byte 16 of the 256 bytes at"}));
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

// ---- fp16 ----

TEST(HalfTest, WidensAndNarrowsEveryHalf) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const auto half = static_cast<uint16_t>(bits);
    const float value = widenHalf(half);
    const bool isNan = (bits & 0x7fffu) > 0x7c00u;
    ASSERT_EQ(std::isnan(value), isNan) << bits;
    ASSERT_EQ(narrowHalf(value), isNan ? 0x7e00u : bits) << bits;
  }
  EXPECT_EQ(widenHalf(0x3c00), 1.0f);
  EXPECT_EQ(widenHalf(0x0001), 0x1p-24f);
  EXPECT_EQ(widenHalf(0xfbff), -65504.0f);
}

TEST(HalfTest, NarrowsToNearestEven) {
  for (uint16_t half = 0; half < 0x7bff; ++half) {
    const auto next = static_cast<uint16_t>(half + 1);
    const float low = widenHalf(half), high = widenHalf(next), middle = (low + high) / 2;
    ASSERT_EQ(narrowHalf(middle), half % 2 == 0 ? half : next) << half;
    ASSERT_EQ(narrowHalf(std::nextafterf(middle, 0.0f)), half) << half;
    ASSERT_EQ(narrowHalf(-std::nextafterf(middle, 1e9f)), next | 0x8000u) << half;
  }
  EXPECT_EQ(narrowHalf(65519.996f), 0x7bffu);
  EXPECT_EQ(narrowHalf(65520.0f), 0x7c00u);
  EXPECT_EQ(narrowHalf(-INFINITY), 0xfc00u);
  EXPECT_EQ(narrowHalf(0x1p-26f), 0u);
}

// ---- options ----

TEST(OptionTable, DefaultsAreInRangeAndNamed) {
  for (const OptionInfo& info : optionTable()) {
    EXPECT_LE(info.least, info.defaultValue) << info.name;
    EXPECT_LE(info.defaultValue, info.most) << info.name;
    EXPECT_EQ(std::strncmp(info.name, "CUDASIM_", 8), 0) << info.name;
    EXPECT_NE(*info.help, '\0') << info.name;
  }
}

}  // namespace
}  // namespace peal::cudasim
