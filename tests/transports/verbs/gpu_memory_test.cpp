// Memory of GPUs over the verbs fabric and the fake library: how it is registered, and what messages carry
// from one to the other, through failures too. A GPU's address is the host's with a bit that no host address
// has.
#include <gtest/gtest.h>
#include <sys/mman.h>

#include "lib/memory/descriptor.h"
#include "tests/transports/verbs/machines.h"

namespace peal::test {
namespace {

constexpr uint64_t kGpuBit = uint64_t{1} << 62;
constexpr size_t kMemoryBytes = size_t{1} << 16;
constexpr int kGpu = 3;

// What a driver would have of a GPU's memory.
class FakeGpu {
 public:
  FakeGpu() {
    Result<OwnedFd> file = createMemoryFile("gpu", kMemoryBytes);
    EXPECT_TRUE(file);
    file_ = std::move(*file);
    host_ = static_cast<std::byte*>(
        mmap(nullptr, kMemoryBytes, PROT_READ | PROT_WRITE, MAP_SHARED, file_.get(), 0));
  }
  FakeGpu(const FakeGpu&) = delete;
  FakeGpu& operator=(const FakeGpu&) = delete;
  ~FakeGpu() { munmap(host_, kMemoryBytes); }

  std::byte* host() const { return host_; }
  std::byte* address(size_t offset = 0) const {
    return reinterpret_cast<std::byte*>(reinterpret_cast<uint64_t>(host_ + offset) | kGpuBit);
  }
  // Peers write the lower half; the upper one is sent.
  GpuMemory withDmabuf() const { return {address(), kMemoryBytes, kMemoryBytes / 2, kGpu, file_.get(), ""}; }
  GpuMemory withoutDmabuf() const {
    return {address(), kMemoryBytes, kMemoryBytes / 2, kGpu, -1, "the driver is too old"};
  }

 private:
  OwnedFd file_;
  std::byte* host_ = nullptr;
};

// Ranks with two devices each, and a GPU.
struct GpuMachines {
  explicit GpuMachines(unsigned seed = 1) : world(seed), machines(world, 2, {"rxe", "mlx"}) {
    world.gpuBits = kGpuBit;
  }
  void run(int slots, const FabricBody& body) {
    runFabrics(2, machines.open(options(256, slots)), body);
    expectClean(world);
  }
  FakeVerbs& library(size_t rank) { return *machines.libraries[rank]; }
  World world;
  Machines machines;
};

using Keys = std::vector<std::byte>;

TEST(VerbsGpuMemory, ByADmabufElseAsPeerMemoryElseNotAtAll) {
  struct Row {
    bool hasDmabuf, takesDmabuf, takesPeerMemory;
    size_t dmabufs, registrations;
  };
  const Row rows[] = {{true, true, true, 4, 4},  // two halves on two devices
                      {true, false, true, 0, 4},
                      {false, true, true, 0, 4},
                      {true, false, false, 0, 0},
                      {false, true, false, 0, 0}};
  for (const Row& row : rows) {
    GpuMachines machines;
    machines.world.dmabufs = row.takesDmabuf;
    machines.world.peerMemory = row.takesPeerMemory;
    machines.run(4, [&](FabricRank& self) {
      ASSERT_TRUE(self.connected);
      if (self.rank == 0) {
        const FakeVerbs& library = machines.library(0);
        const size_t before = library.registrations;
        const int alive = machines.world.alive();
        const FakeGpu gpu;
        const Result<Keys> keys =
            self.fabric->reachGpu(row.hasDmabuf ? gpu.withDmabuf() : gpu.withoutDmabuf());
        EXPECT_EQ(library.dmabufs, row.dmabufs);
        EXPECT_EQ(library.registrations - before, row.registrations);
        if (keys) {
          EXPECT_EQ(keys->size(), 2 * sizeof(uint32_t)) << "one for each port";
        } else {
          const std::string& text = keys.error().message;
          for (const char* part : {"rxe-0", "GPU 3", "32768 bytes", "peer memory (Bad address)", "modprobe",
                                   row.hasDmabuf ? "Operation not supported" : "the driver is too old"}) {
            EXPECT_NE(text.find(part), std::string::npos) << "no \"" << part << "\" in: " << text;
          }
        }
        EXPECT_EQ(static_cast<bool>(keys), row.registrations > 0);
        self.fabric->leaveGpu();
        EXPECT_EQ(machines.world.alive(), alive) << "registrations end";
      }
      self.meet();
    });
  }
}

TEST(VerbsGpuMemory, WhatTheSecondHalfOrDeviceRefusesTheFirstForgets) {
  GpuMachines machines;
  machines.world.peerMemory = false;
  machines.run(4, [&](FabricRank& self) {
    ASSERT_TRUE(self.connected);
    for (int call = 2; self.rank == 0 && call <= 4; ++call) {
      const FakeGpu gpu;
      const int alive = machines.world.alive();
      machines.library(0).failOn("regDmabufMr", call);
      const Result<Keys> keys = self.fabric->reachGpu(gpu.withDmabuf());
      ASSERT_FALSE(keys);
      EXPECT_NE(keys.error().message.find(call == 2 ? "rxe-0" : "mlx-0"), std::string::npos)
          << keys.error().message;
      EXPECT_EQ(machines.world.alive(), alive);
    }
    self.meet();
  });
}

// ---- what messages carry ----

// Both ranks reach each other's GPU.
struct CarryingRank {
  explicit CarryingRank(FabricRank& fabricRank, uint32_t wrongBy = 0)
      : self(fabricRank), keyOffset(wrongBy) {}
  void begin() {
    const Result<Keys> mine = self.fabric->reachGpu(gpu.withDmabuf());
    ASSERT_TRUE(mine) << mine.error().message;
    Keys card = *mine;
    const auto* const address = reinterpret_cast<const std::byte*>(&address_);
    address_ = reinterpret_cast<uint64_t>(gpu.address());
    card.insert(card.end(), address, address + sizeof address_);
    const Result<std::vector<Keys>> all = self.exchange.allGather(card);
    ASSERT_TRUE(all);
    Keys theirs = (*all)[static_cast<size_t>(1 - self.rank)];
    std::memcpy(&peerAddress, theirs.data() + theirs.size() - sizeof peerAddress, sizeof peerAddress);
    theirs.resize(theirs.size() - sizeof peerAddress);
    EXPECT_FALSE(self.fabric->peerGpu(1 - self.rank, Keys(theirs.begin(), theirs.begin() + 4)))
        << "keys for one port of two";
    for (size_t at = 0; at < theirs.size(); at += sizeof(uint32_t)) {
      uint32_t key = 0;
      std::memcpy(&key, theirs.data() + at, sizeof key);
      key += keyOffset;
      std::memcpy(theirs.data() + at, &key, sizeof key);
    }
    ASSERT_TRUE(self.fabric->peerGpu(1 - self.rank, theirs));
  }
  FabricRank& self;
  const uint32_t keyOffset;  // added to the keys that the peer gave
  FakeGpu gpu;
  uint64_t peerAddress = 0;

