// The proxy with its slots in memory of simulated GPUs, which the devices of a fake libibverbs read and
// write: what a kernel posts reaches the peer's kernel, by a dmabuf or as peer memory; where neither is to be
// had all go through host memory; failures on the way.
#include <dirent.h>

#include <deque>
#include <mutex>

#include "tests/cuda/proxy_calls.h"
#include "tests/cuda/proxy_links.h"
#include "tests/cudasim/core/memory.h"
#include "tests/transports/transports.h"
#include "tests/transports/verbs/fake.h"
#include "transports/verbs/fabric.h"
#include "transports/verbs/wire.h"

namespace peal::cuda::test {
namespace {

using peal::test::FakeVerbs;
using peal::test::roceDevice;
using peal::test::Verdict;
using peal::test::WireMessage;

// Network devices of all ranks, and what goes over the wire.
struct Wire {
  explicit Wire(unsigned seed = 1) : world(seed) {
    world.gpuBits = cudasim::kTag;
    world.delay = true;
    world.onMessage = [this](const WireMessage& message) {
      carried += message.opcode == IBV_WR_RDMA_WRITE ? 1 : 0;
      longest = std::max(longest, message.opcode == IBV_WR_RDMA_WRITE ? 0 : message.bytes);
      return onMessage ? onMessage(message) : Verdict{};
    };
  }
  std::unique_ptr<Endpoint> connect(Exchange& exchange, size_t slotBytes, int slots) {
    const int rank = exchange.rank();
    const FabricCandidate fabric{"verbs", [this, rank](const FabricOptions& options) {
                                   return verbs::VerbsFabric::open(library(rank), optionsFor(options));
                                 }};
    Result<std::unique_ptr<Endpoint>> endpoint =
        peal::test::connectOver(fabric, exchange, {.slotBytes = slotBytes, .slots = slots});
    EXPECT_TRUE(endpoint) << endpoint.error().message;
    return endpoint ? std::move(*endpoint) : nullptr;
  }
  static verbs::Options optionsFor(const FabricOptions& fabric) {
    verbs::Options options;
    options.fabric = fabric;
    options.firstPauseMs = 5;
    return options;
  }
  FakeVerbs& library(int rank) {
    const std::lock_guard lock(mutex);
    const std::string last = std::to_string(rank + 1);
    return libraries.emplace_back(
        world, rank,
        std::vector<peal::test::FakeDeviceSpec>{roceDevice("rxe" + last, "10.0.0." + last),
                                                roceDevice("mlx" + last, "10.0.1." + last)});
  }
  size_t dmabufs() const {
    size_t sum = 0;
    for (const FakeVerbs& library : libraries) {
      sum += library.dmabufs;
    }
    return sum;
  }

