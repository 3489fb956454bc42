// What a link is made of, counted: queue pairs and NICs that each carry their share, completion queues, and
// the size of a packet.
#include <gtest/gtest.h>

#include <map>
#include <set>
#include <thread>

#include "tests/transports/verbs/machines.h"

namespace peal::test {
namespace {

TEST(VerbsSpread, EveryQueuePairOfEveryDeviceCarriesItsShare) {
  for (const bool delay : {false, true}) {
    World world;
    world.delay = delay;
    std::map<std::pair<int, std::string>, std::map<uint32_t, int>> carried;  // by rank and device, queue pair
    world.onMessage = [&](const WireMessage& message) {
      carried[{message.rank, message.device}][message.queuePair] += message.bytes > 64 ? 1 : 0;
      return Verdict{};
    };
    Machines machines(world, 2, {"rxe", "mlx"});
    verbs::Options two = options(512, 8);
    two.queuePairs = 2;
    runFabrics(2, machines.open(two), [&](FabricRank& self) {
      ASSERT_TRUE(self.connected) << self.connected.error().message;
      EXPECT_TRUE(exchangeStreams(self, 400, 512));
      self.meet();
    });
    ASSERT_EQ(carried.size(), 4U) << "two ranks with two devices each";
    for (const auto& [where, pairs] : carried) {
      EXPECT_EQ(pairs.size(), 2U) << where.second;
      for (const auto& [number, messages] : pairs) {
        // Of 400 messages one in ten is empty, and a queue pair that is quicker gets more.
        EXPECT_GE(messages, 400 / 4 / 2) << where.second << ", queue pair " << number;
      }
    }
    expectClean(world);
  }
}

// One message at a time, answered by its credit and a message: what a short all-reduce does.
TEST(VerbsSpread, MessagesThatAlternateWithCreditsTakeAllQueuePairs) {
  World world;
  std::map<std::pair<int, uint32_t>, int> carried;  // by rank and queue pair
  world.onMessage = [&](const WireMessage& message) {
    carried[{message.rank, message.queuePair}] += message.bytes > 64 ? 1 : 0;
    return Verdict{};
  };
  Machines machines(world, 2, {"rxe"});
  verbs::Options two = options(512, 8);
  two.queuePairs = 2;
  constexpr int kMessages = 40;
  runFabrics(2, machines.open(two), [&](FabricRank& self) {
    ASSERT_TRUE(self.connected) << self.connected.error().message;
    Link& link = self.link(1 - self.rank);
    Arrival arrival;
    for (int i = 0; i < kMessages; ++i) {
      ASSERT_NE(link.tryStage(512), nullptr);
      link.post(512, Digest{});
      ASSERT_TRUE(self.waitUntil([&] { return link.tryReceive(arrival); }));
      link.release();
    }
    self.meet();
  });
  ASSERT_EQ(carried.size(), 4U) << "two ranks with two queue pairs each";
  for (const auto& [where, messages] : carried) {
    EXPECT_EQ(messages, kMessages / 2) << "rank " << where.first << ", queue pair " << where.second;
  }
  expectClean(world);
}

// Whatever the number of peers and queue pairs; and a communicator, which is used by one thread, has its own.
TEST(VerbsSpread, OneCompletionQueuePerDeviceAndCommunicator) {
  World world;
  Machines machines(world, 3, {"rxe", "mlx"});
  const auto communicate = [&] {
    runFabrics(3, machines.open(options(256, 4)), [&](FabricRank& self) {
      ASSERT_TRUE(self.connected) << self.connected.error().message;
      EXPECT_TRUE(exchangeStreams(self, 50, 256));
      self.meet();
    });
  };
  communicate();
  for (const auto& library : machines.libraries) {
    EXPECT_EQ(library->completionQueues, 2U);
  }
  std::thread other(communicate);
  communicate();
  other.join();
  for (const auto& library : machines.libraries) {
    EXPECT_EQ(library->completionQueues, 6U);
  }
  expectClean(world);
}

TEST(VerbsSpread, APathHasTheSmallerMtuOfItsEnds) {
  World world;
  std::set<std::pair<int, ibv_mtu>> seen;
  world.onMessage = [&](const WireMessage& message) {
    seen.emplace(message.rank, message.mtu);
    return Verdict{};
  };
  std::vector<std::unique_ptr<FakeVerbs>> libraries;
  for (const int rank : {0, 1}) {
    FakeDeviceSpec device = roceDevice("rxe", "10.0.0." + std::to_string(rank + 1));
    device.ports.front().mtu = rank == 0 ? IBV_MTU_4096 : IBV_MTU_1024;
    libraries.push_back(std::make_unique<FakeVerbs>(world, rank, std::vector<FakeDeviceSpec>{device}));
  }
  runFabrics(
      2, [&](int rank) { return verbs::VerbsFabric::open(*libraries[static_cast<size_t>(rank)], options()); },
      [&](FabricRank& self) {
        ASSERT_TRUE(self.connected) << self.connected.error().message;
        EXPECT_TRUE(exchangeStreams(self, 10, 1024));
        self.meet();
      });
  EXPECT_EQ(seen, (std::set<std::pair<int, ibv_mtu>>{{0, IBV_MTU_1024}, {1, IBV_MTU_1024}}));
  expectClean(world);
}

}  // namespace
}  // namespace peal::test
