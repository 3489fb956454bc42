// What every transport promises (transports/transport.h), checked over all of them: messages and credits,
// the same bytes to all, sleeping, announcements.
#include <gtest/gtest.h>

#include "tests/transports/transports.h"

namespace peal::test {
namespace {

class Conformance : public TransportTest {};
INSTANTIATE_TEST_SUITE_P(Transports, Conformance, ::testing::ValuesIn(allTransports()), transportName);

// 0, 1, around what fits into a descriptor, a prime, unaligned, around a slot.
std::vector<size_t> sizesFor(size_t slotBytes) {
  return {0, 1, 2, 31, 32, 33, 63, 64, 65, 997, 1023, slotBytes - 1, slotBytes};
}

TEST_P(Conformance, EverySizeArrivesInOrderWithItsDigest) {
  run(2, {}, [](const Rank& self) {
    const std::vector<size_t> sizes = sizesFor(self.endpoint.slotBytes());
    for (int number = 0; number < 200; ++number) {
      const size_t bytes = sizes[static_cast<size_t>(number) % sizes.size()];
      if (self.rank == 0) {
        sendMessage(self, 1, pattern(0, number, bytes), digestOf(number));
      } else {
        expectMessage(self, 0, pattern(0, number, bytes), digestOf(number));
      }
    }
  });
}

TEST_P(Conformance, AllPairsBothWaysAtOnce) {
  run(5, {.slotBytes = 256, .slots = 1}, [](const Rank& self) {
    for (int number = 0; number < 60; ++number) {
      const size_t bytes = static_cast<size_t>(number * 37) % 257;
      for (int peer = 0; peer < self.size; ++peer) {
        if (peer != self.rank) {
          sendMessage(self, peer, pattern(self.rank, number, bytes), digestOf(number + peer));
        }
      }
      for (int peer = 0; peer < self.size; ++peer) {
        if (peer != self.rank) {
          expectMessage(self, peer, pattern(peer, number, bytes), digestOf(number + self.rank));
        }
      }
    }
  });
}

TEST_P(Conformance, StagingGivesTheSameMemoryUntilPosted) {
  run(2, {}, [](const Rank& self) {
    if (self.rank == 0) {
      for (const size_t bytes : {size_t{8}, size_t{1000}}) {
        std::byte* first = nullptr;
        ASSERT_TRUE(holds(self, [&] { return (first = self.link(1).tryStage(bytes)) != nullptr; }));
        EXPECT_EQ(self.link(1).tryStage(bytes), first);
        std::fill_n(first, bytes, std::byte{7});
        self.link(1).post(bytes, digestOf(1));
      }
    } else {
      expectMessage(self, 0, std::vector<std::byte>(8, std::byte{7}), digestOf(1));
      expectMessage(self, 0, std::vector<std::byte>(1000, std::byte{7}), digestOf(1));
    }
    self.meet();
  });
}

TEST_P(Conformance, AMessageMayBeShorterThanWhatWasStaged) {
  run(2, {}, [](const Rank& self) {
    if (self.rank == 0) {
      std::byte* slot = nullptr;
      ASSERT_TRUE(holds(self, [&] { return (slot = self.link(1).tryStage(2000)) != nullptr; }));
      std::fill_n(slot, 2000, std::byte{3});
      self.link(1).post(5, digestOf(1));
    } else {
      expectMessage(self, 0, std::vector<std::byte>(5, std::byte{3}), digestOf(1));
    }
    self.meet();
  });
}

void useUpCredits(const Rank& self, int slots) {
  Link& link = self.link(1 - self.rank);
  if (self.rank == 0) {
    for (int number = 0; number < slots; ++number) {
      sendMessage(self, 1, pattern(0, number, 100), digestOf(number));
    }
    EXPECT_EQ(link.tryStage(1), nullptr);
    EXPECT_EQ(link.tryStage(100), nullptr);
    EXPECT_EQ(self.endpoint.tryStageAll(8), nullptr);
    self.meet();
    self.meet();  // the peer has released one
    std::byte* slot = nullptr;
    ASSERT_TRUE(holds(self, [&] { return (slot = link.tryStage(100)) != nullptr; }));
    const std::vector<std::byte> last = pattern(0, slots, 100);
    std::copy(last.begin(), last.end(), slot);
    link.post(100, digestOf(slots));
    EXPECT_EQ(link.tryStage(100), nullptr);
    self.meet();
  } else {
    self.meet();
    expectMessage(self, 0, pattern(0, 0, 100), digestOf(0));
    self.meet();
    self.meet();  // the peer has used the credit
    for (int number = 1; number <= slots; ++number) {
      expectMessage(self, 0, pattern(0, number, 100), digestOf(number));
    }
    Arrival arrival;
    EXPECT_FALSE(link.tryReceive(arrival));
  }
  self.meet();
}

TEST_P(Conformance, CreditsRunOutAndComeBackOneByOne) {
  for (const int slots : {2, 3, 4, 8}) {
    run(2, {.slotBytes = 128, .slots = slots}, [slots](const Rank& self) { useUpCredits(self, slots); });
  }
}

// With all slots in use: a transport may keep a release to itself while the peer has credit left.
TEST_P(Conformance, PostedAndReleasedCountMessagesOfAllKinds) {
  run(2, {.slotBytes = 128, .slots = 3}, [](const Rank& self) {
    Link& link = self.link(1 - self.rank);
    if (self.rank == 0) {
      EXPECT_EQ(link.posted(), 0U);
      EXPECT_TRUE(link.released(0));
      sendMessage(self, 1, pattern(0, 0, 100), digestOf(0));
      sendMessage(self, 1, pattern(0, 1, 8), digestOf(1));
      ASSERT_TRUE(holds(self, [&] { return self.endpoint.tryStageAll(100) != nullptr; }));
      self.endpoint.postAll(100, digestOf(2));
      EXPECT_EQ(link.posted(), 3U);
      EXPECT_FALSE(link.released(1));
      self.meet();
      self.meet();  // the peer has released two
      EXPECT_TRUE(holds(self, [&] { return link.released(1); }));
      EXPECT_TRUE(self.travels || link.released(2));
      EXPECT_FALSE(link.released(3));
    } else {
      self.meet();
      expectMessage(self, 0, pattern(0, 0, 100), digestOf(0));
      expectMessage(self, 0, pattern(0, 1, 8), digestOf(1));
      self.meet();
    }
    self.meet();
  });
}

TEST_P(Conformance, AnArrivalIsShownAgainAndKeptUntilReleased) {
  run(2, {.slotBytes = 4096, .slots = 2}, [](const Rank& self) {
    if (self.rank == 0) {
      sendMessage(self, 1, pattern(0, 0, 3000), digestOf(0));
      sendMessage(self, 1, pattern(0, 1, 3000), digestOf(1));
      EXPECT_EQ(self.link(1).tryStage(3000), nullptr);
      self.meet();
    } else {
      self.meet();
      Arrival first;
      Arrival again;
      ASSERT_TRUE(holds(self, [&] { return self.link(0).tryReceive(first); }));
      ASSERT_TRUE(self.link(0).tryReceive(again));
      EXPECT_EQ(first.data, again.data);
      EXPECT_EQ(first.bytes, again.bytes);
      expectMessage(self, 0, pattern(0, 0, 3000), digestOf(0));
      expectMessage(self, 0, pattern(0, 1, 3000), digestOf(1));
    }
    self.meet();
  });
}

TEST_P(Conformance, TheSameBytesReachEveryOther) {
  run(4, {.slotBytes = 1024, .slots = 2}, [](const Rank& self) {
    for (int number = 0; number < 50; ++number) {
      const std::vector<size_t> sizes = sizesFor(1024);
      const size_t bytes = sizes[static_cast<size_t>(number) % sizes.size()];
      std::byte* slot = nullptr;
      ASSERT_TRUE(
          waitUntil(self.endpoint, -1, [&] { return (slot = self.endpoint.tryStageAll(bytes)) != nullptr; }));
      EXPECT_EQ(self.endpoint.tryStageAll(bytes), slot);
      const std::vector<std::byte> mine = pattern(self.rank, number, bytes);
      std::copy(mine.begin(), mine.end(), slot);
      self.endpoint.postAll(bytes, digestOf(number));
      for (int peer = 0; peer < self.size; ++peer) {
        if (peer != self.rank) {
          expectMessage(self, peer, pattern(peer, number, bytes), digestOf(number));
        }
      }
    }
  });
}

TEST_P(Conformance, MessagesToOneAndToAllShareOneOrder) {
  run(3, {.slotBytes = 512, .slots = 3}, [](const Rank& self) {
    for (int number = 0; number < 40; ++number) {
      for (int peer = 0; peer < self.size; ++peer) {
        if (peer != self.rank && (number + peer) % 3 != 0) {
          sendMessage(self, peer, pattern(self.rank, 1000 + number, 500), digestOf(1000 + number));
        }
      }
      std::byte* slot = nullptr;
      ASSERT_TRUE(
          waitUntil(self.endpoint, -1, [&] { return (slot = self.endpoint.tryStageAll(400)) != nullptr; }));
      const std::vector<std::byte> mine = pattern(self.rank, number, 400);
      std::copy(mine.begin(), mine.end(), slot);
      self.endpoint.postAll(400, digestOf(number));
      for (int peer = 0; peer < self.size; ++peer) {
        if (peer == self.rank) {
          continue;
        }
        if ((number + self.rank) % 3 != 0) {
          expectMessage(self, peer, pattern(peer, 1000 + number, 500), digestOf(1000 + number));
        }
        expectMessage(self, peer, pattern(peer, number, 400), digestOf(number));
      }
    }
  });
}

// An endpoint lets no sleep last longer than 100 ms. Those that nobody ended, or who ended them had no
// processor.
class Overslept {
 public:
  void sleep(Endpoint& endpoint, uint32_t token) {
    const auto begin = Clock::now();
    endpoint.sleep(token, 1000000);
    count_ += Clock::now() - begin > std::chrono::milliseconds(90) ? 1 : 0;
  }
  int count() const { return count_; }

