// The verbs fabric over the real libibverbs and soft-RoCE, in the virtual machine of rdma-vm. Function only:
// its speed says nothing, and its waits are long since the emulated processors may be slow.
//
// rxe0 and rxe1 are the ends of one cable, on which packets can be lost; what a device sends to itself never
// leaves it.
#include <gtest/gtest.h>
#include <poll.h>

#include <cstdlib>
#include <optional>

#include "lib/memory/registry.h"
#include "tests/rdma/tapped_library.h"
#include "tests/transports/verbs/ranks.h"

namespace peal::test {
namespace {

constexpr size_t kSlotBytes = 16384;

void command(const std::string& text) { EXPECT_EQ(std::system(text.c_str()), 0) << text; }

std::string faultOf(const FabricRank& self) {
  return self.fabric->fault() ? self.fabric->fault()->error.message : "the deadline passed";
}

class Rdma : public ::testing::Test {
 protected:
  Rdma() {
    for (int rank = 0; rank < 2; ++rank) {
      const Result<verbs::Library*> real = verbs::systemLibrary();
      EXPECT_TRUE(real) << real.error().message;
      libraries_.push_back(std::make_unique<TappedLibrary>(**real));
    }
  }
  // Two ranks; each uses the devices that its pattern selects.
  void run(const std::vector<std::string>& devices, const FabricBody& body,
           const verbs::Options& chosen = verbs::Options()) {
    runFabrics(
        2,
        [&](int rank) {
          verbs::Options options = chosen;
          options.fabric = {kSlotBytes, 4};
          options.devices = devices[static_cast<size_t>(rank)];
          return verbs::VerbsFabric::open(library(rank), options);
        },
        body);
  }
  TappedLibrary& library(int rank) { return *libraries_[static_cast<size_t>(rank)]; }

