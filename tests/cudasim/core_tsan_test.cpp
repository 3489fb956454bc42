// What clang's thread sanitizer sees of kernels on the simulator (cudasim_tsan_test): nothing in correct
// ones, a race where order is missing. Each kernel runs in one process, on one OS thread.
#include "tests/cudasim/core/access.h"
#include "tests/cudasim/core/threads.h"
#include "tests/cudasim/core_fixture.h"

namespace peal::cudasim {
namespace {

using namespace peal::cuda;  // what kernels call

constexpr int kRaceStatus = 99;  // of TSAN_OPTIONS

using Words = uint32_t[256];

struct Defects {
  Order post = Order::Release, look = Order::Acquire;
  bool barrier = true, warpBarrier = true;
};

// A block passes 20 messages to another through one slot; both read them from shared memory as well.
RunResult passMessages(const Defects& defects) {
  const DeviceBuffer slot(128 * 16), counts(256);
  counts.fill(0);
  uint64_t* const tail = counts.device<uint64_t>();
  uint64_t* const head = counts.device<uint64_t>(128);
  const auto produce = [&] {
    for (uint64_t i = 1; i <= 20; ++i) {
      if (threadIndex() == 0) {
        while (loadAcquire(head) + 1 < i) {
        }
      }
      syncBlock();
      store16(slot.device(threadIndex() * 16), {{static_cast<uint32_t>(i), 0, 0, threadIndex()}});
      if (defects.barrier) {
        syncBlock();
      }
      if (threadIndex() == 32) {
        strongStore<uint64_t>(tail, i, defects.post);
      }
    }
  };
  const auto consume = [&] {
    PEAL_SHARED(Words, seen);
    for (uint64_t i = 1; i <= 20; ++i) {
      if (threadIndex() == 0) {
        while (strongLoad<uint64_t>(tail, defects.look) < i) {
        }
      }
      syncBlock();
      seen[threadIndex()] = load16(slot.device(threadIndex() * 16)).word[0];
      if (defects.warpBarrier) {
        syncWarp();
      } else {
        ballot(true);  // the lanes meet, but it orders no memory
      }
      if (seen[threadIndex() ^ 1] != i) {
        halt();
      }
      syncBlock();
      if (threadIndex() == 0) {
        storeRelease(head, i);
      }
    }
  };
  return runGrids({gridOf(1, 128, produce), gridOf(1, 128, consume, 1)});
}

TEST_F(CoreTest, OrderedKernelsHaveNoRace) {
  for (int64_t random : {0, 1}) {
    options().random = options().starve = random;
    EXPECT_TRUE(completed(passMessages({})));
  }
}

TEST_F(CoreTest, FencesOrderTheStoreThatFollows) {
  const DeviceBuffer data(64), flag(64);
  flag.fill(0);
  EXPECT_TRUE(completed(runAlone(2, 1, [&] {
    if (blockIndex() == 0) {
      storeGlobal(data.device<uint64_t>(), uint64_t{5});
      peal::cuda::fence();
      storeRelaxed(flag.device<uint64_t>(), 1);
      return;
    }
    while (loadAcquire(flag.device<uint64_t>()) == 0) {
    }
    if (loadGlobal(data.device<uint64_t>()) != 5) {
      halt();
    }
  })));
}

// As many threads as eight ranks of eight blocks have.
TEST_F(CoreTest, ThousandsOfThreads) {
  const DeviceBuffer counts(64);
  for (int round = 0; round < 3; ++round) {
    counts.fill(0);
    EXPECT_TRUE(completed(runAlone(64, 96, [&] {
      syncBlock();
      if (threadIndex() == 0) {
        fetchAdd(counts.device<uint64_t>(), 1);
        while (loadAcquire(counts.device<uint64_t>()) != 64) {
        }
      }
      syncBlock();
    })));
  }
}

void expectRace(const Defects& defects) {
  EXPECT_EXIT(
      {
        passMessages(defects);
        std::_Exit(0);
      },
      ::testing::ExitedWithCode(kRaceStatus), "data race");
}

TEST_F(CoreTest, RelaxedPostsAreRaces) { expectRace({.post = Order::Relaxed}); }
TEST_F(CoreTest, RelaxedLooksAreRaces) { expectRace({.look = Order::Relaxed}); }
TEST_F(CoreTest, MissingBarriersAreRaces) { expectRace({.barrier = false}); }
TEST_F(CoreTest, BallotsOrderNoMemory) { expectRace({.warpBarrier = false}); }

}  // namespace
}  // namespace peal::cudasim
