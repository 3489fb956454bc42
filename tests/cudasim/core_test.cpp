// The simulator's core: threads, barriers, warps, shared memory, stacks, traps, fp16, options.
#include <cmath>
#include <cstring>
#include <numeric>

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
  const auto overflow = [] {
    if (threadIndex() == 5) {
      auto* below = static_cast<volatile char*>(__builtin_frame_address(0));
      while (isOnStack(const_cast<const char*>(below))) {
        --below;
      }
      *below = 1;
    }
  };
  EXPECT_TRUE(trapped(runAlone(1, 32, overflow), TrapKind::Stack,
                      {"more than its 16384 bytes of stack", "thread 5"}));
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
