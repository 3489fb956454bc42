// Kernel, proxy, link, proxy, kernel: real collectives between ranks that no mapping joins, over links that
// are slow, get stuck or lie.
#include <array>
#include <atomic>
#include <random>
#include <thread>

#include "tests/cuda/proxy_ranks.h"

namespace peal::cuda::test {
namespace {

// ---- collectives ----

struct Kind {
  const char* name;
  int kind;
  Algorithm algorithm;
};
constexpr Kind kKinds[] = {
    {"ring all-reduce", pealStatAllReduce, Algorithm::Ring},
    {"one-shot all-reduce", pealStatAllReduce, Algorithm::OneShot},
    {"two-shot all-reduce", pealStatAllReduce, Algorithm::TwoShot},
    {"ring reduce-scatter", pealStatReduceScatter, Algorithm::Ring},
    {"direct all-gather", pealStatAllGather, Algorithm::OneShot},
    {"ring all-gather", pealStatAllGather, Algorithm::Ring},
    {"ring broadcast", pealStatBroadcast, Algorithm::Ring},
    {"direct reduce", pealStatReduce, Algorithm::OneShot},
};

int32_t input(int rank, size_t element, int call) {
  return static_cast<int32_t>(element * 3 + static_cast<size_t>(rank) * 1000003 +
                              static_cast<size_t>(call) * 7919);
}

// What rank `rank` of `size` has at `element` of its output.
int32_t output(int kind, int rank, int size, size_t count, size_t element, int root, int call) {
  const size_t first = kind == pealStatReduceScatter ? static_cast<size_t>(rank) * count : 0;
  if (kind == pealStatAllGather) {
    return input(static_cast<int>(element / count), element % count, call);
  }
  if (kind == pealStatBroadcast) {
    return input(root, element, call);
  }
  int32_t sum = 0;
  for (int peer = 0; peer < size; ++peer) {
    sum += input(peer, first + element, call);
  }
  return sum;
}

Collective collective(const Kind& kind, size_t count, int root) {
  Collective call;
  call.kind = kind.kind;
  call.count = count;
  call.type = pealInt32;
  call.hasOp =
      kind.kind == pealStatAllReduce || kind.kind == pealStatReduceScatter || kind.kind == pealStatReduce;
  call.root = kind.kind == pealStatBroadcast || kind.kind == pealStatReduce ? root : -1;
  call.choice.algorithm = kind.algorithm;
  call.choice.protocol = Protocol::Simple;
  call.choice.chunkBytes = SIZE_MAX;
  return call;
}

// One call on one rank, and whether the output is right.
void runCall(ProxyRank& self, const Kind& kind, size_t count, int number) {
  const int root = number % self.size();
  Collective call = collective(kind, count, root);
  const Extents extents = extentsOf(call, self.rank(), self.size());
  Result<DeviceBuffer> send = DeviceBuffer::make(self.rank(), std::max<size_t>(extents.send, 4));
  Result<DeviceBuffer> recv = DeviceBuffer::make(self.rank(), std::max<size_t>(extents.recv, 4));
  ASSERT_TRUE(send && recv);
  std::vector<int32_t> in(extents.send / 4);
  for (size_t i = 0; i < in.size(); ++i) {
    in[i] = input(self.rank(), i, number);
  }
  ASSERT_EQ(cudaMemcpy(send->data(), in.data(), extents.send, cudaMemcpyDefault), cudaSuccess);
  call.send = send->data();
  call.recv = recv->data();
  self.launch(call);
  ASSERT_TRUE(self.wait()) << (self.proxy().fault() ? self.proxy().fault()->error.message
                                                    : "the kernel hangs");
  ASSERT_EQ(self.fault().kind, 0U) << "the kernel reports a fault";
  std::vector<int32_t> out(extents.recv / 4);
  ASSERT_EQ(cudaMemcpy(out.data(), recv->data(), extents.recv, cudaMemcpyDefault), cudaSuccess);
  for (size_t i = 0; i < out.size(); ++i) {
    ASSERT_EQ(out[i], output(kind.kind, self.rank(), self.size(), count, i, root, number))
        << kind.name << ", rank " << self.rank() << " of " << self.size() << ", element " << i << " of "
        << count;
  }
}

void runCollectives(ProxyRank& self, const std::vector<size_t>& counts) {
  int number = 0;
  for (const Kind& kind : kKinds) {
    for (const size_t count : counts) {
      runCall(self, kind, count, ++number);
      if (::testing::Test::HasFatalFailure()) {
        return;
      }
    }
  }
  const Result<void> closed = self.proxy().close(Deadline::afterMs(kLimitMs));
  EXPECT_TRUE(closed) << closed.error().message;
  EXPECT_FALSE(self.proxy().fault()) << self.proxy().fault()->error.message;
}

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

// Passes everything on, unless its kind says otherwise.
class OddLink : public Link {
 public:
  // What a link does to the asker.
  struct Behaviour {
    std::function<bool()> refuse = [] { return false; };  // no credit now, nothing has arrived now
    std::function<void(std::byte* message, size_t bytes)> alter = [](std::byte*, size_t) {};
  };
  OddLink(Link& inner, Behaviour behaviour) : inner_(inner), behaviour_(std::move(behaviour)) {}
  std::byte* tryStage(size_t bytes) override {
    return behaviour_.refuse() ? nullptr : staged_ = inner_.tryStage(bytes);
  }
  void post(size_t bytes, const Digest& digest) override {
    behaviour_.alter(staged_, bytes);
    inner_.post(bytes, digest);
  }
  bool tryPostReference(const std::byte*, size_t, const Digest&) override { return false; }
  bool canReference(const std::byte*, size_t) override { return false; }
  bool drained() override { return inner_.drained(); }
  uint64_t posted() const override { return inner_.posted(); }
  bool released(uint64_t count) override { return inner_.released(count); }
  // Asking again must give the same message, so a refusal only ever comes first.
  bool tryReceive(Arrival& arrival) override {
    shown_ = shown_ || !behaviour_.refuse();
    return shown_ && inner_.tryReceive(arrival);
  }
  void release() override {
    shown_ = false;
    inner_.release();
  }

