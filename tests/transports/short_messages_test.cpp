// Short messages over shared memory: more of them are on their way than there are slots, their bytes share
// one ring, and credits that travel with messages are not lost.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <thread>

#include "tests/transports/transports.h"
#include "transports/shm/byte_ring.h"
#include "transports/shm/distance.h"

namespace peal::test {
namespace {

using shm::ByteRing;
using shm::kRingEntries;

class ShortMessages : public TransportTest {};
INSTANTIATE_TEST_SUITE_P(Transports, ShortMessages, ::testing::ValuesIn(transportsWithReferences()),
                         transportName);

void postShort(const Rank& self, int peer, const std::vector<std::byte>& data, const Digest& digest) {
  std::byte* slot = nullptr;
  ASSERT_TRUE(waitUntil(self.endpoint, peer,
                        [&] { return (slot = self.link(peer).tryStageShort(data.size())) != nullptr; }));
  EXPECT_EQ(self.link(peer).tryStageShort(data.size()), slot);
  std::copy(data.begin(), data.end(), slot);
  self.link(peer).post(data.size(), digest);
}

TEST_P(ShortMessages, FillTheRingAndGoOnWhenHalfOfItIsFree) {
  for (const size_t bytes : {size_t{8}, size_t{200}}) {
    run(2, {.slotBytes = 4096, .slots = 2}, [bytes](const Rank& self) {
      constexpr int kAll = kRingEntries, kHalf = kAll / 2;
      Link& link = self.link(1 - self.rank);
      if (self.rank == 0) {
        for (int number = 0; number < kAll; ++number) {
          postShort(self, 1, pattern(0, number, bytes), digestOf(number));
        }
        EXPECT_EQ(link.tryStageShort(bytes), nullptr);
        EXPECT_EQ(link.tryStage(4000), nullptr);
        self.meet();
        self.meet();  // the peer has released all but half and one
        EXPECT_EQ(link.tryStageShort(bytes), nullptr);
        self.meet();
        self.meet();  // and that one
        EXPECT_NE(link.tryStageShort(bytes), nullptr);
        EXPECT_EQ(link.tryStage(4000), nullptr);
        self.meet();
        self.meet();
        EXPECT_NE(link.tryStage(4000), nullptr);
      } else {
        int number = 0;
        const auto takeUntil = [&](int end) {
          self.meet();
          for (; number < end; ++number) {
            expectMessage(self, 0, pattern(0, number, bytes), digestOf(number));
          }
          self.meet();
        };
        takeUntil(kHalf - 1);
        takeUntil(kHalf);
        takeUntil(kAll);
      }
      self.meet();
    });
  }
}

TEST_P(ShortMessages, MixWithOthersInOneOrder) {
  run(3, {.slotBytes = 8192, .slots = 3}, [](const Rank& self) {
    constexpr std::array<size_t, 12> kSizes{0, 8, 32, 33, 1000, 4096, 64, 4095, 2048, 1, 4097, 8192};
    const int next = (self.rank + 1) % self.size, last = (self.rank + 2) % self.size;
    int taken = 0;
    const auto bytesOf = [&](int number) { return kSizes[static_cast<size_t>(number) % kSizes.size()]; };
    for (int number = 0; number < 400; ++number) {
      const std::vector<std::byte> data = pattern(self.rank, number, bytesOf(number));
      number % 5 == 0 ? sendMessage(self, next, data, digestOf(number))
                      : postShort(self, next, data, digestOf(number));
      for (; taken < number && (number % 7 == 0 || number - taken > 1); ++taken) {
        expectMessage(self, last, pattern(last, taken, bytesOf(taken)), digestOf(taken));
      }
    }
    for (; taken < 400; ++taken) {
      expectMessage(self, last, pattern(last, taken, bytesOf(taken)), digestOf(taken));
    }
    self.meet();
  });
}

// Nobody writes a credit: the answers carry them. What follows needs all of them.
TEST_P(ShortMessages, QuietReleasesTravelWithAnswers) {
  run(2, {.slotBytes = 4096, .slots = 3}, [](const Rank& self) {
    Link& link = self.link(1 - self.rank);
    for (int number = 0; number < 300; ++number) {
      const size_t bytes = number % 3 == 0 ? 1500 : 16;
      postShort(self, 1 - self.rank, pattern(self.rank, number, bytes), digestOf(number));
      Arrival arrival;
      ASSERT_TRUE(waitUntil(self.endpoint, 1 - self.rank, [&] { return link.tryReceive(arrival); }));
      EXPECT_EQ(arrival.digest, digestOf(number));
      link.releaseQuietly();
    }
    self.meet();
    // The last release may not have been told: one slot less, and no more.
    if (self.rank == 0) {
      sendMessage(self, 1, pattern(0, 0, 4096), digestOf(0));
    } else {
      expectMessage(self, 0, pattern(0, 0, 4096), digestOf(0));
    }
    self.meet();
    if (self.rank == 0) {
      EXPECT_TRUE(link.released(link.posted()));
    }
    self.meet();
  });
}

// A sender asleep for want of room is woken by the receiver, long before it would look by itself.
TEST_P(ShortMessages, ASleepingSenderIsWoken) {
  run(2, {.slotBytes = 4096, .slots = 2}, [](const Rank& self) {
    constexpr int kMessages = 40 * static_cast<int>(kRingEntries);
    constexpr std::chrono::milliseconds kSleep{5000};
    Link& link = self.link(1 - self.rank);
    int sleeps = 0, unwoken = 0;
    for (int number = 0; number < kMessages; ++number) {
      if (self.rank == 1) {
        if (number % (10 * static_cast<int>(kRingEntries)) == 0) {
          std::this_thread::sleep_for(std::chrono::milliseconds(33));  // the ring fills meanwhile
        }
        expectMessage(self, 0, pattern(0, number, 24), digestOf(number));
        continue;
      }
      while (link.tryStageShort(24) == nullptr) {
        const uint32_t token = self.endpoint.prepareSleep();
        if (link.tryStageShort(24) != nullptr) {
          self.endpoint.cancelSleep();
          break;
        }
        const auto start = Clock::now();
        self.endpoint.sleep(token, std::chrono::microseconds(kSleep).count());
        ++sleeps;
        unwoken += Clock::now() - start >= kSleep ? 1 : 0;
        ASSERT_TRUE(self.endpoint.progress(1));
      }
      postShort(self, 1, pattern(0, number, 24), digestOf(number));
    }
    EXPECT_TRUE(self.rank == 1 || sleeps > 0);
    EXPECT_LE(4 * unwoken, sleeps);
    self.meet();
  });
}

// A message may be looked at after 2^31 others the other way: half a count would be ahead then.
TEST(Descriptor, SaysWholeCounts) {
  for (const uint64_t released :
       {uint64_t{0}, uint64_t{5}, (uint64_t{1} << 31) + 7, uint64_t{1} << 32, (uint64_t{1} << 54) - 1}) {
    for (const size_t bytes : {size_t{0}, size_t{1}, shm::kInlineBytes}) {
      const uint32_t meta = shm::Descriptor::inlineMeta(bytes, released);
      EXPECT_EQ(meta >> shm::Descriptor::kBytesBits, 0U) << "the kind's";
      const uint32_t whole = static_cast<uint32_t>(shm::Kind::Inline) << shm::Descriptor::kBytesBits | meta;
      EXPECT_EQ(shm::Descriptor::bytesOfInline(whole), bytes);
      EXPECT_EQ(shm::Descriptor::releasedOfInline(whole, static_cast<uint32_t>(released)), released);
    }
  }
}

TEST(Distance, IsFarWhenLooksAgree) {
  constexpr int64_t kHere = 5, kNear = 30, kFar = 110, kInterrupted = 5000;
  shm::Distance distance;
  const auto after = [&](std::initializer_list<int64_t> looks) {
    std::for_each(looks.begin(), looks.end(), [&](int64_t ns) { distance.note(ns); });
    return distance.isFar();
  };
  EXPECT_FALSE(after({}));
  EXPECT_FALSE(after({kNear, kInterrupted, kNear, kInterrupted, kNear}));
  EXPECT_TRUE(after({kFar, kFar}));
  EXPECT_TRUE(after({kHere, -3, kHere, kHere}));  // nothing new was seen
  EXPECT_TRUE(after({kFar, kFar, kNear, kFar}));
  EXPECT_FALSE(after({kNear, kNear}));
  EXPECT_FALSE(after({kHere, kNear, kFar}));
}

TEST(ByteRing, GivesEachMessageOnItsWayBytesOfItsOwn) {
  ByteRing ring;
  struct Span {
    size_t begin, end;
  };
  std::vector<Span> spans;  // by message number
  uint64_t released = 0;
  uint32_t random = 1;
  for (uint64_t number = 0; number < 5000;) {
    random = random * 1664525U + 1013904223U;
    const size_t bytes = random >> 8 & 4095;
    const bool elsewhere = (random >> 28) == 0;
    if (number - released == kRingEntries) {
      ++released;
      continue;
    }
    const std::optional<uint32_t> at =
        elsewhere ? std::optional<uint32_t>(0) : ring.room(number, released, bytes);
    if (!at) {
      ASSERT_LT(released, number) << "an empty ring has no room for " << bytes;
      ++released;
      continue;
    }
    spans.push_back(elsewhere ? Span{0, 0} : Span{*at, *at + bytes});
    if (!elsewhere) {
      ASSERT_LE(*at + bytes, ByteRing::kBytes);
      for (uint64_t other = released; other < number; ++other) {
        ASSERT_TRUE(spans[other].end <= spans[number].begin || spans[number].end <= spans[other].begin)
            << "messages " << other << " and " << number;
      }
      ring.take(bytes);
    }
    ring.close(number++);
  }
}

}  // namespace
}  // namespace peal::test
