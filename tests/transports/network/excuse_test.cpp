// A peer that left in good order may take its link with it; that must not hide what happens to other links.
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <thread>
#include <vector>

#include "tests/support/exchange.h"
#include "transports/network/network.h"
#include "transports/tcp/tcp.h"

namespace peal::test {
namespace {

// A link that loses everything that is posted.
class Losing final : public Link {
 public:
  std::byte* tryStage(size_t) override { return slot_.data(); }
  void post(size_t, const Digest&) override { ++posted_; }
  bool tryPostReference(const std::byte*, size_t, const Digest&) override { return false; }
  bool canReference(const std::byte*, size_t) override { return false; }
  bool drained() override { return true; }
  uint64_t posted() const override { return posted_; }
  bool released(uint64_t) override { return false; }
  bool tryReceive(Arrival&) override { return false; }
  void release() override {}

 private:
  std::vector<std::byte> slot_ = std::vector<std::byte>(4096);
  uint64_t posted_ = 0;
};

// A fabric over TCP whose links fail when the test says so. That of rank 1 loses what is posted.
class Breakable final : public Fabric {
 public:
  Breakable(std::unique_ptr<Fabric> inner, FabricFaults& faults)
      : inner_(std::move(inner)), faults_(faults) {}
  const char* name() const override { return "breakable"; }
  Result<void> connect(Exchange& exchange, const std::vector<int>& peers, ControlPlane& control,
                       Deadline deadline) override {
    loses_ = exchange.rank() == 1;
    return inner_->connect(exchange, peers, control, deadline);
  }
  Link& link(int peerRank) override { return loses_ ? losing_ : inner_->link(peerRank); }
  bool isOver(int peerRank) const override { return peerRank == 1 && firstIsOver_; }
  static inline std::atomic<bool> firstIsOver_{false};  // what all of them say of rank 1
  void poll() override { inner_->poll(); }
  bool settled() override { return inner_->settled(); }
  const std::optional<FabricFault>& fault() const override { return faults_.first(); }
  void excuse(int peerRank) override { faults_.excuse(peerRank); }
  void onControl(int, std::span<const std::byte>) override {}
  int eventDescriptor() const override { return inner_->eventDescriptor(); }
  bool arm() override { return inner_->arm(); }

 private:
  std::unique_ptr<Fabric> inner_;
  FabricFaults& faults_;  // of this rank, the test's
  Losing losing_;
  bool loses_ = false;
};

Error lost(int peerRank) {
  return {pealRemoteError, "the link to rank " + std::to_string(peerRank) + " is lost"};
}

// Rank 0, whose peers 1 and 2 stay until the body has ended, rank 1 after a farewell, and after a message to
// rank 0 that its fabric loses.
void withTwoPeers(const std::function<void(NetworkEndpoint&, FabricFaults&)>& body) {
  ExchangeBoard board(3);
  FabricFaults faults;
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < 3; ++rank) {
    ranks.emplace_back([&, rank] {
      BoardExchange exchange(board, rank);
      NetworkOptions options{{4096, 2}, {}, "", Deadline::afterMs(20000)};
      for (int peer = 0; peer < 3; ++peer) {
        if (peer != rank) {
          options.peers.push_back(peer);
        }
      }
      FabricFaults own;
      FabricFaults& seen = rank == 0 ? faults : own;
      const FabricCandidate candidate{"breakable", [&seen](const FabricOptions& fabricOptions) {
                                        return Result<std::unique_ptr<Fabric>>(std::make_unique<Breakable>(
                                            std::move(*openTcp(fabricOptions)), seen));
                                      }};
      const Result<std::unique_ptr<NetworkEndpoint>> made =
          connectNetwork(exchange, {1, 2}, {candidate}, options);
      ASSERT_TRUE(made) << made.error().message;
      if (rank == 1) {
        EXPECT_NE((*made)->link(0).tryStage(1), nullptr);
        (*made)->link(0).post(1, {});
        (*made)->farewell(-1, "");
      }
      EXPECT_TRUE(exchange.allGather({}));
      if (rank == 0) {
        body(**made, faults);
      }
      EXPECT_TRUE(exchange.allGather({}));
    });
  }
  for (std::thread& rank : ranks) {
    rank.join();
  }
}

// Calls progress for longer than a fault is explained by a late farewell.
Result<void> progressForAWhile(NetworkEndpoint& endpoint, int waitingForRank = -1) {
  const Deadline deadline = Deadline::afterMs(1000);
  Result<void> result;
  while ((result = endpoint.progress(waitingForRank)) && !deadline.passed()) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return result;
}

TEST(Excuse, ALinkToAPeerThatLeftMayFail) {
  withTwoPeers([](NetworkEndpoint& endpoint, FabricFaults& faults) {
    faults.raise(1, lost(1));
    const Result<void> result = progressForAWhile(endpoint);
    EXPECT_TRUE(result) << result.error().message;
    EXPECT_FALSE(endpoint.faulted());
  });
}

// The last message of a peer that left in good order never comes: whoever waits for it learns of that once
// the fabric knows that nothing comes any more, and not by its deadline.
TEST(Excuse, AMessageThatNeverComesEndsTheWait) {
  withTwoPeers([](NetworkEndpoint& endpoint, FabricFaults&) {
    EXPECT_TRUE(progressForAWhile(endpoint, 1));
    Breakable::firstIsOver_ = true;
    EXPECT_TRUE(progressForAWhile(endpoint, 2));
    const Result<void> result = progressForAWhile(endpoint, 1);
    Breakable::firstIsOver_ = false;
    ASSERT_FALSE(result);
    EXPECT_NE(result.error().message.find("rank 1 left the communicator in good order"), std::string::npos)
        << result.error().message;
  });
}

TEST(Excuse, AnExcusedFaultHidesNoOther) {
  for (const bool later : {false, true}) {
    withTwoPeers([later](NetworkEndpoint& endpoint, FabricFaults& faults) {
      faults.raise(1, lost(1));
      if (later) {
        // Excused before the other comes.
        EXPECT_TRUE(progressForAWhile(endpoint));
      }
      faults.raise(2, lost(2));
      const Result<void> result = progressForAWhile(endpoint);
      ASSERT_FALSE(result);
      EXPECT_EQ(result.error().message, "the link to rank 2 is lost");
      EXPECT_EQ(endpoint.culpritRank(), 2);
    });
  }
}

// The first fault of each link, in the order of their coming.
TEST(Excuse, FaultsOfEachLink) {
  FabricFaults faults;
  faults.raise(4, lost(4));
  faults.raise(2, lost(2));
  faults.raise(4, lost(99));
  EXPECT_EQ(faults.first()->peerRank, 4);
  EXPECT_EQ(faults.first()->error.message, lost(4).message);
  faults.excuse(4);
  EXPECT_EQ(faults.first()->peerRank, 2);
  faults.excuse(2);
  EXPECT_FALSE(faults.first());
  faults.raise(4, lost(4));
  EXPECT_FALSE(faults.first());
}

}  // namespace
}  // namespace peal::test