 private:
  Link& inner_;
  Behaviour behaviour_;
  std::byte* staged_ = nullptr;
  bool shown_ = false;
};

class OddEndpoint : public Endpoint {
 public:
  OddEndpoint(std::unique_ptr<Endpoint> inner, int rank, int size, const OddLink::Behaviour& behaviour)
      : inner_(std::move(inner)), links_(static_cast<size_t>(size)) {
    for (int peer = 0; peer < size; ++peer) {
      if (peer != rank) {
        links_[static_cast<size_t>(peer)] = std::make_unique<OddLink>(inner_->link(peer), behaviour);
      }
    }
  }
  const char* name() const override { return "odd"; }
  size_t slotBytes() const override { return inner_->slotBytes(); }
  Link& link(int peerRank) override { return *links_[static_cast<size_t>(peerRank)]; }
  std::byte* tryStageAll(size_t) override { return nullptr; }
  void postAll(size_t, const Digest&) override {}
  Result<void> progress(int waitingForRank) override { return inner_->progress(waitingForRank); }
  bool faulted() const override { return inner_->faulted(); }
  int culpritRank() const override { return inner_->culpritRank(); }
  void announce(const Digest& digest, bool inside) override { inner_->announce(digest, inside); }
  PeerState peerState(int peerRank) override { return inner_->peerState(peerRank); }
  uint32_t prepareSleep() override { return inner_->prepareSleep(); }
  void sleep(uint32_t token, int64_t us) override { inner_->sleep(token, us); }
  void cancelSleep() override { inner_->cancelSleep(); }
  void wake() override { inner_->wake(); }
  void farewell(int culpritRank, const std::string& reason) override {
    inner_->farewell(culpritRank, reason);
  }

 private:
  std::unique_ptr<Endpoint> inner_;
  std::vector<std::unique_ptr<OddLink>> links_;
};

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

// Launches a ring all-reduce, and expects that the kernel leaves and that the proxy says why.
void expectFault(ProxyRank& self, const std::string& reason, int culpritRank) {
  Result<DeviceBuffer> data = DeviceBuffer::make(self.rank(), 1 << 16);
  ASSERT_TRUE(data);
  Collective call = collective(kKinds[0], 1 << 14, -1);
  call.send = call.recv = data->data();
  self.launch(call);
  ASSERT_TRUE(self.wait());
  const std::optional<Fault> fault = self.proxy().fault();
  ASSERT_TRUE(fault);
  EXPECT_NE(fault->error.message.find(reason), std::string::npos) << fault->error.message;
  EXPECT_EQ(fault->culpritRank, culpritRank);
  EXPECT_NE(self.fault().kind, 0U);
  const Result<void> closed = self.proxy().close(Deadline::afterMs(kLimitMs));
  ASSERT_FALSE(closed);
  EXPECT_EQ(closed.error().message, fault->error.message);
  self.meet();
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
