// A forked child of a rank: it holds copies of its parent's connections and must not speak on them.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <functional>
#include <thread>

#include "tests/support/exchange.h"
#include "transports/network/network.h"
#include "transports/tcp/tcp.h"

namespace peal::test {
namespace {

void forTwoRanks(const std::function<void(int rank, Endpoint& endpoint, BoardExchange& exchange)>& body) {
  ExchangeBoard board(2);
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < 2; ++rank) {
    ranks.emplace_back([&, rank] {
      BoardExchange exchange(board, rank);
      const NetworkOptions options{{4096, 2}, {1 - rank}, "", Deadline::afterMs(20000)};
      Result<std::unique_ptr<NetworkEndpoint>> made =
          connectNetwork(exchange, {4, 5}, {{"tcp", openTcp}}, options);
      ASSERT_TRUE(made) << made.error().message;
      body(rank, **made, exchange);
      ASSERT_TRUE(exchange.allGather({}));  // nobody leaves before the other is done
    });
  }
  for (std::thread& rank : ranks) {
    rank.join();
  }
}

bool within(Endpoint& endpoint, const std::function<bool()>& condition) {
  const Deadline deadline = Deadline::afterMs(20000);
  while (!condition() && !deadline.passed()) {
    endpoint.poll();
  }
  return condition();
}

void send(Endpoint& endpoint, int peer, const std::string& text) {
  std::byte* slot = nullptr;
  ASSERT_TRUE(
      within(endpoint, [&] { return (slot = endpoint.link(peer).tryStage(text.size())) != nullptr; }));
  std::memcpy(slot, text.data(), text.size());
  endpoint.link(peer).post(text.size(), {});
}

std::string receive(Endpoint& endpoint, int peer) {
  Arrival arrival;
  if (!within(endpoint, [&] { return endpoint.link(peer).tryReceive(arrival); })) {
    return "nothing";
  }
  const std::string text(reinterpret_cast<const char*>(arrival.data), arrival.bytes);
  endpoint.link(peer).release();
  return text;
}

// What a wait does in the child, in its order. A bit for each thing that it could do.
int whatAChildCanDo(Endpoint& endpoint, int peer) {
  Arrival arrival;
  int could = 0;
  could |= endpoint.link(peer).tryStage(4) != nullptr ? 1 : 0;
  could |= endpoint.tryStageAll(4) != nullptr ? 2 : 0;
  endpoint.poll();
  could |= endpoint.link(peer).tryReceive(arrival) ? 4 : 0;
  could |= endpoint.faulted() ? 0 : 8;
  const Result<void> health = endpoint.progress(peer);
  could |= !health && health.error().message.find("forked child") != std::string::npos ? 0 : 16;
  return could;
}

TEST(Fork, AChildNeitherSendsNorTakesItsParentsMail) {
  forTwoRanks([](int rank, Endpoint& endpoint, BoardExchange& exchange) {
    send(endpoint, 1 - rank, rank == 0 ? "from 0" : "from 1");
    ASSERT_TRUE(within(endpoint, [&] { return endpoint.settled(); }));
    ASSERT_TRUE(exchange.allGather({}));
    if (rank == 0) {
      const pid_t child = fork();
      if (child == 0) {
        _exit(whatAChildCanDo(endpoint, 1));
      }
      int status = 0;
      ASSERT_EQ(waitpid(child, &status, 0), child);
      EXPECT_TRUE(WIFEXITED(status));
      EXPECT_EQ(WEXITSTATUS(status), 0) << "it could do what these bits say";
    }
    ASSERT_TRUE(exchange.allGather({}));
    EXPECT_EQ(receive(endpoint, 1 - rank), rank == 0 ? "from 1" : "from 0");
    send(endpoint, 1 - rank, "more");
    EXPECT_EQ(receive(endpoint, 1 - rank), "more");
    EXPECT_TRUE(endpoint.progress(1 - rank));
  });
}

}  // namespace
}  // namespace peal::test
