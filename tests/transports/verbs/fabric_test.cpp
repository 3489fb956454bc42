// The verbs fabric over the fake library: messages, credits, references, sleeping, and queue pairs that fail
// in every way on the way.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <poll.h>

#include <map>

#include "lib/memory/registry.h"
#include "tests/transports/verbs/machines.h"

namespace peal::test {
namespace {

TEST(VerbsFabric, MessagesOfAllSizesBothWaysOverSeveralQueuePairsAndPorts) {
  for (const bool delay : {false, true}) {
    for (const int slots : {1, 4, 64}) {
      World world(static_cast<unsigned>(slots));
      world.delay = delay;
      Machines machines(world, 3, {"rxe", "mlx"});
      runFabrics(3, machines.open(options(2048, slots)), [&](FabricRank& self) {
        ASSERT_TRUE(self.connected) << self.connected.error().message;
        EXPECT_TRUE(exchangeStreams(self, 150, 2048))
            << (self.fabric->fault() ? self.fabric->fault()->error.message : "");
      });
      expectClean(world);
    }
  }
}

TEST(VerbsFabric, AlonePeerlessRanksConnect) {
  World world;
  Machines machines(world, 1, {"rxe"});
  runFabrics(1, machines.open(options()), [&](FabricRank& self) {
    ASSERT_TRUE(self.connected) << self.connected.error().message;
    self.fabric->poll();
    EXPECT_TRUE(self.fabric->settled());
  });
  expectClean(world);
}

TEST(VerbsFabric, CreditsRunOutAndComeBack) {
  World world;
  Machines machines(world, 2, {"rxe"});
  runFabrics(2, machines.open(options(256, 2)), [&](FabricRank& self) {
    ASSERT_TRUE(self.connected);
    Link& link = self.link(1 - self.rank);
    if (self.rank == 0) {
      std::byte* first = link.tryStage(100);
      EXPECT_EQ(link.tryStage(200), first);
      link.post(100, {});
      ASSERT_NE(link.tryStage(256), nullptr);
      link.post(0, {});
      EXPECT_EQ(link.tryStage(1), nullptr);
      EXPECT_EQ(link.posted(), 2U);
      self.meet();
      self.meet();
      EXPECT_TRUE(self.waitUntil([&] { return link.tryStage(1) != nullptr; }));
      EXPECT_TRUE(link.released(1));
      EXPECT_FALSE(link.released(2));
    } else {
      self.meet();
      Arrival first;
      Arrival again;
      ASSERT_TRUE(self.waitUntil([&] { return link.tryReceive(first); }));
      ASSERT_TRUE(link.tryReceive(again));
      EXPECT_EQ(first.data, again.data);
      EXPECT_EQ(first.bytes, 100U);
      link.release();
      self.meet();
    }
    self.meet();
  });
  expectClean(world);
}

TEST(VerbsFabric, HeadersFollowTheConfigurationAndSmallMessagesGoInline) {
  World world;
  std::mutex mutex;
  std::map<size_t, bool> inlined;
  world.onMessage = [&](const WireMessage& message) {
    EXPECT_TRUE(message.withGlobalHeader);
    EXPECT_EQ(message.serviceLevel, 3);
    EXPECT_EQ(message.trafficClass, 104);
    inlined[message.bytes] = message.isInline;
    return Verdict{};
  };
  Machines machines(world, 2, {"rxe"});
  verbs::Options chosen = options();
  chosen.serviceLevel = 3;
  chosen.trafficClass = 104;
  runFabrics(2, machines.open(chosen), [&](FabricRank& self) {
    ASSERT_TRUE(self.connected);
    EXPECT_TRUE(exchangeStreams(self, 20, 1024));
  });
  EXPECT_TRUE(inlined.at(64 + 1)) << "a header of 64 and one byte";
  EXPECT_TRUE(inlined.at(64 + 64));
  EXPECT_FALSE(inlined.at(64 + 997));
}

TEST(VerbsFabric, InfiniBandIsAddressedByItsLid) {
  World world;
  world.onMessage = [](const WireMessage& message) {
    EXPECT_FALSE(message.withGlobalHeader);
    return Verdict{};
  };
  std::vector<std::unique_ptr<FakeVerbs>> libraries;
  for (int rank = 0; rank < 2; ++rank) {
    FakePort port;
    port.linkLayer = IBV_LINK_LAYER_INFINIBAND;
    port.lid = static_cast<uint16_t>(7 + rank);
    port.gids = {gidEntry(0, "fe80::" + std::to_string(rank + 1), IBV_GID_TYPE_IB)};
    libraries.push_back(
        std::make_unique<FakeVerbs>(world, rank, std::vector<FakeDeviceSpec>{{"ib0", {port}}}));
  }
  runFabrics(
      2, [&](int rank) { return verbs::VerbsFabric::open(*libraries[static_cast<size_t>(rank)], options()); },
      [&](FabricRank& self) {
        ASSERT_TRUE(self.connected) << self.connected.error().message;
        EXPECT_TRUE(exchangeStreams(self, 20, 1024));
      });
  expectClean(world);
}

TEST(VerbsFabric, OnlyTheLastOfManyShortMessagesAsksForACompletion) {
  World world;
  Machines machines(world, 2, {"rxe"});
  runFabrics(2, machines.open(options(256, 16)), [&](FabricRank& self) {
    ASSERT_TRUE(self.connected);
    EXPECT_TRUE(exchangeStreams(self, 200, 256));
  });
  // 400 messages with data, each acknowledged, and credits, most of them not: about as many, for now and then
  // one says what two would.
  EXPECT_GE(world.delivered(), 700U);
  EXPECT_LT(world.completions(), 500U);
}

TEST(VerbsFabric, RegisteredMemoryIsSentInPlaceAndRegisteredOnce) {
  World world;
  Machines machines(world, 2, {"rxe", "mlx"});
  runFabrics(2, machines.open(options(4096, 3)), [&](FabricRank& self) {
    ASSERT_TRUE(self.connected);
    Link& link = self.link(1 - self.rank);
    if (self.rank == 0) {
      const Result<void*> memory = allocateShared(1 << 16);
      ASSERT_TRUE(memory);
      auto* data = static_cast<std::byte*>(*memory);
      for (size_t i = 0; i < 1 << 16; ++i) {
        data[i] = byteOf(0, 0, i);
      }
      const size_t before = machines.libraries[0]->registrations;
      std::vector<std::byte> plain(100);
      EXPECT_FALSE(link.canReference(plain.data(), plain.size()));
      EXPECT_FALSE(link.canReference(data, 4097)) << "more than a slot";
      for (size_t i = 0; i < 30; ++i) {
        ASSERT_TRUE(link.canReference(data + i * 1001, 4096 - i));
        ASSERT_TRUE(self.waitUntil([&] {
          return link.tryPostReference(data + i * 1001, 4096 - i, numberedDigest(static_cast<int>(i)));
        }));
      }
      EXPECT_TRUE(self.waitUntil([&] { return link.drained(); }));
      EXPECT_EQ(machines.libraries[0]->registrations - before, 2U) << "one for each device";
      const int alive = world.alive();
      ASSERT_TRUE(freeShared(data));
      self.fabric->poll();
      EXPECT_EQ(world.alive(), alive - 2) << "registrations end with the memory";
    } else {
      for (size_t i = 0; i < 30; ++i) {
        Arrival arrival;
        ASSERT_TRUE(self.waitUntil([&] { return link.tryReceive(arrival); }));
        ASSERT_EQ(arrival.bytes, 4096 - i);
        for (size_t k = 0; k < arrival.bytes; ++k) {
          ASSERT_EQ(arrival.data[k], byteOf(0, 0, i * 1001 + k));
        }
        link.release();
      }
    }
    self.meet();
  });
  expectClean(world);
}

TEST(VerbsFabric, ARefusedRegistrationMeansCopying) {
  World world;
  Machines machines(world, 2, {"rxe"});
  runFabrics(2, machines.open(options()), [&](FabricRank& self) {
    ASSERT_TRUE(self.connected);
    if (self.rank == 0) {
      const Result<void*> memory = allocateShared(4096);
      ASSERT_TRUE(memory);
      auto* data = static_cast<std::byte*>(*memory);
      machines.libraries[0]->failOn("regMr", 1);
      EXPECT_FALSE(self.link(1).canReference(data, 100));
      EXPECT_TRUE(machines.libraries[0]->hasFailed());
      EXPECT_FALSE(self.link(1).canReference(data, 100)) << "the answer stays the same";
      EXPECT_FALSE(self.link(1).tryPostReference(data, 100, {}));
      ASSERT_TRUE(freeShared(data));
    }
    EXPECT_TRUE(exchangeStreams(self, 5, 1024));
  });
  expectClean(world);
}

TEST(VerbsFabric, ASleeperIsWokenByAnArrivalAndByACredit) {
  World world;
  Machines machines(world, 2, {"rxe", "mlx"});
  runFabrics(2, machines.open(options(256, 1)), [&](FabricRank& self) {
    ASSERT_TRUE(self.connected);
    Link& link = self.link(1 - self.rank);
    int timeouts = 0;
    const auto sleepUntil = [&](const std::function<bool()>& condition) {
      for (;;) {
        self.pump();
        if (condition()) {
          return;
        }
        if (!self.fabric->arm()) {
          continue;
        }
        pollfd entry{self.fabric->eventDescriptor(), POLLIN, 0};
        timeouts += ::poll(&entry, 1, kRankLimitMs) == 0 ? 1 : 0;
        ASSERT_LT(timeouts, 3);
      }
    };
    for (int number = 0; number < 200; ++number) {
      Arrival arrival;
      if (self.rank == 0) {
        sleepUntil([&] { return link.tryStage(64) != nullptr; });
        link.post(64, {});
      } else {
        sleepUntil([&] { return link.tryReceive(arrival); });
        link.release();
      }
    }
    EXPECT_EQ(timeouts, 0);
    self.meet();
  });
  expectClean(world);
}

// ---- failures ----

// Streams through whatever onMessage does; all must arrive.
void streamThrough(World& world, const std::vector<std::string>& devices, int count,
                   const verbs::Options& chosen) {
  Machines machines(world, 2, devices);
  runFabrics(2, machines.open(chosen), [&](FabricRank& self) {
    ASSERT_TRUE(self.connected) << self.connected.error().message;
    EXPECT_TRUE(exchangeStreams(self, count, chosen.fabric.slotBytes))
        << (self.fabric->fault() ? self.fabric->fault()->error.message : "the deadline passed");
    self.meet();
  });
  expectClean(world);
}

class VerbsRecovery : public ::testing::TestWithParam<Verdict::Kind> {};
INSTANTIATE_TEST_SUITE_P(Failures, VerbsRecovery, ::testing::Values(Verdict::FailBefore, Verdict::FailAfter),
                         [](const auto& row) {
                           return row.param == Verdict::FailBefore ? "BeforeArrival" : "AfterArrival";
                         });

// Every n-th message takes its queue pair along. Over many seeds, so that failures meet rebuilds.
TEST_P(VerbsRecovery, EveryMessageArrivesOnceWhateverFails) {
  for (unsigned seed = 1; seed <= 12; ++seed) {
    World world(seed);
    world.delay = seed % 2 == 0;
    int messages = 0;
    world.onMessage = [&](const WireMessage&) {
      ++messages;
      const bool fails = messages > 20 && (messages * 7 + static_cast<int>(seed)) % 41 == 0;
      return Verdict{fails ? GetParam() : Verdict::Deliver};
    };
    streamThrough(world,
                  seed % 3 == 0 ? std::vector<std::string>{"rxe"} : std::vector<std::string>{"rxe", "mlx"},
                  120, options(512, 1 + static_cast<int>(seed) % 5));
  }
}

TEST(VerbsFabric, QueuePairsDestroyedMidStreamAreRebuilt) {
  World world;
  Machines machines(world, 2, {"rxe"});
  runFabrics(2, machines.open(options(512, 3)), [&](FabricRank& self) {
    ASSERT_TRUE(self.connected);
    for (int turn = 0; turn < 10; ++turn) {
      if (self.rank == turn % 2) {
        world.breakQueuePairs(self.rank);
      }
      ASSERT_TRUE(exchangeStreams(self, 20, 512))
          << turn << ": "
          << (self.fabric->fault() ? self.fabric->fault()->error.message : "the deadline passed");
    }
    self.meet();
  });
  expectClean(world);
}

TEST(VerbsFabric, ARebuildThatFailsItselfIsTriedAgain) {
  for (const auto& [function, most] : {std::pair{"createQp", 2}, {"modifyQp", 8}, {"postRecv", 20}}) {
    for (int count = 1; count <= most; ++count) {
      World world;
      Machines machines(world, 2, {"rxe"});
      runFabrics(2, machines.open(options(512, 3)), [&](FabricRank& self) {
        ASSERT_TRUE(self.connected);
        self.meet();
        if (self.rank == 0) {
          machines.libraries[0]->failOn(function, count);
          world.breakQueuePairs(1);
        }
        ASSERT_TRUE(exchangeStreams(self, 30, 512))
            << function << " " << count << ": "
            << (self.fabric->fault() ? self.fabric->fault()->error.message : "the deadline passed");
        self.meet();
      });
      EXPECT_TRUE(machines.libraries[0]->hasFailed()) << function << " " << count << ": was not called";
      expectClean(world);
    }
  }
}

// References are read again from the user's memory.
TEST(VerbsFabric, ReferencesAreSentAgainToo) {
  World world;
  int messages = 0;
  world.onMessage = [&](const WireMessage& message) {
    return Verdict{message.bytes > 0 && ++messages % 9 == 8 ? Verdict::FailBefore : Verdict::Deliver};
  };
  Machines machines(world, 2, {"rxe", "mlx"});
  runFabrics(2, machines.open(options(1024, 3)), [&](FabricRank& self) {
    ASSERT_TRUE(self.connected);
    Link& link = self.link(1 - self.rank);
    const Result<void*> memory = allocateShared(1 << 16);
    ASSERT_TRUE(memory);
    auto* data = static_cast<std::byte*>(*memory);
    for (size_t i = 0; i < 1 << 16; ++i) {
      data[i] = byteOf(self.rank, 0, i);
    }
    size_t sent = 0;
    size_t received = 0;
    EXPECT_TRUE(self.waitUntil([&] {
      if (sent < 60 && link.tryPostReference(data + sent * 101, 1000, {})) {
        ++sent;
      }
      Arrival arrival;
      if (link.tryReceive(arrival)) {
        for (size_t k = 0; k < arrival.bytes; ++k) {
          EXPECT_EQ(arrival.data[k], byteOf(1 - self.rank, 0, received * 101 + k));
        }
        link.release();
        ++received;
      }
      return sent == 60 && received == 60 && link.drained() && self.fabric->settled();
    })) << (self.fabric->fault() ? self.fabric->fault()->error.message : "the deadline passed");
    self.meet();
    ASSERT_TRUE(freeShared(data));
  });
  expectClean(world);
}

// The first device's cable is pulled for good: what was on its way goes over the second.
TEST(VerbsFabric, ASecondRailTakesOver) {
  World world;
  Machines machines(world, 2, {"rxe", "mlx"});
  runFabrics(2, machines.open(options(512, 4)), [&](FabricRank& self) {
    ASSERT_TRUE(self.connected);
    ASSERT_TRUE(exchangeStreams(self, 20, 512));
    self.meet();
    if (self.rank == 0) {
      world.cut("rxe-0", true);
    }
    self.meet();
    const auto begin = Clock::now();
    ASSERT_TRUE(exchangeStreams(self, 300, 512))
        << (self.fabric->fault() ? self.fabric->fault()->error.message : "the deadline passed");
    EXPECT_LT(Clock::now() - begin, kAtOnce);
    EXPECT_FALSE(self.fabric->fault());
    self.meet();
  });
  expectClean(world);
}

TEST(VerbsFabric, ACableThatComesBackIsUsedAgain) {
  World world;
  Machines machines(world, 2, {"rxe"});
  runFabrics(2, machines.open(options(512, 4)), [&](FabricRank& self) {
    ASSERT_TRUE(self.connected);
    std::thread cable;
    if (self.rank == 0) {
      world.cut("rxe-0", true);
      cable = std::thread([&] {
        std::this_thread::sleep_for(std::chrono::milliseconds(200));  // how long the cable is out
        world.cut("rxe-0", false);
      });
    }
    EXPECT_TRUE(exchangeStreams(self, 100, 512))
        << (self.fabric->fault() ? self.fabric->fault()->error.message : "the deadline passed");
    if (cable.joinable()) {
      cable.join();
    }
    self.meet();
  });
  expectClean(world);
}

// A rank that is done may compute for long: the credit that it owes must not wait for queue pairs, which are
// rebuilt only while both ranks poll.
TEST(VerbsFabric, ACreditThatIsDueReachesItsPeerWhileNoQueuePairWorks) {
  World world;
  Machines machines(world, 2, {"rxe"});
  verbs::Options patient = options(256, 1);
  patient.queuePairs = 1;
  patient.mostAttempts = 1000;
  std::atomic<bool> released{false};
  runFabrics(2, machines.open(patient), [&](FabricRank& self) {
    ASSERT_TRUE(self.connected);
    Link& link = self.link(1 - self.rank);
    self.meet();
    if (self.rank == 0) {
      ASSERT_NE(link.tryStage(100), nullptr);
      link.post(100, {});
      self.meet();
      EXPECT_TRUE(self.waitUntil([&] { return link.released(1); }, 10000));
      released = true;
    } else {
      Arrival arrival;
      ASSERT_TRUE(self.waitUntil([&] { return link.tryReceive(arrival); }));
      self.meet();
      world.cut("rxe-1", true);
      link.release();
      EXPECT_FALSE(self.waitUntil([] { return false; }, 50));  // the credit has failed by now
      EXPECT_TRUE(self.waitUntil([&] { return self.fabric->settled(); }));
      const Deadline deadline = Deadline::afterMs(10000);
      while (!released && !deadline.passed()) {  // and polls no more
        std::this_thread::yield();
      }
      world.cut("rxe-1", false);
    }
    self.meet();
  });
  expectClean(world);
}

// A queue pair takes a message along when its owner leaves: the peer can know that nothing more comes.
TEST(VerbsFabric, ALinkIsOverOnceItsPeerHasLeft) {
  World world;
  std::atomic<bool> stalls{false};
  world.onMessage = [&](const WireMessage& message) {
    return Verdict{stalls && message.bytes > 0 ? Verdict::Stall : Verdict::Deliver};
  };
  Machines machines(world, 2, {"rxe"});
  verbs::Options one = options(256, 2);
  one.queuePairs = 1;
  runFabrics(2, machines.open(one), [&](FabricRank& self) {
    ASSERT_TRUE(self.connected);
    self.meet();
    EXPECT_FALSE(self.fabric->isOver(1 - self.rank));
    if (self.rank == 0) {
      stalls = true;
      ASSERT_NE(self.link(1).tryStage(100), nullptr);
      self.link(1).post(100, {});
    } else {
      EXPECT_TRUE(self.waitUntil([&] { return self.fabric->isOver(0); }));
      Arrival arrival;
      EXPECT_FALSE(self.link(0).tryReceive(arrival));
      EXPECT_FALSE(self.fabric->fault());
    }
  });
  EXPECT_EQ(world.alive(), 0);
}

TEST(VerbsFabric, LostCompletionsOfSendsAreMadeUpForByCredits) {
  World world;
  int messages = 0;
  world.onMessage = [&](const WireMessage& message) {
    return Verdict{message.bytes > 0 && ++messages % 3 == 0 ? Verdict::LoseCompletion : Verdict::Deliver};
  };
  streamThrough(world, {"rxe"}, 100, options(256, 4));
}

// A queue pair of a device that has lost its timer, at a message with data and at a credit (which asks for no
// completion). One queue pair: nothing else brings the credit.
TEST(VerbsFabric, AQueuePairThatStaysSilentIsRebuilt) {
  for (const bool atCredit : {false, true}) {
    World world;
    int messages = 0;
    world.onMessage = [&](const WireMessage& message) {
      const bool counts = message.rank == 0 && (message.bytes == 0) == atCredit;
      return Verdict{counts && ++messages == 30 ? Verdict::Stall : Verdict::Deliver};
    };
    verbs::Options impatient = options(256, 2);
    impatient.queuePairs = 1;
    impatient.silenceLimitMs = 100;
    streamThrough(world, {"rxe"}, 60, impatient);
    EXPECT_GE(messages, 30);
  }
}

TEST(VerbsFabric, AWrongKeyIsAFaultThatSaysSo) {
  World world;
  std::atomic<bool> broken{false};
  world.onMessage = [&](const WireMessage& message) {
    return Verdict{broken && message.rank == 0 && message.bytes > 0 ? Verdict::FailBefore : Verdict::Deliver,
                   IBV_WC_REM_ACCESS_ERR};
  };
  Machines machines(world, 2, {"rxe"});
  runFabrics(2, machines.open(options(256, 2)), [&](FabricRank& self) {
    ASSERT_TRUE(self.connected);
    self.meet();
    broken = true;
    EXPECT_FALSE(exchangeStreams(self, 10, 256, 10000));
    ASSERT_TRUE(self.fabric->fault());
    const std::string& text = self.fabric->fault()->error.message;
    EXPECT_EQ(self.fabric->fault()->peerRank, 1 - self.rank);
    for (const char* part :
         {"IBV_WC_REM_ACCESS_ERR", "rxe-0:1 (10.0.0.1)", "rxe-1:1 (10.0.0.2)", "PEAL_IB_DEVICES"}) {
      EXPECT_NE(text.find(part), std::string::npos) << text;
    }
  });
  EXPECT_EQ(world.alive(), 0);
}

TEST(VerbsFabric, ADeadWireIsAFaultAfterBoundedAttempts) {
  World world;
  Machines machines(world, 2, {"rxe"});
  verbs::Options chosen = options(256, 2);
  chosen.queuePairs = 1;
  runFabrics(2, machines.open(chosen), [&](FabricRank& self) {
    ASSERT_TRUE(self.connected);
    self.meet();
    world.cut("rxe-0", true);
    const auto begin = Clock::now();
    EXPECT_FALSE(exchangeStreams(self, 10, 256));
    EXPECT_LT(Clock::now() - begin, kAtOnce);
    ASSERT_TRUE(self.fabric->fault());
    const std::string& text = self.fabric->fault()->error.message;
    EXPECT_NE(text.find("IBV_WC_RETRY_EXC_ERR"), std::string::npos) << text;
    EXPECT_NE(text.find("The port here is ACTIVE"), std::string::npos) << text;
  });
  EXPECT_EQ(world.alive(), 0);
}

TEST(VerbsFabric, APingThatGetsNoAnswerNamesThePortsAndTheRemedy) {
  World world;
  world.cut("rxe-1", true);
  Machines machines(world, 2, {"rxe"});
  runFabrics(2, machines.open(options()), [&](FabricRank& self) {
    ASSERT_FALSE(self.connected);
    const std::string& text = self.connected.error().message;
    for (const char* part : {"rxe-0:1 (10.0.0.1, RoCE v2)", "rxe-1:1 (10.0.0.2, RoCE v2)",
                             "IBV_WC_RETRY_EXC_ERR", "within 1000 ms", "UDP port 4791"}) {
      EXPECT_NE(text.find(part), std::string::npos) << text;
    }
  });
  expectClean(world);
}

// With less time left than a ping may take, that is what the sentence says.
TEST(VerbsFabric, APingThatTheDeadlineCutsShortSaysHowLongItWas) {
  World world;
  world.onMessage = [](const WireMessage&) { return Verdict{Verdict::Stall}; };
  Machines machines(world, 2, {"rxe"});
  verbs::Options patient = options();
  patient.pingLimitMs = 600000;
  runFabrics(
      2, machines.open(patient),
      [&](FabricRank& self) {
        ASSERT_FALSE(self.connected);
        const std::string& text = self.connected.error().message;
        EXPECT_NE(text.find("do not carry a ping within"), std::string::npos) << text;
        EXPECT_EQ(text.find("within 600000 ms"), std::string::npos) << text;
      },
      1000);
}

TEST(VerbsFabric, RanksThatDisagreeSayOnWhat) {
  World world;
  Machines machines(world, 2, {"rxe"});
  runFabrics(
      2,
      [&](int rank) {
        return verbs::VerbsFabric::open(*machines.libraries[static_cast<size_t>(rank)],
                                        options(256, 2 + rank));
      },
      [&](FabricRank& self) {
        ASSERT_FALSE(self.connected);
        EXPECT_NE(self.connected.error().message.find("PEAL_SLOTS"), std::string::npos);
      });
  expectClean(world);
}

TEST(VerbsFabric, NotesThatMakeNoSenseAreFaults) {
  World world;
  Machines machines(world, 2, {"rxe"});
  runFabrics(2, machines.open(options()), [&](FabricRank& self) {
    ASSERT_TRUE(self.connected);
    self.meet();
    if (self.rank == 0) {
      self.fabric->onControl(1, std::vector<std::byte>(10));
      ASSERT_TRUE(self.fabric->fault());
      EXPECT_EQ(self.fabric->fault()->peerRank, 1);
    } else {
      verbs::Note note;
      note.lane = 200;
      self.fabric->onControl(0, std::as_bytes(std::span(&note, 1)));
      EXPECT_TRUE(self.fabric->fault());
    }
  });
  EXPECT_EQ(world.alive(), 0);
}

// What a rank posted before it left is read after it has.
TEST(VerbsFabric, MessagesOutliveTheirSender) {
  World world;
  world.delay = true;
  Machines machines(world, 2, {"rxe"});
  std::atomic<bool> left{false};
  runFabrics(2, machines.open(options(512, 4)), [&](FabricRank& self) {
    ASSERT_TRUE(self.connected);
    Link& link = self.link(1 - self.rank);
    Stream stream(0, 4, 512);
    if (self.rank == 0) {
      stream.send(link);
      EXPECT_TRUE(stream.done());
      self.fabric.reset();
      left = true;
    } else {
      while (!left) {
        std::this_thread::yield();
      }
      EXPECT_TRUE(self.waitUntil([&] {
        stream.receive(link);
        return stream.done();
      }));
      // Writing to nobody ends well too.
      for (int i = 0; i < 3; ++i) {
        ASSERT_NE(link.tryStage(10), nullptr);
        link.post(10, {});
      }
      self.pump();
      EXPECT_TRUE(self.fabric->settled());
      EXPECT_FALSE(self.fabric->fault());
    }
  });
  EXPECT_EQ(world.alive(), 0);
}

}  // namespace
}  // namespace peal::test
