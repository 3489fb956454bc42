// Kernel, proxy, link, proxy, kernel: real collectives between ranks that no mapping joins, over links that
// are slow, get stuck or lie.
#include <array>
#include <atomic>
#include <random>
#include <thread>

#include "tests/cuda/proxy_calls.h"
#include "tests/cuda/proxy_links.h"

namespace peal::cuda::test {
namespace {

TEST(Proxy, CollectivesBetweenRanksThatNoMappingJoins) {
  for (const int ranks : {2, 3, 4}) {
    for (const int slots : {2, 3}) {  // a ring needs two
      ProxyTest test{.ranks = ranks, .linkSlots = slots - 1};
      test.shape.slots = slots;
      // An array of 1009 elements takes several rounds over the slots of 1024 bytes.
      runProxyRanks(test, [](ProxyRank& self) { runCollectives(self, {0, 1, 1009}); });
    }
  }
}

TEST(Proxy, NodesInsideAndProxiesBetween) {
  runProxyRanks({.ranks = 4, .ranksPerNode = 2}, [](ProxyRank& self) { runCollectives(self, {5, 1500}); });
}

TEST(Proxy, PointToPoint) {
  constexpr size_t kCount = 3001;
  runProxyRanks({.ranks = 3}, [](ProxyRank& self) {
    // Everybody to everybody, in two launches: sequences go on between them.
    for (int number = 0; number < 2; ++number) {
      std::vector<DeviceBuffer> buffers;
      std::vector<PointToPoint> calls;
      for (int peer = 0; peer < self.size(); ++peer) {
        if (peer == self.rank()) {
          continue;
        }
        for (const bool isSend : {true, false}) {
          Result<DeviceBuffer> buffer = DeviceBuffer::make(self.rank(), kCount);
          ASSERT_TRUE(buffer);
          ASSERT_EQ(cudaMemset(buffer->data(), isSend ? 16 * self.rank() + peer + number : 255, kCount),
                    cudaSuccess);
          ASSERT_EQ(cudaStreamSynchronize(nullptr), cudaSuccess);  // kernels run on another stream
          PointToPoint call;
          call.isSend = isSend;
          call.send = isSend ? buffer->data() : nullptr;
          call.recv = isSend ? nullptr : buffer->data();
          call.count = kCount;
          call.peer = peer;
          calls.push_back(call);
          buffers.push_back(std::move(*buffer));
        }
      }
      self.launch(calls);
      ASSERT_TRUE(self.wait());
      ASSERT_EQ(self.fault().kind, 0U);
      for (size_t i = 0; i < calls.size(); ++i) {
        if (calls[i].isSend) {
          continue;
        }
        std::vector<uint8_t> got(kCount);
        ASSERT_EQ(cudaMemcpy(got.data(), calls[i].recv, kCount, cudaMemcpyDefault), cudaSuccess);
        EXPECT_EQ(got, std::vector<uint8_t>(kCount,
                                            static_cast<uint8_t>(16 * calls[i].peer + self.rank() + number)));
      }
    }
    EXPECT_TRUE(self.proxy().close(Deadline::afterMs(kLimitMs)));
  });
}

// ---- links that are not as one would like them ----

TEST(Proxy, SlowLinks) {
  ProxyTest test{.ranks = 3, .linkSlots = 1};
  test.wrap = [](int rank, std::unique_ptr<Endpoint> inner) {
    OddLink::Behaviour behaviour;
    // Two times of three it is busy.
    behaviour.refuse = [engine = std::make_shared<std::mt19937>(rank)] { return (*engine)() % 3 != 0; };
    return std::make_unique<OddEndpoint>(std::move(inner), rank, 3, behaviour);
  };
  runProxyRanks(test, [](ProxyRank& self) { runCollectives(self, {700}); });
}

TEST(Proxy, AStuckLinkIsAFaultForAll) {
  ProxyTest test{.ranks = 3, .timeoutMs = 300};
  test.wrap = [](int rank, std::unique_ptr<Endpoint> inner) -> std::unique_ptr<Endpoint> {
    OddLink::Behaviour behaviour;
    behaviour.refuse = [rank] { return rank == 1; };
    return std::make_unique<OddEndpoint>(std::move(inner), rank, 3, behaviour);
  };
  runProxyRanks(test, [](ProxyRank& self) {
    // Whoever's deadline passes first says so: a proxy's that is blocked, or a kernel's that waits.
    Result<DeviceBuffer> data = DeviceBuffer::make(self.rank(), 1 << 16);
    ASSERT_TRUE(data);
    Collective call = collective(kKinds[0], 1 << 14, -1);
    call.send = call.recv = data->data();
    self.launch(call);
    EXPECT_TRUE(self.wait());
    EXPECT_NE(self.fault().kind, 0U);
    const Deadline deadline = Deadline::afterMs(kLimitMs);
    while (!self.proxy().fault() && !deadline.passed()) {
      std::this_thread::yield();
    }
    EXPECT_TRUE(self.proxy().fault());
    self.meet();
  });
}

TEST(Proxy, StopReachesTheKernelsOfAllRanks) {
  runProxyRanks({.ranks = 3}, [](ProxyRank& self) {
    if (self.rank() == 2) {
      self.proxy().stop(2, "the user has had enough");
    }
    expectFault(self, "the user has had enough", 2);
  });
}

TEST(Proxy, AKernelsFaultReachesTheOtherRanks) {
  // Ranks disagree on the count: whichever kernel sees it first reports it, and all leave.
  runProxyRanks({.ranks = 2}, [](ProxyRank& self) {
    Result<DeviceBuffer> data = DeviceBuffer::make(self.rank(), 1 << 16);
    ASSERT_TRUE(data);
    Collective call = collective(kKinds[0], static_cast<size_t>(1000 + self.rank()), -1);
    call.send = call.recv = data->data();
    self.launch(call);
    EXPECT_TRUE(self.wait());
    EXPECT_NE(self.fault().kind, 0U);
    const Deadline deadline = Deadline::afterMs(kLimitMs);
    while (!self.proxy().fault() && !deadline.passed()) {
      std::this_thread::yield();
    }
    ASSERT_TRUE(self.proxy().fault());
    self.meet();
  });
}

// ---- what a peer may send ----

TEST(Proxy, BelievesNothingThatAPeerSends) {
  struct Lie {
    const char* what;
    size_t offset;  // in the header that proxy_traffic.cpp writes
    uint64_t value;
    const char* sentence;
  };
  // isData and channel lie in the first word, then the number, the credits, and the message.
  const Lie lies[] = {
      {"channel", 0, uint64_t{9} << 32 | 1, "channel 9 of 2"},
      {"number", 8, 5, "message 5 after 0"},
      {"number for whose slot there is room", 8, 2, "message 2 after 0"},
      {"credits", 16, 77, "credit for 77 messages"},
      {"address", 64, 1 << 20, "at address 0x100000"},
      {"bytes", 72, 4096, "for a message of 4096 bytes"},
  };
  for (const Lie& lie : lies) {
    SCOPED_TRACE(lie.what);
    ProxyTest test{.ranks = 2};
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

// ---- beginning and end ----

TEST(Proxy, SaysThatTheNetworksSlotsAreTooSmall) {
  cudasim::restart();
  ExchangeBoard board(2);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&board, rank] {
      BoardExchange exchange(board, rank);
      const Result<std::unique_ptr<Proxy>> proxy = Proxy::start(
          connectRanks(exchange, 1024, 2), {1 - rank},
          {.shape = {.channels = 1, .slots = 1, .slotBytes = 1024, .lowSlotBytes = 128}, .name = ""});
      ASSERT_FALSE(proxy);
      EXPECT_NE(proxy.error().message.find("1024 bytes"), std::string::npos) << proxy.error().message;
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
}

TEST(Proxy, CloseSaysThatAPeerHasNotTakenWhatWasSent) {
  runProxyRanks({.ranks = 2}, [](ProxyRank& self) {
    if (self.rank() == 0) {
      Result<DeviceBuffer> data = DeviceBuffer::make(0, 64);
      ASSERT_TRUE(data);
      PointToPoint call;
      call.isSend = true;
      call.send = data->data();
      call.count = 64;
      call.peer = 1;
      self.launch({call});
      ASSERT_TRUE(self.wait());
      const Result<void> closed = self.proxy().close(Deadline::afterMs(100));
      ASSERT_FALSE(closed);
      EXPECT_EQ(closed.error().code, pealTimeout);
    }
    self.meet();
  });
}

// An endpoint whose end waits for its peers, as a network's does.
class LingeringEndpoint final : public OddEndpoint {
 public:
  struct End {
    std::atomic<bool> begun{false};  // its destructor runs
    std::atomic<bool> may{false};    // and may return: what the test has done before is done
  };
  LingeringEndpoint(std::unique_ptr<Endpoint> inner, int rank, int size, End& end)
      : OddEndpoint(std::move(inner), rank, size, {}), end_(end) {}
  LingeringEndpoint(const LingeringEndpoint&) = delete;
  LingeringEndpoint& operator=(const LingeringEndpoint&) = delete;
  ~LingeringEndpoint() override {
    end_.begun = true;
    const Deadline deadline = Deadline::afterMs(kLimitMs);
    while (!end_.may && !deadline.passed()) {
      std::this_thread::yield();
    }
    EXPECT_FALSE(deadline.passed()) << "somebody waited for the end of the network";
  }

 private:
  End& end_;
};

TEST(Proxy, NobodyWaitsForTheEndOfItsNetwork) {
  std::array<LingeringEndpoint::End, 2> ends;
  ProxyTest test{.ranks = 2};
  test.wrap = [&ends](int rank, std::unique_ptr<Endpoint> inner) -> std::unique_ptr<Endpoint> {
    return std::make_unique<LingeringEndpoint>(std::move(inner), rank, 2, ends[static_cast<size_t>(rank)]);
  };
  runProxyRanks(test, [&ends](ProxyRank& self) {
    LingeringEndpoint::End& end = ends[static_cast<size_t>(self.rank())];
    EXPECT_TRUE(self.proxy().close(Deadline::afterMs(kLimitMs)));
    std::thread ending([&self] { self.proxy().end(); });
    const Deadline deadline = Deadline::afterMs(kLimitMs);
    while (!end.begun && !deadline.passed()) {
      std::this_thread::yield();
    }
    EXPECT_FALSE(self.proxy().fault());
    self.proxy().stop(self.rank(), "too late to tell anybody");
    ASSERT_TRUE(self.proxy().fault());
    EXPECT_EQ(self.proxy().fault()->error.message, "too late to tell anybody");
    // Kernels may still look at the boxes.
    std::atomic_ref(*reinterpret_cast<uint8_t*>(self.proxy().boxes().data())).store(1);
    end.may = true;
    ending.join();
    self.proxy().end();  // once more does nothing
    self.meet();
  });
}

}  // namespace
}  // namespace peal::cuda::test