 private:
  int count_ = 0;
};

TEST_P(Conformance, ASleeperIsWokenByAPostAndByARelease) {
  run(2, {.slotBytes = 128, .slots = 1}, [](const Rank& self) {
    Overslept overslept;
    Link& link = self.link(1 - self.rank);
    const auto sleepUntil = [&](const std::function<bool()>& condition) {
      const Deadline deadline = Deadline::afterMs(kTestLimitMs / 2);
      const auto looks = [&] {
        self.endpoint.poll();
        return condition();
      };
      while (!looks() && !deadline.passed()) {
        const uint32_t token = self.endpoint.prepareSleep();
        if (condition()) {
          self.endpoint.cancelSleep();
          return true;
        }
        overslept.sleep(self.endpoint, token);
      }
      return condition();
    };
    for (int number = 0; number < 300; ++number) {
      Arrival arrival;
      if (self.rank == 0) {
        ASSERT_TRUE(sleepUntil([&] { return link.tryStage(64) != nullptr; }));
        link.post(64, digestOf(number));
      } else {
        ASSERT_TRUE(sleepUntil([&] { return link.tryReceive(arrival); }));
        link.release();
      }
    }
    EXPECT_LT(overslept.count(), 30) << "of 300";
  });
}

TEST_P(Conformance, WakeEndsASleepFromAnotherThread) {
  run(2, {}, [](const Rank& self) {
    constexpr int kRounds = 30;
    std::atomic<int> asked{0}, awake{0}, sleeps{0};
    Overslept overslept;
    std::thread sleeper([&] {
      for (int round = 1; round <= kRounds; ++round) {
        while (asked.load() < round) {
          const uint32_t token = self.endpoint.prepareSleep();
          sleeps.store(round);
          if (asked.load() >= round) {
            self.endpoint.cancelSleep();
            break;
          }
          overslept.sleep(self.endpoint, token);
        }
        awake.store(round);
      }
    });
    for (int round = 1; round <= kRounds; ++round) {
      while (sleeps.load() < round) {
        std::this_thread::yield();
      }
      asked.store(round);
      self.endpoint.wake();
      while (awake.load() < round) {
        std::this_thread::yield();
      }
    }
    sleeper.join();
    EXPECT_LT(overslept.count(), kRounds / 2) << "of " << kRounds;
    self.meet();
  });
}

TEST_P(Conformance, PeersSeeTheLastAnnouncement) {
  run(3, {}, [](const Rank& self) {
    const int next = (self.rank + 1) % self.size;
    EXPECT_FALSE(self.endpoint.peerState(next).known);
    self.meet();
    for (int number = 0; number < 5; ++number) {
      self.endpoint.announce(digestOf(self.rank * 10 + number), number % 2 == 0);
      self.meet();
      PeerState state;
      EXPECT_TRUE(holds(self, [&] {
        state = self.endpoint.peerState(next);
        return state.known && state.digest == digestOf(next * 10 + number);
      }));
      EXPECT_EQ(state.inside, number % 2 == 0);
      self.meet();
    }
  });
}

TEST_P(Conformance, OneRankAloneConnects) {
  run(1, {}, [](const Rank& self) {
    EXPECT_TRUE(self.endpoint.progress(-1));
    EXPECT_NE(self.endpoint.tryStageAll(10), nullptr);
    self.endpoint.postAll(10, digestOf(1));
  });
}

}  // namespace
}  // namespace peal::test
