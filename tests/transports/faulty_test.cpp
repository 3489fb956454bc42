// Links that fail and ranks that die at a moment chosen beforehand: everybody learns of it, and of the right
// rank. (Late messages and refused credits are a row of the conformance suite.)
#include <gtest/gtest.h>

#include "tests/transports/transports.h"

namespace peal::test {
namespace {

std::vector<NamedFabric> allFabrics() {
  std::vector<NamedFabric> rows{{"tcp_faulty", [](int) { return FabricCandidate{"tcp", openTcp}; }}};
  for (NamedFabric& row : moreFabrics()) {
    rows.push_back(std::move(row));
  }
  return rows;
}

class Faulty : public ::testing::TestWithParam<NamedFabric> {
 protected:
  // One rank has a plan, the others are wrapped too.
  static Transport withPlan(RanksAre ranksAre, int misbehavingRank, const FaultPlan& plan) {
    return {"faulty", ranksAre,
            [=, fabric = GetParam()](Exchange& exchange, const TransportOptions& options) {
              const bool behaves = exchange.rank() != misbehavingRank;
              return connectOver(
                  faultyFabric(fabric.candidate(exchange.rank()), behaves ? FaultPlan{} : plan), exchange,
                  options);
            },
            true};
  }
};
class FaultyProcesses : public Faulty {};
std::vector<NamedFabric> fabricsBetweenProcesses() {
  std::vector<NamedFabric> rows = allFabrics();
  std::erase_if(rows, [](const NamedFabric& row) { return !row.betweenProcesses; });
  return rows;
}
INSTANTIATE_TEST_SUITE_P(Fabrics, Faulty, ::testing::ValuesIn(allFabrics()),
                         [](const auto& row) { return row.param.name; });
INSTANTIATE_TEST_SUITE_P(Fabrics, FaultyProcesses, ::testing::ValuesIn(fabricsBetweenProcesses()),
                         [](const auto& row) { return row.param.name; });

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

TEST_P(Faulty, ADroppedLinkIsAFaultForAllAndNamesBothEnds) {
  for (const uint64_t number : {1U, 2U, 17U, 64U}) {
    runRanks(withPlan(RanksAre::Threads, 1, {.dropAtMessage = number}), 3, {}, [&](const Rank& self) {
      const std::string error = workUntilFault(self);
      EXPECT_TRUE(contains(error, "the link from rank 1 to rank")) << error;
      EXPECT_TRUE(contains(error, "at message " + std::to_string(number))) << error;
      self.meet();
    });
  }
}

TEST_P(Faulty, AMessageThatComesTwiceIsAFaultForAll) {
  for (const uint64_t number : {1U, 2U, 17U}) {
    runRanks(withPlan(RanksAre::Threads, 1, {.duplicateAtMessage = number}), 3, {}, [&](const Rank& self) {
      const std::string error = workUntilFault(self);
      EXPECT_TRUE(contains(error, " of rank 1, where message ")) << error;
      EXPECT_TRUE(contains(error, "brought one twice")) << error;
      self.meet();
    });
  }
}

TEST_P(Faulty, AMessageThatIsLostIsAFaultForAll) {
  for (const uint64_t number : {1U, 2U, 17U}) {
    runRanks(withPlan(RanksAre::Threads, 1, {.loseAtMessage = number}), 3, {}, [&](const Rank& self) {
      const std::string error = workUntilFault(self);
      EXPECT_TRUE(contains(error, " of rank 1, where message ")) << error;
      EXPECT_TRUE(contains(error, "lost some")) << error;
      self.meet();
    });
  }
}

// Within the contract of a link, so all must be right.
TEST_P(Faulty, LateMessagesAndRefusedCreditsAreNoFault) {
  const FaultPlan plan{.seed = 7, .latePollsMost = 25, .refuseEvery = 3, .refusePolls = 9};
  runRanks(withPlan(RanksAre::Threads, 1, plan), 3, {}, [&](const Rank& self) {
    for (int number = 0; number < 40; ++number) {
      const size_t bytes = static_cast<size_t>(number) * 103 % 4097;
      for (int step = 1; step < 3; ++step) {
        const int peer = (self.rank + step) % 3;
        sendMessage(self, peer, pattern(self.rank, number, bytes), digestOf(number));
      }
      for (int step = 1; step < 3; ++step) {
        const int peer = (self.rank + step) % 3;
        expectMessage(self, peer, pattern(peer, number, bytes), digestOf(number));
      }
    }
    self.meet();
  });
}

// Who wraps a fabric answers as it does.
TEST_P(Faulty, WhatIsAskedOfTheFabricIsAnsweredByIt) {
  const FabricCandidate candidate = GetParam().candidate(0);
  const Result<std::unique_ptr<Fabric>> plain = candidate.open({4096, 3});
  const Result<std::unique_ptr<Fabric>> wrapped = faultyFabric(candidate, {}).open({4096, 3});
  ASSERT_TRUE(plain && wrapped);
  EXPECT_EQ((*wrapped)->copiesReferences(), (*plain)->copiesReferences());
  EXPECT_EQ((*wrapped)->burst(), (*plain)->burst());
  EXPECT_EQ((*wrapped)->slotBytes(1 << 20), (*plain)->slotBytes(1 << 20));
}

TEST_P(FaultyProcesses, ARankThatDiesAtAMessageIsNamed) {
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
