// How ranks leave: in good order, because of a fault, or by dying. Whoever still waits learns who is the
// cause; whoever needs nothing more is left alone.
#include <gtest/gtest.h>

#include "tests/transports/transports.h"

namespace peal::test {
namespace {

class Departures : public TransportTest {};
INSTANTIATE_TEST_SUITE_P(Transports, Departures, ::testing::ValuesIn(allTransports()), transportName);

// The error of a wait for a message that never comes.
std::string errorOfWaitingFor(const Rank& self, int peer) {
  std::string error;
  Arrival arrival;
  EXPECT_FALSE(waitUntil(
      self.endpoint, peer, [&] { return self.link(peer).tryReceive(arrival); }, &error));
  EXPECT_TRUE(self.endpoint.faulted());
  EXPECT_GE(self.endpoint.culpritRank(), 0);
  const Result<void> again = self.endpoint.progress(-1);
  EXPECT_FALSE(again);
  EXPECT_EQ(again.error().message, error) << "the first fault stays";
  EXPECT_EQ(again.error().code, pealRemoteError);
  return error;
}

TEST_P(Departures, LastMessagesOutliveTheirSender) {
  run(2, {.slotBytes = 1024, .slots = 4}, [](const Rank& self) {
    if (self.rank == 0) {
      for (int number = 0; number < 4; ++number) {
        sendMessage(self, 1, pattern(0, number, 1000), digestOf(number));
      }
      self.settle();
      self.endpoint.farewell(-1, "");
      self.meet();
      return;  // destroys the endpoint
    }
    self.meet();  // the farewell is read while the messages are still there
    for (int number = 0; number < 4; ++number) {
      EXPECT_TRUE(self.endpoint.progress(0));
      EXPECT_TRUE(self.endpoint.progress(-1));
      expectMessage(self, 0, pattern(0, number, 1000), digestOf(number));
    }
    EXPECT_TRUE(self.endpoint.progress(-1)) << "nobody waits for it";
    const std::string error = errorOfWaitingFor(self, 0);
    EXPECT_TRUE(contains(error, "rank 0")) << error;
    EXPECT_TRUE(contains(error, "left the communicator in good order")) << error;
  });
}

// What is sent to a rank that has left is lost, as what it had not received when it left: nobody asks before
// sending. But only as much as the slots hold: whoever waits for credit learns that the peer is gone.
TEST_P(Departures, ARankThatLeftIsSentToNoMoreThanItsSlotsHold) {
  run(2, {.slotBytes = 1024, .slots = 4}, [](const Rank& self) {
    if (self.rank == 1) {
      self.settle();
      self.endpoint.farewell(-1, "");
      self.meet();
      return;
    }
    self.meet();
    std::string error;
    int taken = 0;
    for (; taken < 100 && error.empty(); ++taken) {
      std::byte* slot = nullptr;
      if (waitUntil(
              self.endpoint, 1, [&] { return (slot = self.link(1).tryStage(1000)) != nullptr; }, &error)) {
        std::memset(slot, taken, 1000);
        self.link(1).post(1000, digestOf(taken));
        self.settle();
      }
    }
    EXPECT_EQ(taken, 4 + 1);
    EXPECT_TRUE(contains(error, "rank 1")) << error;
    EXPECT_TRUE(contains(error, "left the communicator in good order")) << error;
    EXPECT_EQ(self.endpoint.culpritRank(), 1);
  });
}

// Releases and then leaves, over and over, while the other side waits for the release.
TEST_P(Departures, AReleaseJustBeforeLeavingIsNoFault) {
  for (int round = 0; round < 30; ++round) {
    run(2, {.slotBytes = 1024, .slots = 1}, [](const Rank& self) {
      if (self.rank == 0) {
        sendMessage(self, 1, pattern(0, 0, 1000), digestOf(0));
        EXPECT_TRUE(waitUntil(self.endpoint, 1, [&] { return self.link(1).released(1); }));
      } else {
        expectMessage(self, 0, pattern(0, 0, 1000), digestOf(0));
      }
    });
  }
}

TEST_P(Departures, LeavingWithUnreadMessagesIsAFaultForTheirSender) {
  run(2, {.slotBytes = 1024, .slots = 2}, [](const Rank& self) {
    if (self.rank == 1) {
      self.meet();
      return;
    }
    sendMessage(self, 1, pattern(0, 0, 100), digestOf(0));
    self.meet();
    std::string error;
    EXPECT_FALSE(waitUntil(
        self.endpoint, -1, [] { return false; }, &error));
    EXPECT_TRUE(contains(error, "rank 1")) << error;
    EXPECT_TRUE(contains(error, "left")) << error;
  });
}

TEST_P(Departures, AFarewellBlamesTheCulprit) {
  run(3, {}, [](const Rank& self) {
    if (self.rank == 1) {
      self.endpoint.farewell(2, "rank 2 did not come to AllReduce 17");
      self.endpoint.farewell(0, "only the first farewell counts");
    } else {
      const int peer = self.rank == 0 ? 2 : 0;  // also ranks that wait for somebody else
      const std::string error = errorOfWaitingFor(self, peer);
      EXPECT_TRUE(contains(error, "rank 1")) << error;
      EXPECT_TRUE(contains(error, self.rank == 0 ? "because of rank 2" : "because of this rank (2)"))
          << error;
      EXPECT_TRUE(contains(error, "did not come to AllReduce 17")) << error;
      EXPECT_EQ(self.endpoint.culpritRank(), 2);
    }
    self.meet();
  });
}

TEST_P(Departures, ALongReasonIsCutAndNothingElse) {
  run(2, {}, [](const Rank& self) {
    if (self.rank == 0) {
      self.endpoint.farewell(0, std::string(5000, 'x'));
    } else {
      const std::string error = errorOfWaitingFor(self, 0);
      EXPECT_TRUE(contains(error, "rank 0")) << error;
      EXPECT_TRUE(contains(error, std::string(100, 'x'))) << error;
      EXPECT_LT(error.size(), 2000U);
    }
    self.meet();
  });
}

TEST_P(Departures, AFarewellWakesSleepers) {
  run(2, {}, [](const Rank& self) {
    if (self.rank == 0) {
      self.meet();
      self.endpoint.farewell(0, "enough");
      self.meet();
      return;
    }
    const uint32_t token = self.endpoint.prepareSleep();
    self.meet();
    self.endpoint.sleep(token, 100000);
    self.meet();
    const auto rang = [&] {
      const bool yes = self.endpoint.prepareSleep() != token;
      self.endpoint.cancelSleep();
      return yes;
    };
    const Deadline soon = Deadline::afterMs(self.travels ? 10000 : 0);
    while (!rang() && !soon.passed()) {
      std::this_thread::yield();
    }
    EXPECT_TRUE(rang()) << "the bell did not ring";
    EXPECT_FALSE(self.endpoint.progress(-1));
  });
}

TEST_P(Departures, OthersGoOnWhenOneLeavesInGoodOrder) {
  run(3, {.slots = 2}, [](const Rank& self) {
    if (self.rank == 2) {
      return;
    }
    const int peer = 1 - self.rank;
    for (int number = 0; number < 300; ++number) {
      sendMessage(self, peer, pattern(self.rank, number, 500), digestOf(number));
      expectMessage(self, peer, pattern(peer, number, 500), digestOf(number));
      ASSERT_TRUE(self.endpoint.progress(peer));
    }
  });
}

TEST_P(Departures, AnEndpointWithAFaultPassesTheBlameOn) {
  run(3, {}, [](const Rank& self) {
    if (self.rank == 0) {
      self.endpoint.farewell(0, "aborted by its user");
      self.meet();
      self.meet();
    } else if (self.rank == 1) {
      self.meet();
      EXPECT_TRUE(contains(errorOfWaitingFor(self, 2), "rank 0"));
      self.meet();
    } else {
      self.meet();
      self.meet();
      EXPECT_TRUE(contains(errorOfWaitingFor(self, 1), "rank 0"));
    }
  });
}

}  // namespace
}  // namespace peal::test