 private:
  uint64_t address_ = 0;
};

// `count` messages each way; message n goes from slot n % slots of the upper half to that of the peer's lower
// one.
bool exchangeCarried(CarryingRank& rank, int count, int slots) {
  FabricRank& self = rank.self;
  Link& link = self.link(1 - self.rank);
  const size_t slotBytes = kMemoryBytes / 2 / static_cast<size_t>(slots);
  const auto slotOf = [&](int number) { return static_cast<size_t>(number % slots) * slotBytes; };
  const auto bytesOf = [&](int number) {
    const size_t sizes[] = {slotBytes, 0, 1, 63, 997};
    return std::min(sizes[number % 5], slotBytes);
  };
  int sent = 0;
  int received = 0;
  return self.waitUntil([&] {
    while (sent < count && link.tryStage(8) != nullptr) {
      const size_t from = kMemoryBytes / 2 + slotOf(sent);
      for (size_t i = 0; i < bytesOf(sent); ++i) {
        rank.gpu.host()[from + i] = byteOf(self.rank, sent, i);
      }
      std::memcpy(link.tryStage(8), &sent, sizeof sent);
      if (!link.tryPostCarrying(8, numberedDigest(sent),
                                {rank.gpu.address(from), bytesOf(sent), rank.peerAddress + slotOf(sent)})) {
        break;
      }
      ++sent;
    }
    Arrival arrival;
    while (received < count && link.tryReceive(arrival)) {
      EXPECT_EQ(arrival.bytes, 8U);
      EXPECT_EQ(arrival.digest, numberedDigest(received));
      size_t wrong = 0;
      for (size_t i = 0; i < bytesOf(received); ++i) {
        wrong += rank.gpu.host()[slotOf(received) + i] != byteOf(1 - self.rank, received, i) ? 1 : 0;
      }
      EXPECT_EQ(wrong, 0U) << "message " << received;
      link.release();
      ++received;
    }
    return sent == count && received == count && self.fabric->settled();
  });
}

void carryThrough(GpuMachines& machines, int count, int slots) {
  machines.run(slots, [&](FabricRank& self) {
    ASSERT_TRUE(self.connected);
    CarryingRank rank(self);
    rank.begin();
    EXPECT_TRUE(exchangeCarried(rank, count, slots))
        << (self.fabric->fault() ? self.fabric->fault()->error.message : "the deadline passed");
    self.meet();
    self.fabric->leaveGpu();
  });
}

TEST(VerbsGpuMemory, WhatAMessageCarriesIsThereWhenItArrives) {
  for (const int slots : {1, 3, 8}) {
    GpuMachines machines(static_cast<unsigned>(slots));
    machines.world.delay = slots != 3;
    carryThrough(machines, 100, slots);
  }
}

class VerbsCarriedRecovery : public ::testing::TestWithParam<Verdict::Kind> {};
INSTANTIATE_TEST_SUITE_P(Failures, VerbsCarriedRecovery,
                         ::testing::Values(Verdict::FailBefore, Verdict::FailAfter), [](const auto& row) {
                           return row.param == Verdict::FailBefore ? "BeforeArrival" : "AfterArrival";
                         });

TEST_P(VerbsCarriedRecovery, ItIsSentAgainWithItsMessage) {
  for (unsigned seed = 1; seed <= 6; ++seed) {
    GpuMachines machines(seed);
    machines.world.delay = seed % 2 == 0;
    int messages = 0;
    machines.world.onMessage = [&](const WireMessage&) {
      ++messages;
      const bool fails = messages > 20 && (messages * 7 + static_cast<int>(seed)) % 41 == 0;
      return Verdict{fails ? GetParam() : Verdict::Deliver};
    };
    carryThrough(machines, 80, 1 + static_cast<int>(seed) % 5);
  }
}

// Also that of the message after what it carries.
TEST(VerbsGpuMemory, ARequestThatIsNotTakenIsMadeUpFor) {
  for (int count = 20; count < 32; ++count) {
    GpuMachines machines(static_cast<unsigned>(count));
    machines.world.delay = count % 2 == 0;
    machines.library(0).failOn("postSend", count);
    carryThrough(machines, 40, 3);
    EXPECT_TRUE(machines.library(0).hasFailed());
  }
}

// Neither beyond the end nor what peers write.
TEST(VerbsGpuMemory, OnlyWhatTheDevicesMaySendIsCarried) {
  for (const size_t end : {kMemoryBytes, kMemoryBytes / 2}) {
    GpuMachines machines;
    machines.run(2, [&](FabricRank& self) {
      ASSERT_TRUE(self.connected);
      CarryingRank rank(self);
      rank.begin();
      if (self.rank == 0) {
        Link& link = self.link(1);
        ASSERT_NE(link.tryStage(8), nullptr);
        EXPECT_FALSE(link.tryPostCarrying(8, {}, {rank.gpu.address(end - 10), 11, rank.peerAddress}));
        ASSERT_TRUE(self.fabric->fault());
        EXPECT_NE(self.fabric->fault()->error.message.find("11 bytes"), std::string::npos);
        ++self.board.arrived;
      } else {
        EXPECT_TRUE(self.waitUntil([&] { return self.board.arrived.load() > 0; }));
      }
      self.fabric->leaveGpu();
    });
  }
}

// A peer that writes elsewhere than it was told: over the place's end, where only this rank's devices read,
// or there with the key of that part, which nobody gave it (the fake library counts its keys).
TEST(VerbsGpuMemory, WhatIsOnlySentNoPeerWrites) {
  struct Row {
    size_t at;
    uint32_t keyOffset;
  };
  for (const Row& row : {Row{kMemoryBytes / 2 - 7, 0}, Row{kMemoryBytes - 8, 0}, Row{kMemoryBytes - 8, 1}}) {
    GpuMachines machines;
    machines.run(2, [&](FabricRank& self) {
      ASSERT_TRUE(self.connected);
      CarryingRank rank(self, row.keyOffset);
      rank.begin();
      std::fill(rank.gpu.host(), rank.gpu.host() + kMemoryBytes, static_cast<std::byte>(self.rank));
      ASSERT_TRUE(self.exchange.allGather({}));
      if (self.rank == 0) {
        Link& link = self.link(1);
        ASSERT_NE(link.tryStage(8), nullptr);
        ASSERT_TRUE(
            link.tryPostCarrying(8, {}, {rank.gpu.address(kMemoryBytes / 2), 8, rank.peerAddress + row.at}));
      }
      EXPECT_FALSE(self.waitUntil([] { return false; }));
      ASSERT_TRUE(self.fabric->fault());
      EXPECT_NE(self.fabric->fault()->error.message.find("is lost"), std::string::npos);
      EXPECT_EQ(
          std::count(rank.gpu.host(), rank.gpu.host() + kMemoryBytes, static_cast<std::byte>(self.rank)),
          static_cast<std::ptrdiff_t>(kMemoryBytes));
      self.fabric->leaveGpu();
    });
  }
}

}  // namespace
}  // namespace peal::test