 private:
  std::vector<std::unique_ptr<TappedLibrary>> libraries_;
};

TEST_F(Rdma, DevicesAreFoundWithTheirAddresses) {
  const Result<std::vector<VerbsPort>> ports = probeVerbs();
  ASSERT_TRUE(ports) << ports.error().message;
  ASSERT_EQ(ports->size(), 2U);
  for (const VerbsPort& port : *ports) {
    EXPECT_EQ(port.unused, "") << port.device;
    EXPECT_EQ(port.state, "ACTIVE");
    EXPECT_EQ(port.link, "Ethernet");
    EXPECT_EQ(port.mtuBytes, 4096);
    EXPECT_EQ(port.address, port.device == "rxe0" ? "10.77.0.1 (RoCE v2)" : "10.77.0.2 (RoCE v2)");
  }
}

TEST_F(Rdma, MessagesOfOddSizesOverOneDevice) {
  run({"rxe0", "rxe0"}, [](FabricRank& self) {
    ASSERT_TRUE(self.connected) << self.connected.error().message;
    EXPECT_TRUE(exchangeStreams(self, 100, kSlotBytes)) << faultOf(self);
  });
}

TEST_F(Rdma, MessagesFromOneDeviceToAnother) {
  run({"rxe0", "rxe1"}, [](FabricRank& self) {
    ASSERT_TRUE(self.connected) << self.connected.error().message;
    EXPECT_TRUE(exchangeStreams(self, 100, kSlotBytes)) << faultOf(self);
  });
}

TEST_F(Rdma, MessagesTakeTurnsOverTwoDevices) {
  run({"", ""}, [this](FabricRank& self) {
    ASSERT_TRUE(self.connected) << self.connected.error().message;
    EXPECT_TRUE(exchangeStreams(self, 100, kSlotBytes)) << faultOf(self);
    for (const char* device : {"rxe0", "rxe1"}) {
      EXPECT_GE(library(self.rank).postsOn(device), 40) << device << " of 100 messages";
    }
  });
}

TEST_F(Rdma, RegisteredMemoryIsSentInPlace) {
  run({"rxe0", "rxe1"}, [](FabricRank& self) {
    ASSERT_TRUE(self.connected) << self.connected.error().message;
    constexpr size_t kBytes = size_t{1} << 20;
    constexpr int kMessages = 40;
    Link& link = self.link(1 - self.rank);
    const Result<void*> memory = allocateShared(kBytes);
    ASSERT_TRUE(memory);
    auto* data = static_cast<std::byte*>(*memory);
    for (size_t i = 0; i < kBytes; ++i) {
      data[i] = byteOf(self.rank, 7, i);
    }
    int sent = 0;
    int received = 0;
    EXPECT_TRUE(self.waitUntil([&] {
      const size_t at = static_cast<size_t>(sent) * 10007;
      if (sent < kMessages && link.tryPostReference(data + at, kSlotBytes - static_cast<size_t>(sent), {})) {
        ++sent;
      }
      Arrival arrival;
      if (link.tryReceive(arrival)) {
        EXPECT_EQ(arrival.bytes, kSlotBytes - static_cast<size_t>(received));
        size_t wrong = 0;
        for (size_t k = 0; k < arrival.bytes; ++k) {
          wrong +=
              arrival.data[k] != byteOf(1 - self.rank, 7, static_cast<size_t>(received) * 10007 + k) ? 1 : 0;
        }
        EXPECT_EQ(wrong, 0U) << "message " << received;
        link.release();
        ++received;
      }
      return sent == kMessages && received == kMessages && link.drained() && self.fabric->settled();
    })) << faultOf(self);
    self.meet();
    ASSERT_TRUE(freeShared(data));
  });
}

TEST_F(Rdma, SleepersAreWoken) {
  run({"rxe0", "rxe1"}, [](FabricRank& self) {
    ASSERT_TRUE(self.connected) << self.connected.error().message;
    Link& link = self.link(1 - self.rank);
    int timeouts = 0;
    for (int number = 0; number < 50; ++number) {
      Arrival arrival;
      bool done = false;
      while (!done && timeouts < 3) {
        self.pump();
        if (self.rank == 0 && link.tryStage(64) != nullptr && link.released(link.posted())) {
          link.post(64, {});
          done = true;
        } else if (self.rank == 1 && link.tryReceive(arrival)) {
          link.release();
          done = true;
        } else if (self.fabric->arm()) {
          pollfd entry{self.fabric->eventDescriptor(), POLLIN, 0};
          timeouts += ::poll(&entry, 1, 10000) == 0 ? 1 : 0;
        }
      }
    }
    EXPECT_EQ(timeouts, 0);
    self.meet();
  });
}

TEST_F(Rdma, LostPacketsAreSentAgain) {
  command("tc qdisc add dev va root netem loss 3% && tc qdisc add dev vb root netem loss 3%");
  run({"rxe0", "rxe1"}, [](FabricRank& self) {
    ASSERT_TRUE(self.connected) << self.connected.error().message;
    EXPECT_TRUE(exchangeStreams(self, 60, kSlotBytes, 60000)) << faultOf(self);
    self.meet();
  });
  command("(tc -s qdisc show dev va; tc -s qdisc show dev vb) | grep -q 'dropped [1-9]'");
  command("tc qdisc del dev va root && tc qdisc del dev vb root");
}

TEST_F(Rdma, QueuePairsDestroyedMidStreamAreRebuilt) {
  run({"rxe0", "rxe1"}, [this](FabricRank& self) {
    ASSERT_TRUE(self.connected) << self.connected.error().message;
    TappedLibrary& mine = library(self.rank);
    for (int turn = 0; turn < 4; ++turn) {
      self.meet();
      const int before = mine.made();
      if (self.rank == turn % 2) {
        mine.afterPosts(5 + 10 * turn, [&] { mine.breakQueuePairs(); });
      }
      EXPECT_TRUE(exchangeStreams(self, 60, kSlotBytes)) << turn << ": " << faultOf(self);
      EXPECT_GT(mine.made(), before) << turn << ": no queue pair was made anew";
    }
    self.meet();
  });
}

TEST_F(Rdma, AWrongKeyOnceIsRecoveredFrom) {
  run({"rxe0", "rxe1"}, [this](FabricRank& self) {
    ASSERT_TRUE(self.connected) << self.connected.error().message;
    self.meet();
    if (self.rank == 0) {
      library(0).falsify = 1;
    }
    EXPECT_TRUE(exchangeStreams(self, 40, kSlotBytes)) << faultOf(self);
    EXPECT_EQ(library(0).falsify, 0);
    self.meet();
  });
}

TEST_F(Rdma, WrongKeysForEverAreAFaultThatSaysSo) {
  run({"rxe0", "rxe1"}, [this](FabricRank& self) {
    ASSERT_TRUE(self.connected) << self.connected.error().message;
    self.meet();
    if (self.rank == 0) {
      library(0).falsify = 1 << 30;
    }
    EXPECT_FALSE(exchangeStreams(self, 10, kSlotBytes));
    ASSERT_TRUE(self.fabric->fault());
    EXPECT_EQ(self.fabric->fault()->peerRank, 1 - self.rank);
    if (self.rank == 0) {
      EXPECT_NE(faultOf(self).find("rxe0:1 (10.77.0.1) to rank 1 on rxe1:1 (10.77.0.2)"), std::string::npos)
          << faultOf(self);
      EXPECT_NE(faultOf(self).find("IBV_WC_REM_ACCESS_ERR"), std::string::npos) << faultOf(self);
    }
  });
}

// Soft-RoCE waits for its link by itself, but now and then loses the timer of a queue pair over it: then that
// is made anew after some seconds of silence.
TEST_F(Rdma, ALinkThatIsDownForASecondIsWaitedFor) {
  const auto body = [this](FabricRank& self) {
    ASSERT_TRUE(self.connected) << self.connected.error().message;
    self.meet();
    std::thread administrator;
    std::optional<Clock::time_point> down;
    if (self.rank == 0) {
      library(0).afterPosts(30, [&] {
        command("ip link set va down");
        down = Clock::now();
        administrator = std::thread([] {
          std::this_thread::sleep_for(std::chrono::seconds(1));  // how long the link is down
          command("rdma-network up");
        });
      });
    }
    EXPECT_TRUE(exchangeStreams(self, 100, kSlotBytes, 60000)) << faultOf(self);
    if (self.rank == 0) {
      ASSERT_TRUE(down);
      EXPECT_GE(Clock::now() - *down, std::chrono::seconds(1)) << "the messages went another way";
      administrator.join();
    }
    self.meet();
  };
  verbs::Options patient;
  patient.silenceLimitMs = 2500;
  patient.mostAttempts = 40;  // on a busy machine the link needs long to come up again
  run({"rxe0", "rxe1"}, body, patient);
}

TEST_F(Rdma, TheOtherDeviceTakesOver) {
  run({"", ""}, [this](FabricRank& self) {
    ASSERT_TRUE(self.connected) << self.connected.error().message;
    self.meet();
    library(self.rank).refuse = "rxe1";  // what fails there cannot be made anew
    const int before = library(self.rank).made();
    if (self.rank == 0) {
      library(0).afterPosts(20, [this] { library(0).breakQueuePairs(); });
    }
    EXPECT_TRUE(exchangeStreams(self, 60, kSlotBytes)) << faultOf(self);
    EXPECT_GT(library(self.rank).made(), before) << "no queue pair was made anew";
    EXPECT_FALSE(self.fabric->fault());
    self.meet();
  });
}

TEST_F(Rdma, APingThatGetsNoAnswerIsASentence) {
  command("tc qdisc add dev va root netem loss 100%");
  run({"rxe0", "rxe1"}, [](FabricRank& self) {
    ASSERT_FALSE(self.connected);
    const std::string& text = self.connected.error().message;
    for (const char* part :
         {"rxe0:1 (10.77.0.1, RoCE v2)", "rxe1:1 (10.77.0.2, RoCE v2)", "within 2000 ms"}) {
      EXPECT_NE(text.find(part), std::string::npos) << text;
    }
  });
  command("tc qdisc del dev va root");
}

TEST_F(Rdma, APatternThatMatchesNothingListsWhatExists) {
  verbs::Options options;
  options.devices = "mlx5";
  const Result<std::unique_ptr<Fabric>> fabric = verbs::VerbsFabric::open(library(0), options);
  ASSERT_FALSE(fabric);
  for (const char* part : {"rxe0:1", "rxe1:1", "PEAL_IB_DEVICES=\"mlx5\""}) {
    EXPECT_NE(fabric.error().message.find(part), std::string::npos) << fabric.error().message;
  }
}

}  // namespace
}  // namespace peal::test
