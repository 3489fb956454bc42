// The transports that the conformance suite runs over, and how ranks of a test are run: as threads of one
// process, or as processes.
#pragma once
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "lib/base/clock.h"
#include "lib/comm/host_links.h"
#include "tests/support/exchange.h"
#include "tests/support/limits.h"
#include "tests/support/processes.h"
#include "transports/faulty/faulty.h"
#include "transports/network/network.h"
#include "transports/shm/shm.h"
#include "transports/tcp/tcp.h"
#include "transports/transport.h"

namespace peal::test {

inline bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

inline constexpr std::array<uint8_t, 32> kSecret{1, 2, 3, 4, 5, 6, 7, 8, 9, 10};
inline constexpr int kTestLimitMs = 60000;

enum class RanksAre { Threads, Processes };

struct TransportOptions {
  size_t slotBytes = 4096;
  int slots = 3;
  bool directRead = true;
};

// One row of the suite. A new transport adds its rows in allTransports().
struct Transport {
  const char* name;
  RanksAre ranksAre;
  std::function<Result<std::unique_ptr<Endpoint>>(Exchange&, const TransportOptions&)> connect;
  // Bytes and news of ranks take a moment: there is no shared memory between some.
  bool travels = false;
  bool isEmulated = false;  // on a processor that is: all takes many times as long
};

inline void PrintTo(const Transport& transport, std::ostream* stream) { *stream << transport.name; }

inline NetworkOptions networkOptions(const TransportOptions& options) {
  NetworkOptions network{{options.slotBytes, options.slots}, {}, "", Deadline::afterMs(kTestLimitMs / 2)};
  return network;
}

// Every rank is a node of its own.
inline Result<std::unique_ptr<Endpoint>> connectOver(const FabricCandidate& fabric, Exchange& exchange,
                                                     const TransportOptions& options) {
  NetworkOptions network = networkOptions(options);
  for (int rank = 0; rank < exchange.size(); ++rank) {
    if (rank != exchange.rank()) {
      network.peers.push_back(rank);
    }
  }
  Result<std::unique_ptr<NetworkEndpoint>> made = connectNetwork(exchange, kSecret, {fabric}, network);
  if (!made) {
    return made.error();
  }
  return std::unique_ptr<Endpoint>(std::move(*made));
}

// Two ranks to a node, by turns: shared memory inside, the fabric between.
inline Result<std::unique_ptr<Endpoint>> connectRouted(const FabricCandidate& fabric, Exchange& exchange,
                                                       const TransportOptions& options) {
  std::vector<int> labels;
  const int nodes = (exchange.size() + 1) / 2;
  for (int rank = 0; rank < exchange.size(); ++rank) {
    labels.push_back(rank % nodes);
  }
  std::vector<int> table(groupingTableSize(labels.size()));
  return connectHosts(exchange, kSecret, groupRanks(labels, table),
                      {.slotBytes = options.slotBytes,
                       .slots = options.slots,
                       .directRead = options.directRead,
                       .interfaces = "",
                       .fabrics = {fabric},
                       .deadline = Deadline::afterMs(kTestLimitMs / 2)});
}

// What a program adds, by the file that it is linked with: rows_none.cpp, verbs/rows_fake.cpp, or
// tests/rdma/rows_real.cpp.
std::vector<Transport> moreTransports();

// The fabric that it adds.
struct NamedFabric {
  const char* name;
  std::function<FabricCandidate(int rank)> candidate;
  bool betweenProcesses = true;
};
inline void PrintTo(const NamedFabric& fabric, std::ostream* stream) { *stream << fabric.name; }
std::vector<NamedFabric> moreFabrics();

inline FabricCandidate faultyFabric(const FabricCandidate& inner, const FaultPlan& plan) {
  return {"faulty", [inner, plan](const FabricOptions& options) -> Result<std::unique_ptr<Fabric>> {
            Result<std::unique_ptr<Fabric>> fabric = inner.open(options);
            return fabric ? makeFaulty(std::move(*fabric), plan) : std::move(fabric);
          }};
}
inline std::vector<Transport> allTransports() {
  const auto shm = [](Exchange& exchange, const TransportOptions& options) {
    return connectShm(exchange, kSecret,
                      ShmOptions{options.slotBytes, options.slots, options.directRead,
                                 Deadline::afterMs(kTestLimitMs / 2)});
  };
  const auto network = [](Exchange& exchange, const TransportOptions& options) {
    return connectOver({"tcp", openTcp}, exchange, options);
  };
  const auto routed = [](Exchange& exchange, const TransportOptions& options) {
    return connectRouted({"tcp", openTcp}, exchange, options);
  };
  const auto faulty = [](Exchange& exchange, const TransportOptions& options) {
    return connectOver(
        faultyFabric({"tcp", openTcp}, {.seed = 7, .latePollsMost = 25, .refuseEvery = 3, .refusePolls = 9}),
        exchange, options);
  };
  std::vector<Transport> rows{{"shm_threads", RanksAre::Threads, shm},
                              {"shm_processes", RanksAre::Processes, shm},
                              {"network_threads", RanksAre::Threads, network, true},
                              {"network_processes", RanksAre::Processes, network, true},
                              {"routed_threads", RanksAre::Threads, routed, true},
                              {"routed_processes", RanksAre::Processes, routed, true},
                              {"faulty_threads", RanksAre::Threads, faulty, true}};
  for (Transport& row : moreTransports()) {
    rows.push_back(std::move(row));
  }
  return rows;
}

// Between nodes nothing is read in place.
inline std::vector<Transport> transportsWithReferences() {
  std::vector<Transport> rows = allTransports();
  std::erase_if(rows, [](const Transport& row) { return row.travels; });
  return rows;
}

// What a rank's body sees.
struct Rank {
  int rank;
  int size;
  Endpoint& endpoint;
  Exchange& exchange;
  bool travels = false;
  Link& link(int peer) const { return endpoint.link(peer); }
  // What an executor does at an operation's end. A rank with a fault leaves as it is.
  void settle() const {
    const Deadline deadline = Deadline::afterMs(kTestLimitMs / 2);
    while (!endpoint.faulted() && !endpoint.settled() && !deadline.passed()) {
      endpoint.poll();
    }
    EXPECT_FALSE(deadline.passed()) << "the endpoint did not settle";
  }
  // All ranks meet here, without the transport: nobody polls it meanwhile.
  void meet() const {
    settle();
    EXPECT_TRUE(exchange.allGather({}));
  }
};
using RankBody = std::function<void(const Rank&)>;

// Runs body(rank) on `size` connected ranks. Failures of EXPECT_* count wherever they happen.
inline void runRanks(const Transport& transport, int size, const TransportOptions& options,
                     const RankBody& body) {
  ExchangeBoard board(size);
  const auto runOne = [&](int rank) {
    BoardExchange exchange(board, rank);
    Result<std::unique_ptr<Endpoint>> endpoint = transport.connect(exchange, options);
    ASSERT_TRUE(endpoint) << endpoint.error().message;
    const Rank self{rank, size, **endpoint, exchange, transport.travels};
    body(self);
    self.settle();
  };
  if (transport.ranksAre == RanksAre::Processes) {
    expectAllSucceeded(runProcesses(size, std::chrono::milliseconds(kTestLimitMs), [&](const Child& child) {
      runOne(child.index());
      return 0;
    }));
    return;
  }
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back(runOne, rank);
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
}

// Waits as an executor does: look, look again after prepareSleep, sleep, progress. False: a fault or the
// deadline; `error` says which.
inline bool waitUntil(Endpoint& endpoint, int waitingForRank, const std::function<bool()>& condition,
                      std::string* error = nullptr, int limitMs = kTestLimitMs / 2) {
  const Deadline deadline = Deadline::afterMs(limitMs);
  const auto fail = [&](const std::string& text) {
    if (error != nullptr) {
      *error = text;
    } else {
      ADD_FAILURE() << text;
    }
    return false;
  };
  for (;;) {
    for (int spin = 0; spin < 20; ++spin) {
      endpoint.poll();
      if (condition()) {
        return true;
      }
      cpuRelax();
    }
    const Result<void> health = endpoint.progress(waitingForRank);
    if (!health) {
      return fail(health.error().message);
    }
    if (deadline.passed()) {
      return fail("the test's deadline passed");
    }
    const uint32_t token = endpoint.prepareSleep();
    if (condition()) {
      endpoint.cancelSleep();
      return true;
    }
    endpoint.sleep(token, 20000);
  }
}

// What is true at once where ranks share memory, and soon where it travels.
inline bool holds(const Rank& self, const std::function<bool()>& condition) {
  return self.travels ? waitUntil(self.endpoint, -1, condition) : condition();
}

// A suite over all transports: `TEST_P(Suite, ...) { run(size, options, body); }`.
class TransportTest : public ::testing::TestWithParam<Transport> {
 protected:
  static void run(int size, const TransportOptions& options, const RankBody& body) {
    runRanks(GetParam(), size, options, body);
  }
  static bool sameProcess() { return GetParam().ranksAre == RanksAre::Threads; }
};
inline std::string transportName(const ::testing::TestParamInfo<Transport>& row) { return row.param.name; }

// Bytes that say from whom and which message they are.
inline std::vector<std::byte> pattern(int srcRank, int number, size_t bytes) {
  std::vector<std::byte> data(bytes);
  uint32_t state = static_cast<uint32_t>(srcRank * 7919 + number * 104729 + 12345);
  for (std::byte& value : data) {
    state = state * 1664525U + 1013904223U;
    value = static_cast<std::byte>(state >> 24);
  }
  return data;
}

// A digest in which every field depends on `number`.
inline Digest digestOf(int number) {
  const auto n = static_cast<uint32_t>(number);
  Digest digest;
  digest.count = uint64_t{n} * 0x123456789ULL + 5;
  digest.sequence = n * 2654435761U;
  digest.root = number % 5 - 1;
  digest.collective = static_cast<uint8_t>(n);
  digest.type = static_cast<uint8_t>(n + 1);
  digest.op = static_cast<uint8_t>(n * 3);
  digest.algorithm = static_cast<uint8_t>(n * 7);
  return digest;
}

inline void sendMessage(const Rank& self, int peer, const std::vector<std::byte>& data,
                        const Digest& digest) {
  std::byte* slot = nullptr;
  ASSERT_TRUE(waitUntil(self.endpoint, peer,
                        [&] { return (slot = self.link(peer).tryStage(data.size())) != nullptr; }));
  std::copy(data.begin(), data.end(), slot);
  self.link(peer).post(data.size(), digest);
}

inline void expectMessage(const Rank& self, int peer, const std::vector<std::byte>& data,
                          const Digest& digest) {
  Arrival arrival;
  ASSERT_TRUE(waitUntil(self.endpoint, peer, [&] { return self.link(peer).tryReceive(arrival); }));
  ASSERT_EQ(arrival.bytes, data.size());
  EXPECT_EQ(std::vector<std::byte>(arrival.data, arrival.data + arrival.bytes), data);
  EXPECT_EQ(arrival.digest, digest);
  self.link(peer).release();
}

}  // namespace peal::test
