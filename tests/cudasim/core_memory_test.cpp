// The simulator's core: every check of an access, LL and LL128, and the weak memory model.
#include <cstring>
#include <set>

#include "tests/cudasim/core/access.h"
#include "tests/cudasim/core_fixture.h"

namespace peal::cudasim {
namespace {

using namespace peal::cuda;  // what kernels call

RunResult runOne(std::function<void()> body) { return runAlone(1, 1, std::move(body)); }

// ---- checks ----

TEST_F(CoreTest, MisalignedAccesses) {
  const DeviceBuffer memory(4096);
  std::byte* at = memory.device();
  EXPECT_TRUE(trapped(
      runOne([&] { load16(at + 20); }), TrapKind::Misaligned,
      {"misaligned 16-byte load", "byte 20 of the 4096 bytes at 0x4", "of device 0", "block 0, thread 0"}));
  EXPECT_TRUE(
      trapped(runOne([&] { store16(at + 8, Vec16{}); }), TrapKind::Misaligned, {"misaligned 16-byte store"}));
  EXPECT_TRUE(
      trapped(runOne([&] { weakLoad<uint32_t>(at + 2); }), TrapKind::Misaligned, {"misaligned 4-byte load"}));
  EXPECT_TRUE(trapped(runOne([&] { strongLoad<uint64_t>(at + 4, Order::Acquire); }), TrapKind::Misaligned,
                      {"misaligned 8-byte strong access"}));
  EXPECT_TRUE(trapped(runOne([&] { loadFlagged(at + 8); }), TrapKind::Misaligned,
                      {"misaligned 16-byte strong access"}));
}

TEST_F(CoreTest, AccessesOutsideAllocations) {
  const DeviceBuffer memory(100);
  std::byte* at = memory.device();
  EXPECT_TRUE(completed(runOne([&] { storeGlobal(at + 99, std::byte{1}); })));
  EXPECT_TRUE(trapped(runOne([&] { storeGlobal(at + 100, std::byte{1}); }), TrapKind::OutOfBounds,
                      {"1-byte store outside every allocation", "behind the 100 bytes at"}));
  EXPECT_TRUE(trapped(runOne([&] { load16(at + 96); }), TrapKind::OutOfBounds,
                      {"16-byte load across the end of an allocation", "byte 96 of the 100 bytes"}));
  EXPECT_TRUE(
      trapped(runOne([&] { loadGlobal(at - 1); }), TrapKind::OutOfBounds, {"outside every allocation"}));
  EXPECT_TRUE(
      trapped(runOne([&] { storeRelease(nullptr, 1); }), TrapKind::HostMemory, {"or no memory at all: 0"}));
}

TEST_F(CoreTest, HostMemoryMustBePinned) {
  uint64_t pageable = 0;
  EXPECT_TRUE(trapped(runOne([&] { storeRelease(&pageable, 1); }), TrapKind::HostMemory,
                      {"8-byte strong access touches pageable host memory"}));
  const DeviceBuffer pinned(64, 0, MemoryKind::PinnedHost);
  EXPECT_EQ(pinned.device(), pinned.host());
  EXPECT_TRUE(completed(runOne([&] { storeRelease(pinned.device<uint64_t>(), 7); })));
  EXPECT_EQ(*pinned.host<uint64_t>(), 7u);
}

TEST_F(CoreTest, TheHostCannotTouchDeviceMemory) {
  const DeviceBuffer memory(64);
  EXPECT_NE(memory.device(), memory.host());
  EXPECT_TRUE(isTagged(memory.device()));
  EXPECT_EQ(toDevice(memory.host()), memory.device());
  EXPECT_DEATH(*memory.device<volatile uint64_t>() = 1, "");
}

TEST_F(CoreTest, FreedAndClosedMemory) {
  const std::byte* freed = nullptr;
  {
    const DeviceBuffer memory(64);
    freed = memory.device();
    ASSERT_TRUE(completed(runOne([&] { loadGlobal(freed); })));
  }
  EXPECT_TRUE(trapped(runOne([&] { loadGlobal(freed); }), TrapKind::Freed,
                      {"1-byte load after free: 0x4", "byte 0 of the 64"}));

  std::byte host[64] = {};
  Allocation opened;
  opened.base = reinterpret_cast<uintptr_t>(toDevice(&host[0]));
  opened.bytes = sizeof host;
  opened.device = 3;
  opened.opened = true;
  registerAllocation(opened);
  const std::byte* at = toDevice(&host[0]);
  EXPECT_TRUE(completed(runOne([&] { loadGlobal(at); })));
  ASSERT_TRUE(endAllocation(opened.base, End::Closed));
  EXPECT_TRUE(trapped(
      runOne([&] { loadGlobal(at + 1); }), TrapKind::Closed,
      {"another process's memory after its IPC handle was closed", "byte 1 of the 64 bytes", "device 3"}));
  EXPECT_FALSE(endAllocation(opened.base, End::Closed));
  EXPECT_FALSE(findAllocation(at).has_value());
  // The same addresses, used anew.
  opened.opened = false;
  registerAllocation(opened);
  EXPECT_TRUE(completed(runOne([&] { loadGlobal(at); })));
  EXPECT_TRUE(endAllocation(opened.base, End::Unregistered));
}

TEST_F(CoreTest, PinnedMemoryThatIsNotAnyMore) {
  std::byte host[64] = {};
  Allocation pinned;
  pinned.base = reinterpret_cast<uintptr_t>(&host[0]);
  pinned.bytes = sizeof host;
  pinned.kind = MemoryKind::PinnedHost;
  registerAllocation(pinned);
  EXPECT_TRUE(completed(runOne([&] { loadGlobal(&host[0]); })));
  endAllocation(pinned.base, End::Unregistered);
  EXPECT_TRUE(trapped(runOne([&] { loadGlobal(&host[0]); }), TrapKind::HostMemory, {"not pinned any more"}));
}

TEST_F(CoreTest, MemoryOfADeviceWithoutPeerAccess) {
  const DeviceBuffer memory(64, 2);
  ASSERT_TRUE(setDevices(memory.base(), 1 << 2));
  const auto touch = [&] { loadGlobal(memory.device()); };
  EXPECT_TRUE(completed(runGrids({gridOf(1, 1, touch, 2)})));
  EXPECT_TRUE(trapped(runGrids({gridOf(1, 1, touch, 1)}), TrapKind::Device,
                      {"device 1 may not address", "of device 2"}));
  ASSERT_TRUE(setDevices(memory.base(), 3 << 1));
  EXPECT_TRUE(completed(runGrids({gridOf(1, 1, touch, 1)})));
}

TEST_F(CoreTest, NarrowScopesOnSharedMemory) {
  const DeviceBuffer memory(64), pinned(64, 0, MemoryKind::PinnedHost);
  const auto strong = [](const DeviceBuffer& buffer, Scope scope) {
    return runOne([&, scope] {
      strongStore<uint64_t>(buffer.device(), 1, Order::Release, scope);
      strongLoad<uint32_t>(buffer.device(), Order::Relaxed, scope);
      readModifyWrite<uint32_t>(
          buffer.device(), [](uint32_t before) { return before + 1; }, Order::Relaxed, scope);
    });
  };
  EXPECT_TRUE(completed(strong(memory, Scope::Device)));
  EXPECT_TRUE(completed(strong(memory, Scope::Block)));
  EXPECT_TRUE(trapped(strong(pinned, Scope::Device), TrapKind::Scope,
                      {"narrower than the system", "pinned host memory"}));
  ASSERT_TRUE(setExported(memory.base()));
  EXPECT_TRUE(trapped(strong(memory, Scope::Device), TrapKind::Scope,
                      {"narrower than the system", "shared with peers"}));
  EXPECT_TRUE(completed(strong(memory, Scope::System)));
}

TEST_F(CoreTest, NonCoherentLoadsOfWhatPeersWrite) {
  const DeviceBuffer memory(64);
  const auto load = [&] { nonCoherentLoad<Vec16>(memory.device()); };
  EXPECT_TRUE(completed(runOne(load)));
  ASSERT_TRUE(setExported(memory.base()));
  EXPECT_TRUE(trapped(runOne(load), TrapKind::NonCoherent, {"ld.global.nc of memory that a peer may write"}));
}

// Allocations that fall into one place of the cache of ranges, by turns.
TEST_F(CoreTest, ManySmallAllocations) {
  std::vector<DeviceBuffer> buffers;
  for (size_t i = 0; i < 600; ++i) {
    buffers.emplace_back(8 + i);
    buffers.back().fill(static_cast<uint8_t>(i));
  }
  uint64_t wrong = 0;
  ASSERT_TRUE(completed(runOne([&] {
    for (int round = 0; round < 3; ++round) {
      for (size_t i = 0; i < buffers.size(); ++i) {
        wrong += loadGlobal(buffers[i].device<uint8_t>(7 + i)) != static_cast<uint8_t>(i) ? 1 : 0;
      }
    }
  })));
  EXPECT_EQ(wrong, 0u);
  EXPECT_TRUE(
      trapped(runOne([&] { loadGlobal(buffers[30].device<uint8_t>(8 + 30)); }), TrapKind::OutOfBounds, {}));
}

TEST_F(CoreTest, AtomicsOfBothSizes) {
  const DeviceBuffer memory(16);
  memory.fill(0);
  uint64_t before = 0;
  for (int64_t weak : {0, 1}) {
    options().weak = weak;
    memory.fill(0);
    ASSERT_TRUE(completed(runAlone(4, 64, [&] {
      fetchAdd(memory.device<uint64_t>(), 3);
      readModifyWrite<uint32_t>(
          memory.device(8), [](uint32_t old) { return std::max(old, threadIndex()); }, Order::Relaxed);
    })));
    EXPECT_EQ(memory.host<uint64_t>()[0], 4u * 64 * 3);
    EXPECT_EQ(memory.host<uint32_t>()[2], 63u);
    ASSERT_TRUE(completed(runOne([&] { before = compareExchange(memory.device<uint64_t>(), 768, 5); })));
    EXPECT_EQ(before, 768u);
    ASSERT_TRUE(completed(runOne([&] { before = compareExchange(memory.device<uint64_t>(), 768, 6); })));
    EXPECT_EQ(before, 5u);
    EXPECT_EQ(memory.host<uint64_t>()[0], 5u);
  }
}

// ---- LL ----

// The halves of a store are seen in both orders, and never in part.
TEST_F(CoreTest, FlaggedHalvesAreWholeAndInAnyOrder) {
  const DeviceBuffer memory(sizeof(Flagged));
  options().random = 1;
  options().preemptEvery = 2;
  std::set<std::pair<uint32_t, uint32_t>> seen;
  for (options().seed = 0; options().seed < 60; ++options().seed) {
    memory.fill(0);
    ASSERT_TRUE(completed(runAlone(2, 1, [&] {
      if (blockIndex() == 0) {
        storeFlagged(memory.device(), {1, 1, 2, 1});
        return;
      }
      Flagged value{};
      do {
        value = loadFlagged(memory.device());
        ASSERT_EQ(value.data0, value.flag0);
        ASSERT_EQ(value.data1, 2 * value.flag1);
        seen.insert({value.flag0, value.flag1});
      } while (value.flag0 == 0 || value.flag1 == 0);
    })));
  }
  EXPECT_EQ(seen.size(), 4u);
}

// ---- LL128 ----

TEST_F(CoreTest, LinesAreSeenWhole) {
  const DeviceBuffer memory(512);
  options().random = 1;
  for (int64_t weak : {0, 1}) {
    options().weak = weak;
    for (options().seed = 0; options().seed < 20; ++options().seed) {
      memory.fill(0);
      uint64_t torn = 0;
      ASSERT_TRUE(completed(runAlone(2, 32, [&] {
        void* at = memory.device(threadIndex() * 16);
        if (blockIndex() == 0) {
          for (uint64_t round = 1; round <= 50; ++round) {
            storeLinePart(at, {round, round});
          }
          return;
        }
        for (uint64_t round = 0; round < 50;) {
          const LinePart part = loadLinePart(at);
          const uint64_t flag = shuffle(part.b, static_cast<int>(laneIndex() | 7));
          torn += part.a != flag || part.b != flag ? 1 : 0;
          round = flag;
          while (ballot(round == 50) != 0 && round != 50) {
            round = loadLinePart(at).b;
          }
        }
      })));
      EXPECT_EQ(torn, 0u);
      EXPECT_EQ(memory.host<uint64_t>()[63], 50u);
    }
  }
}

TEST_F(CoreTest, LinesMustBeLines) {
  const DeviceBuffer memory(1024);
  const auto shifted = [&](size_t offset, size_t stride) {
    return runAlone(1, 32,
                    [&, offset, stride] { loadLinePart(memory.device(offset + threadIndex() * stride)); });
  };
  EXPECT_TRUE(completed(shifted(128, 16)));
  EXPECT_TRUE(trapped(shifted(16, 16), TrapKind::Misaligned, {"not at one line of 128 bytes: lane 0"}));
  EXPECT_TRUE(trapped(shifted(0, 32), TrapKind::Misaligned, {"not at one line of 128 bytes: lane 1"}));
  EXPECT_TRUE(trapped(shifted(8, 16), TrapKind::Misaligned, {"misaligned 16-byte strong access"}));
  EXPECT_TRUE(trapped(runAlone(1, 16,
                               [&] {
                                 storeLinePart(memory.device(threadIndex() * 16), {1, 2});
                               }),
                      TrapKind::Warp, {"fewer than 32 lanes"}));
  EXPECT_TRUE(trapped(runAlone(1, 32,
                               [&] {
                                 if (threadIndex() < 16) {
                                   loadLinePart(memory.device(threadIndex() * 16));
                                 }
                               }),
                      TrapKind::Warp, {"wait for it in an LL128 load"}));
}

// ---- weak memory: a block writes data, then a flag; another waits for the flag and reads ----

enum class Writer { Release, Relaxed, FenceThenRelaxed, NarrowRelease };
enum class Reader { Acquire, Relaxed, RelaxedThenFence };
constexpr uint32_t kItems = 64;

// How many of the seeds let the reader see something else than what was written.
int stale(Writer writer, Reader reader, bool barriers = true) {
  const DeviceBuffer data(kItems * 16), flag(64);
  options().weak = 1;
  options().random = 1;
  int failed = 0;
  for (options().seed = 1; options().seed <= 20; ++options().seed) {
    data.fill(0);
    flag.fill(0);
    const auto produce = [&] {
      store16(data.device(threadIndex() * 16), {{7, 7, 7, threadIndex()}});
      if (barriers) {
        syncBlock();
      }
      if (threadIndex() == 0) {
        if (writer == Writer::FenceThenRelaxed) {
          peal::cuda::fence();
        }
        strongStore<uint64_t>(
            flag.device(), 1,
            writer == Writer::Release || writer == Writer::NarrowRelease ? Order::Release : Order::Relaxed,
            writer == Writer::NarrowRelease ? Scope::Block : Scope::System);
        // Stays, as a kernel with more to send does: the end of its block would let everything through.
        while (loadAcquire(flag.device<uint64_t>(32)) == 0) {
        }
      }
    };
    uint32_t wrong = 0;
    const auto consume = [&] {
      load16(data.device(threadIndex() * 16));  // an old copy, as from an earlier round
      if (threadIndex() == 0) {
        while (strongLoad<uint64_t>(flag.device(),
                                    reader == Reader::Acquire ? Order::Acquire : Order::Relaxed) == 0) {
        }
        if (reader == Reader::RelaxedThenFence) {
          peal::cuda::fence();
        }
      }
      syncBlock();
      wrong += load16(data.device(threadIndex() * 16)).word[0] != 7 ? 1 : 0;
      syncBlock();
      if (threadIndex() == 0) {
        storeRelease(flag.device<uint64_t>(32), 1);
      }
    };
    EXPECT_TRUE(completed(runGrids({gridOf(1, kItems, produce), gridOf(1, kItems, consume, 1)})));
    failed += wrong != 0 ? 1 : 0;
    for (uint32_t i = 0; i < kItems; ++i) {
      EXPECT_EQ(data.host<uint32_t>()[i * 4 + 3], i);  // the end of a grid lets everything through
    }
  }
  return failed;
}

TEST_F(CoreTest, WeakMemoryKeepsWhatReleaseAndAcquirePromise) {
  EXPECT_EQ(stale(Writer::Release, Reader::Acquire), 0);
  EXPECT_EQ(stale(Writer::FenceThenRelaxed, Reader::Acquire), 0);
  EXPECT_EQ(stale(Writer::Release, Reader::RelaxedThenFence), 0);
}

TEST_F(CoreTest, WeakMemoryShowsWhatIsNotOrdered) {
  EXPECT_GE(stale(Writer::Relaxed, Reader::Acquire), 15);
  EXPECT_GE(stale(Writer::Release, Reader::Relaxed), 15);
  EXPECT_GE(stale(Writer::NarrowRelease, Reader::Acquire), 15);
  EXPECT_GE(stale(Writer::Release, Reader::Acquire, false), 10);
}

TEST_F(CoreTest, RelaxedStoresMayPassEachOther) {
  const DeviceBuffer words(256);
  options().weak = 1;
  options().random = 1;
  int reordered = 0;
  for (options().seed = 1; options().seed <= 30; ++options().seed) {
    words.fill(0);
    EXPECT_TRUE(completed(runAlone(2, 1, [&] {
      if (blockIndex() == 0) {
        storeRelaxed(words.device<uint64_t>(), 1);
        storeRelaxed(words.device<uint64_t>(128), 1);
        while (loadRelaxed(words.device<uint64_t>(64)) == 0) {
        }
        return;
      }
      while (loadRelaxed(words.device<uint64_t>(128)) == 0) {
      }
      reordered += loadRelaxed(words.device<uint64_t>()) == 0 ? 1 : 0;
      storeRelaxed(words.device<uint64_t>(64), 1);
    })));
  }
  EXPECT_GT(reordered, 0);
  EXPECT_LT(reordered, 30);
}

// Whatever is delayed, a thread sees its own stores, and after a barrier those of its block.
TEST_F(CoreTest, WeakMemoryIsOrderedInsideABlock) {
  const DeviceBuffer data(256 * 4);
  options().weak = 1;
  options().random = 1;
  for (options().seed = 1; options().seed <= 10; ++options().seed) {
    for (int64_t stalePercent : {0, 100}) {
      options().stalePercent = stalePercent;
      uint32_t wrong = 0;
      data.fill(0);
      ASSERT_TRUE(completed(runAlone(1, 256, [&] {
        uint32_t* words = data.device<uint32_t>();
        for (uint32_t round = 1; round <= 20; ++round) {
          storeGlobal(words + threadIndex(), round);
          wrong += loadGlobal(words + threadIndex()) != round ? 1 : 0;
          syncBlock();
          const uint32_t neighbour = (threadIndex() + round) % 256;
          wrong += loadGlobal(words + neighbour) != round ? 1 : 0;
          if (round % 5 == 0 && threadIndex() == round) {
            strongStore<uint32_t>(words + threadIndex(), round + 1000, Order::Release);
            wrong += loadGlobal(words + threadIndex()) != round + 1000 ? 1 : 0;
            readModifyWrite<uint32_t>(
                words + threadIndex(), [](uint32_t old) { return old - 1000; }, Order::AcquireRelease);
            wrong += loadGlobal(words + threadIndex()) != round ? 1 : 0;
          }
          syncBlock();
        }
      })));
      ASSERT_EQ(wrong, 0u);
      for (int i = 0; i < 256; ++i) {
        ASSERT_EQ(data.host<uint32_t>()[i], 20u);
      }
    }
  }
}

// Stores of different sizes into one granule, by two threads, meet in memory as stored.
TEST_F(CoreTest, WeakStoresKeepTheirBytes) {
  const DeviceBuffer data(32);
  options().weak = 1;
  for (options().drainPerMille = 0; options().drainPerMille <= 1000; options().drainPerMille += 250) {
    data.fill(0xee);
    ASSERT_TRUE(completed(runAlone(1, 2, [&] {
      if (threadIndex() == 0) {
        storeGlobal(data.device<uint8_t>(1), uint8_t{1});
        storeGlobal(data.device<uint16_t>(6), uint16_t{0x0706});
        storeGlobal(data.device<uint64_t>(16), uint64_t{0x1716151413121110});
      } else {
        storeGlobal(data.device<uint32_t>(8), uint32_t{0x0b0a0908});
        storeGlobal(data.device<uint8_t>(31), uint8_t{31});
      }
    })));
    const uint8_t expected[32] = {0xee, 1,    0xee, 0xee, 0xee, 0xee, 6,    7,    8,    9,    10,
                                  11,   0xee, 0xee, 0xee, 0xee, 0x10, 0x11, 0x12, 0x13, 0x14, 0x15,
                                  0x16, 0x17, 0xee, 0xee, 0xee, 0xee, 0xee, 0xee, 0xee, 31};
    EXPECT_EQ(std::memcmp(data.host(), expected, sizeof expected), 0);
  }
}

// A delayed store becomes visible when nothing else happens, without a release.
TEST_F(CoreTest, DelayedStoresArriveWhenAllWait) {
  const DeviceBuffer flag(64);
  flag.fill(0);
  options().weak = 1;
  options().drainPerMille = 0;
  options().delayPercent = 100;
  EXPECT_TRUE(completed(runAlone(2, 1, [&] {
    uint64_t* words = flag.device<uint64_t>();
    storeRelaxed(words + blockIndex(), 1);
    while (loadRelaxed(words + (1 - blockIndex())) == 0) {
    }
  })));
}

}  // namespace
}  // namespace peal::cudasim