  peal::test::World world;
  std::function<Verdict(const WireMessage&)> onMessage;
  std::mutex mutex;  // guards libraries
  std::deque<FakeVerbs> libraries;
  size_t carried = 0;  // guarded by the world's lock, as `longest`
  size_t longest = 0;  // of the messages beside them
};

// Of a message of the link that is no more than a proxy's header behind the fabric's.
constexpr size_t kHeadersBytes = 256;

size_t openFiles() {
  size_t count = 0;
  DIR* const folder = opendir("/proc/self/fd");
  while (readdir(folder) != nullptr) {
    ++count;
  }
  closedir(folder);
  return count;
}

ProxyTest over(Wire& wire, int ranks, GpuDirect wish = GpuDirect::On) {
  ProxyTest test{.ranks = ranks};
  test.connect = [&wire](Exchange& exchange, size_t slotBytes, int slots) {
    return wire.connect(exchange, slotBytes, slots);
  };
  test.direct = wish;
  return test;
}

// Collectives, and nothing is left behind.
void runOver(Wire& wire, const ProxyTest& test, const std::vector<size_t>& counts) {
  const size_t files = openFiles();
  runProxyRanks(test, [&](ProxyRank& self) {
    runCollectives(self, counts);
    self.meet();
  });
  EXPECT_EQ(wire.world.alive(), 0) << "objects of libibverbs were left behind";
  EXPECT_EQ(wire.world.violations(), 0);
  EXPECT_EQ(openFiles(), files) << "descriptors were left behind";
}

TEST(ProxyGpuDirect, PayloadsGoFromOneGpuToTheOther) {
  for (const int ranks : {2, 3}) {
    for (const bool dmabuf : {true, false}) {
      Wire wire;
      ProxyTest test = over(wire, ranks);
      test.machine.dmabuf = dmabuf;
      runOver(wire, test, {0, 1, 1009});
      EXPECT_GT(wire.carried, 50U);
      EXPECT_LT(wire.longest, kHeadersBytes) << "a payload went through host memory";
      EXPECT_EQ(wire.dmabufs() > 0, dmabuf);
    }
  }
}

TEST(ProxyGpuDirect, AsPeerMemoryWhereDevicesTakeNoDmabufs) {
  Wire wire;
  wire.world.dmabufs = false;
  runOver(wire, over(wire, 2), {700});
  EXPECT_LT(wire.longest, kHeadersBytes);
}

TEST(ProxyGpuDirect, ThroughHostMemoryWhereARankHasNoWay) {
  for (const GpuDirect wish : {GpuDirect::Auto, GpuDirect::Off}) {
    Wire wire;
    wire.world.dmabufs = wire.world.peerMemory = false;
    const ProxyTest test = over(wire, 2, wish);
    runProxyRanks(test, [&](ProxyRank& self) {
      const char* const reason = wish == GpuDirect::Off ? "PEAL_GPU_DIRECT=off" : "modprobe nvidia-peermem";
      EXPECT_NE(self.whyNotDirect().find(reason), std::string::npos) << self.whyNotDirect();
      runCollectives(self, {700});
      self.meet();
    });
    EXPECT_EQ(wire.carried, 0U);
    EXPECT_GT(wire.longest, kHeadersBytes);
    EXPECT_EQ(wire.world.alive(), 0);
  }
}

TEST(ProxyGpuDirect, NetworksThatDoNotReachGpusSayIt) {
  ProxyTest test{.ranks = 2};
  test.direct = GpuDirect::Auto;
  runProxyRanks(test, [](ProxyRank& self) {
    EXPECT_NE(self.whyNotDirect().find("does not reach memory of GPUs"), std::string::npos);
    runCollectives(self, {700});
  });
}

// What is written to them before a message is seen only after a flush.
TEST(ProxyGpuDirect, GpusThatDoNotOrderWritesAreFlushed) {
  Wire wire;
  wire.world.holdGpuWrites = true;
  ProxyTest test = over(wire, 2);
  test.machine.flushWrites = [&wire](int) { wire.world.flushGpu(); };
  runOver(wire, test, {1, 1009});
  EXPECT_LT(wire.longest, kHeadersBytes);
}

TEST(ProxyGpuDirect, GpusThatNeitherOrderNorFlushAreLeftAlone) {
  Wire wire;
  ProxyTest test = over(wire, 2, GpuDirect::Auto);
  test.machine.canFlushWrites = false;
  runProxyRanks(test, [](ProxyRank& self) {
    EXPECT_NE(self.whyNotDirect().find("neither orders"), std::string::npos) << self.whyNotDirect();
    runCollectives(self, {700});
    self.meet();
  });
}

// The trial: what was sent is not what lies there.
TEST(ProxyGpuDirect, APathThatLosesWritesIsNotTaken) {
  Wire wire;
  wire.world.holdGpuWrites = true;  // and the GPU says that it needs no flush
  runProxyRanks(over(wire, 2, GpuDirect::Auto), [](ProxyRank& self) {
    EXPECT_NE(self.whyNotDirect().find("is not what lies there"), std::string::npos) << self.whyNotDirect();
    runCollectives(self, {700});
    self.meet();
  });
}

// So would a PCIe bridge that does not forward them: the queue pairs fail until the links are given up. One
// rank's are refused, or all.
Verdict refuseWrites(const WireMessage& message, bool onAll) {
  const bool isRefused = message.opcode == IBV_WR_RDMA_WRITE && (onAll || message.rank == 1);
  return {isRefused ? Verdict::FailBefore : Verdict::Deliver, IBV_WC_REM_ACCESS_ERR};
}

TEST(ProxyGpuDirect, APathThatRefusesWritesIsLeftForHostMemoryByAll) {
  for (const bool onAll : {true, false}) {
    Wire wire;
    wire.onMessage = [&](const WireMessage& message) { return refuseWrites(message, onAll); };
    const size_t files = openFiles();
    runProxyRanks(over(wire, 3, GpuDirect::Auto), [](ProxyRank& self) {
      EXPECT_NE(self.whyNotDirect().find("IBV_WC_REM_ACCESS_ERR"), std::string::npos) << self.whyNotDirect();
      runCollectives(self, {700});
      self.meet();
    });
    EXPECT_GT(wire.longest, kHeadersBytes);
    EXPECT_EQ(wire.world.alive(), 0);
    EXPECT_EQ(wire.world.violations(), 0);
    EXPECT_EQ(openFiles(), files);
  }
}

// A rank that has all and leaves the trial must not leave a peer behind that waits for a credit which is lost
// on the way, or whose own is: both make the queue pair anew. The first credit of either rank, or the second.
TEST(ProxyGpuDirect, NobodyLeavesTheTrialBeforeItsPeersCan) {
  for (unsigned seed = 1; seed <= 16; ++seed) {
    Wire wire(seed);
    bool hasFailed = false;
    unsigned credits = 0;
    wire.onMessage = [&](const WireMessage& message) {
      const bool isCredit =
          message.opcode == IBV_WR_SEND_WITH_IMM && verbs::kindOf(message.immediate) == verbs::Kind::Credit;
      credits += isCredit && message.rank == static_cast<int>(seed % 2) ? 1 : 0;
      const bool fails = credits == 1 + seed / 2 % 2 && !hasFailed;
      hasFailed = hasFailed || fails;
      return Verdict{fails ? Verdict::FailBefore : Verdict::Deliver};
    };
    runOver(wire, over(wire, 2), {1});
    EXPECT_TRUE(hasFailed);
    ASSERT_FALSE(HasFailure());
  }
}

// Nor one whose last message has arrived and is not confirmed: who has it has all, and its queue pair is
// still needed.
TEST(ProxyGpuDirect, WhoHasTriedAllMovesTheNetworkOnForTheOthers) {
  for (unsigned seed = 1; seed <= 12; ++seed) {
    Wire wire(seed);
    int ofTheTrial = 0;  // messages of a rank after its first write
    wire.onMessage = [&](const WireMessage& message) {
      const bool isMine = message.rank == static_cast<int>(seed % 2);
      const bool isLinks = isMine && message.opcode == IBV_WR_RDMA_WRITE_WITH_IMM && wire.carried > 0;
      ofTheTrial += isLinks ? 1 : 0;
      return Verdict{isLinks && ofTheTrial == 2 ? Verdict::FailAfter : Verdict::Deliver};
    };
    runProxyRanks(over(wire, 2), [](ProxyRank& self) { self.meet(); });
    EXPECT_GE(ofTheTrial, 2);
    ASSERT_FALSE(HasFailure());
  }
}

TEST(ProxyGpuDirect, QueuePairsThatFailUnderWayAreMadeUpFor) {
  for (const Verdict::Kind kind : {Verdict::FailBefore, Verdict::FailAfter}) {
    Wire wire;
    int messages = 0;
    int failed = 0;
    wire.onMessage = [&](const WireMessage&) {
      const bool fails = ++messages % 47 == 0;
      failed += fails ? 1 : 0;
      return Verdict{fails ? kind : Verdict::Deliver};
    };
    runOver(wire, over(wire, 2), {1009});
    EXPECT_GT(failed, 2);
  }
}

TEST(ProxyGpuDirect, BelievesNothingThatAPeerSends) {
  struct Lie {
    size_t offset;
    uint64_t value;
    const char* sentence;
  };
  for (const Lie& lie : {Lie{8, 2, "message 2 after 0"}, Lie{64, 1 << 20, "at address 0x100000"},
                         Lie{72, 4096, "for a message of 4096 bytes"}}) {
    Wire wire;
    ProxyTest test = over(wire, 2);
    test.wrap = [&lie](int rank, std::unique_ptr<Endpoint> inner) -> std::unique_ptr<Endpoint> {
      OddLink::Behaviour behaviour;
      if (rank == 1) {
        behaviour.alter = [&lie](std::byte* message, size_t) {
          std::memcpy(message + lie.offset, &lie.value, sizeof lie.value);
        };
      }
      return std::make_unique<OddEndpoint>(std::move(inner), rank, 2, behaviour);
    };
    runProxyRanks(test, [&lie](ProxyRank& self) { expectFault(self, lie.sentence, 1); });
  }
}

// ---- agreeing ----

using Placed = Result<std::optional<ProxySlots>>;

// What placeSlots says on each of two ranks, after "error: " where it is one; the network and the slots end.
std::vector<std::string> place(Wire& wire, const std::function<GpuDirect(int rank)>& wish) {
  ExchangeBoard board(2);
  std::vector<std::string> said(2);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      BoardExchange exchange(board, rank);
      const auto connect = [&] { return Result<std::unique_ptr<Endpoint>>(wire.connect(exchange, 2048, 2)); };
      std::unique_ptr<Endpoint> network = wire.connect(exchange, 2048, 2);
      ProxyOptions options;
      options.rank = options.device = rank;
      options.shape = ProxyTest{}.shape;
      std::string why;
      const Placed placed = placeSlots(exchange, network, {1 - rank}, options,
                                       {wish(rank), Deadline::afterMs(kLimitMs), connect}, why);
      said[static_cast<size_t>(rank)] = placed ? why : "error: " + placed.error().message;
      EXPECT_EQ(placed && *placed, placed && why.empty());
      EXPECT_TRUE(exchange.allGather({}));
      if (network != nullptr) {
        network->leaveGpu();
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  EXPECT_EQ(cudasim::liveObjects(), std::vector<std::string>{});
  EXPECT_EQ(wire.world.alive(), 0);
  return said;
}

TEST(ProxyGpuDirect, RanksWantTheSame) {
  cudasim::restart();
  Wire wire;
  for (const std::string& said :
       place(wire, [](int rank) { return rank == 0 ? GpuDirect::Auto : GpuDirect::Off; })) {
    EXPECT_NE(said.find("rank 0 has PEAL_GPU_DIRECT=auto and rank 1 off"), std::string::npos) << said;
  }
}

TEST(ProxyGpuDirect, WhatIsWantedAndCannotBeIsAnErrorOnAll) {
  cudasim::restart();
  Wire wire;
  wire.world.dmabufs = wire.world.peerMemory = false;
  for (const std::string& said : place(wire, [](int) { return GpuDirect::On; })) {
    EXPECT_NE(said.find("PEAL_GPU_DIRECT=on cannot be had: rank 0: rxe1 takes no memory of GPU 0"),
              std::string::npos)
        << said;
  }
}

TEST(ProxyGpuDirect, WhatIsWantedAndRefusedIsAnErrorOnAll) {
  cudasim::restart();
  Wire wire;
  wire.onMessage = [](const WireMessage& message) { return refuseWrites(message, false); };
  for (const std::string& said : place(wire, [](int) { return GpuDirect::On; })) {
    for (const char* part : {"PEAL_GPU_DIRECT=on cannot be had: rank ",
                             "the trial of GPUDirect RDMA failed: ", "IBV_WC_REM_ACCESS_ERR"}) {
      EXPECT_NE(said.find(part), std::string::npos) << said;
    }
  }
}

TEST(ProxyGpuDirect, ACallThatFailsIsSaidOnAllRanksAndLeavesNothing) {
  const size_t files = openFiles();
  for (const char* function : {"cudaMalloc", "cudaDeviceGetAttribute", "cudaStreamCreateWithFlags",
                               "cudaMemcpyAsync", "cudaStreamQuery", "cuMemGetHandleForAddressRange"}) {
    for (const uint64_t n : {1, 2}) {
      SCOPED_TRACE(function);
      cudasim::restart();
      Wire wire;
      wire.world.peerMemory = false;
      cudasim::failCall(function, n);
      for (const std::string& said : place(wire, [](int) { return GpuDirect::Auto; })) {
        EXPECT_NE(said, "") << "nobody says that a call failed";
        if (std::strncmp(function, "cudaStream", 10) == 0 || std::strcmp(function, "cudaMemcpyAsync") == 0) {
          EXPECT_EQ(said.find("error: "), 0U) << "a GPU that fails is no network that does: " << said;
        }
      }
      cudasim::failNothing();
    }
  }
  EXPECT_EQ(openFiles(), files);
}

}  // namespace
}  // namespace peal::cuda::test
