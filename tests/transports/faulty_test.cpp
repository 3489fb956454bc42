// Links that fail and ranks that die at a moment chosen beforehand: everybody learns of it, and of the right
// rank. (Late messages and refused credits are a row of the conformance suite.)
#include <gtest/gtest.h>

#include "tests/transports/transports.h"

namespace peal::test {
namespace {

Transport withPlan(RanksAre ranksAre, int misbehavingRank, const FaultPlan& plan) {
  return {"faulty", ranksAre,
          [=](Exchange& exchange, const TransportOptions& options) {
            const bool behaves = exchange.rank() != misbehavingRank;
            return connectOver(faultyTcp(behaves ? FaultPlan{} : plan), exchange, options);
          },
          true};
}

// Sends to and receives from everybody until a fault, says it to the others as a communicator does, and
// returns its sentence.
std::string workUntilFault(const Rank& self) {
  std::string error;
  for (int number = 0; error.empty(); ++number) {
    for (int peer = 0; peer < self.size && error.empty(); ++peer) {
      Link* const link = peer != self.rank ? &self.link(peer) : nullptr;
      if (link != nullptr &&
          waitUntil(
              self.endpoint, peer, [&] { return link->tryStage(64) != nullptr; }, &error)) {
        link->post(64, digestOf(number));
      }
    }
    for (int peer = 0; peer < self.size && error.empty(); ++peer) {
      Arrival arrival;
      if (peer != self.rank &&
          waitUntil(
              self.endpoint, peer, [&] { return self.link(peer).tryReceive(arrival); }, &error)) {
        EXPECT_EQ(arrival.digest, digestOf(number));
        self.link(peer).release();
      }
    }
  }
  self.endpoint.farewell(self.endpoint.culpritRank(), error);
  return error;
}

TEST(Faulty, ADroppedLinkIsAFaultForAllAndNamesBothEnds) {
  for (const uint64_t number : {1U, 2U, 17U, 64U}) {
    runRanks(withPlan(RanksAre::Threads, 1, {.dropAtMessage = number}), 3, {}, [&](const Rank& self) {
      const std::string error = workUntilFault(self);
      EXPECT_TRUE(contains(error, "the link from rank 1 to rank")) << error;
      EXPECT_TRUE(contains(error, "at message " + std::to_string(number))) << error;
      self.meet();
    });
  }
}

TEST(Faulty, AMessageThatComesTwiceIsAFaultForAll) {
  for (const uint64_t number : {1U, 2U, 17U}) {
    runRanks(withPlan(RanksAre::Threads, 1, {.duplicateAtMessage = number}), 3, {}, [&](const Rank& self) {
      const std::string error = workUntilFault(self);
      EXPECT_TRUE(contains(error, " of rank 1, where message ")) << error;
      EXPECT_TRUE(contains(error, "brought one twice")) << error;
      self.meet();
    });
  }
}

TEST(Faulty, ARankThatDiesAtAMessageIsNamed) {
  for (const uint64_t number : {1U, 9U, 40U}) {
    const Transport transport = withPlan(RanksAre::Processes, 2, {.dieAtMessage = number});
    ExchangeBoard board(4);
    const std::vector<ChildResult> results =
        runProcesses(4, std::chrono::milliseconds(kTestLimitMs), [&](const Child& child) {
          BoardExchange exchange(board, child.index());
          Result<std::unique_ptr<Endpoint>> endpoint = transport.connect(exchange, {});
          EXPECT_TRUE(endpoint);
          child.say(workUntilFault(Rank{child.index(), 4, **endpoint, exchange, true}));
          return 0;
        });
    for (size_t rank = 0; rank < results.size(); ++rank) {
      if (rank == 2) {
        EXPECT_EQ(results[rank].signal, SIGKILL);
      } else {
        EXPECT_EQ(results[rank].exitCode, 0);
        EXPECT_TRUE(contains(results[rank].message, "rank 2")) << results[rank].message;
        EXPECT_TRUE(contains(results[rank].message, "died")) << results[rank].message;
      }
    }
  }
}

}  // namespace
}  // namespace peal::test
