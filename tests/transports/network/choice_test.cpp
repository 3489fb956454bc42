// Which fabric serves: the first that every rank can open and connect; and what is said when none is left.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <mutex>
#include <thread>

#include "tests/support/exchange.h"
#include "tests/support/scarce_memory.h"
#include "transports/network/network.h"
#include "transports/tcp/tcp.h"

namespace peal::test {
namespace {

// A fabric over TCP that cannot connect on one rank.
class Unconnectable final : public Fabric {
 public:
  Unconnectable(std::unique_ptr<Fabric> inner, int failingRank)
      : inner_(std::move(inner)), failingRank_(failingRank) {}
  const char* name() const override { return "unconnectable"; }
  Result<void> connect(Exchange& exchange, const std::vector<int>& peers, ControlPlane& control,
                       Deadline deadline) override {
    PEAL_TRY(inner_->connect(exchange, peers, control, deadline));
    return exchange.rank() == failingRank_ ? Error{pealSystemError, "port 2 of card0 is down"}
                                           : Result<void>();
  }
  Link& link(int peerRank) override { return inner_->link(peerRank); }
  void poll() override { inner_->poll(); }
  bool settled() override { return inner_->settled(); }
  const std::optional<FabricFault>& fault() const override { return inner_->fault(); }
  void excuse(int peerRank) override { inner_->excuse(peerRank); }
  void onControl(int, std::span<const std::byte>) override {}
  int eventDescriptor() const override { return inner_->eventDescriptor(); }
  bool arm() override { return inner_->arm(); }

 private:
  std::unique_ptr<Fabric> inner_;
  const int failingRank_;
};

// By rank: the name of the fabric that serves, or the error.
std::vector<std::string> choose(int size,
                                const std::function<std::vector<FabricCandidate>(int)>& candidates) {
  ExchangeBoard board(size);
  std::vector<std::string> outcome(static_cast<size_t>(size));
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < size; ++rank) {
    ranks.emplace_back([&, rank] {
      BoardExchange exchange(board, rank);
      NetworkOptions options{{4096, 2}, {}, "", Deadline::afterMs(20000)};
      for (int peer = 0; peer < size; ++peer) {
        if (peer != rank) {
          options.peers.push_back(peer);
        }
      }
      const Result<std::unique_ptr<NetworkEndpoint>> made =
          connectNetwork(exchange, {1, 2}, candidates(rank), options);
      outcome[static_cast<size_t>(rank)] = made ? (*made)->name() : made.error().message;
    });
  }
  for (std::thread& rank : ranks) {
    rank.join();
  }
  return outcome;
}

FabricCandidate missing(const char* name, const char* why) {
  return {name, [why](const FabricOptions&) {
            return Result<std::unique_ptr<Fabric>>(Error{pealSystemError, why});
          }};
}

FabricCandidate unconnectable(int failingRank) {
  return {"unconnectable", [failingRank](const FabricOptions& options) {
            return Result<std::unique_ptr<Fabric>>(
                std::make_unique<Unconnectable>(std::move(*openTcp(options)), failingRank));
          }};
}

TEST(Choice, AFabricThatOneRankLacksServesNobody) {
  const std::vector<std::string> outcome = choose(3, [](int rank) {
    return std::vector<FabricCandidate>{
        rank == 1 ? missing("fast", "no such device here") : FabricCandidate{"fast", openTcp},
        {"tcp", openTcp}};
  });
  EXPECT_EQ(outcome, std::vector<std::string>(3, "tcp"));
}

TEST(Choice, AfterAFailedConnectAllTakeTheNext) {
  const std::vector<std::string> outcome = choose(3, [](int) {
    return std::vector<FabricCandidate>{unconnectable(2), {"tcp", openTcp}};
  });
  EXPECT_EQ(outcome, std::vector<std::string>(3, "tcp"));
}

TEST(Choice, TheErrorSaysWhatWasTriedAndWhyItFailedAndWhere) {
  const std::vector<std::string> outcome = choose(4, [](int rank) {
    return std::vector<FabricCandidate>{
        rank % 2 == 1 ? missing("fast", "no such device here") : FabricCandidate{"fast", openTcp},
        unconnectable(2)};
  });
  for (const std::string& text : outcome) {
    EXPECT_NE(text.find("fast: on ranks 1 and 3: no such device here"), std::string::npos) << text;
    EXPECT_NE(text.find("unconnectable: on rank 2: port 2 of card0 is down"), std::string::npos) << text;
    EXPECT_NE(text.find("PEAL_TRANSPORT"), std::string::npos) << text;
  }
}

// On rank 1 there is no memory for slots of one direction, whichever.
TEST(Choice, WithoutMemoryForSlotsAllTakeTheNextOrSayHowMuchItWas) {
  for (const size_t bytes : {2 * (4096 + 64), 2 * 4096}) {
    const auto candidates = [bytes](bool hasOther) {
      return [=](int rank) {
        std::vector<FabricCandidate> all{{"large", [=](const FabricOptions& options) {
                                            refusedBytes = rank == 1 ? bytes : SIZE_MAX;
                                            return openTcp(options);
                                          }}};
        if (hasOther) {
          all.push_back({"tcp", [](const FabricOptions& options) {
                           refusedBytes = SIZE_MAX;
                           return openTcp(options);
                         }});
        }
        return all;
      };
    };
    EXPECT_EQ(choose(3, candidates(true)), std::vector<std::string>(3, "tcp"));
    for (const std::string& text : choose(3, candidates(false))) {
      const std::string sentence = fmt::format(
          "large: on rank 1: no memory for {} bytes of a link to one peer, 2 slots of {} bytes. Use "
          "smaller or fewer slots (PEAL_SLOT_BYTES, PEAL_SLOTS).",
          bytes, bytes / 2);
      EXPECT_NE(text.find(sentence), std::string::npos) << text;
    }
  }
}

}  // namespace
}  // namespace peal::test
