// How ranks of the shared-memory transport meet: quickly, only with their own kind, and with a sentence for
// every way in which it can fail. And what they leave behind: nothing.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <filesystem>
#include <fstream>

#include "tests/transports/transports.h"
#include "transports/shm/card.h"

namespace peal::test {
namespace {

using Secret = std::array<uint8_t, 32>;

ShmOptions optionsFor(int limitMs = kTestLimitMs / 2) {
  return ShmOptions{4096, 2, true, Deadline::afterMs(limitMs)};
}

// An exchange that does something after the cards are known and before the rank connects.
class HookedExchange : public BoardExchange {
 public:
  using Hook = std::function<void(const std::vector<shm::Card>&)>;
  HookedExchange(ExchangeBoard& board, int rank, Hook hook)
      : BoardExchange(board, rank), hook_(std::move(hook)) {}
  Result<std::vector<std::vector<std::byte>>> allGather(const std::vector<std::byte>& mine) override {
    auto blobs = BoardExchange::allGather(mine);
    if (blobs && !mine.empty()) {
      std::vector<shm::Card> cards(blobs->size());
      for (size_t i = 0; i < cards.size(); ++i) {
        EXPECT_EQ((*blobs)[i].size(), sizeof(shm::Card));
        std::memcpy(&cards[i], (*blobs)[i].data(), sizeof(shm::Card));
      }
      hook_(cards);
    }
    return blobs;
  }

 private:
  Hook hook_;
};

// Runs `body(rank, exchange)` in a process per rank.
void runConnecting(int size, const std::function<void(int, ExchangeBoard&)>& body) {
  ExchangeBoard board(size);
  expectAllSucceeded(runProcesses(size, std::chrono::milliseconds(kTestLimitMs), [&](const Child& child) {
    body(child.index(), board);
    return 0;
  }));
}

// The sentence of a connection that must fail soon.
std::string errorOf(Exchange& exchange, const Secret& secret, const ShmOptions& options) {
  const auto begin = Clock::now();
  const Result<std::unique_ptr<Endpoint>> endpoint = connectShm(exchange, secret, options);
  EXPECT_LT(Clock::now() - begin, kAtOnce);
  EXPECT_FALSE(endpoint);
  return endpoint ? "" : endpoint.error().message;
}

void expectContains(const std::string& text, const std::string& part) {
  EXPECT_NE(text.find(part), std::string::npos) << text;
}

TEST(ShmConnect, SixteenRanksMeetAsThreadsAndAsProcesses) {
  for (const Transport& transport : allTransports()) {
    runRanks(transport, 16, {}, [](const Rank& self) {
      const int next = (self.rank + 1) % self.size;
      const int previous = (self.rank + self.size - 1) % self.size;
      sendMessage(self, next, pattern(self.rank, 0, 100), digestOf(0));
      expectMessage(self, previous, pattern(previous, 0, 100), digestOf(0));
    });
  }
}

TEST(ShmConnect, AnotherSecretIsRefusedOnBothSides) {
  runConnecting(2, [](int rank, ExchangeBoard& board) {
    BoardExchange exchange(board, rank);
    Secret secret = kSecret;
    secret[31] = static_cast<uint8_t>(rank);
    // The caller is a stranger to the one that is called, and is sent away.
    if (rank == 0) {
      expectContains(errorOf(exchange, secret, optionsFor()), "knows another secret");
    } else {
      expectContains(errorOf(exchange, secret, optionsFor(1500)), "1 strangers were turned away");
    }
  });
}

TEST(ShmConnect, DifferentSlotsAreRefusedOnAllRanks) {
  runConnecting(3, [](int rank, ExchangeBoard& board) {
    BoardExchange exchange(board, rank);
    ShmOptions options = optionsFor();
    options.slots = rank == 1 ? 3 : 2;
    expectContains(errorOf(exchange, kSecret, options), "rank 1 has 3 ");
  });
}

TEST(ShmConnect, RanksOfAnotherMachineOrNetworkAreRefused) {
  const shm::Layout layout(2, 2, 4096);
  const shm::Card mine = shm::makeCard(0, layout);
  const auto errorBeside = [&](const shm::Card& other) {
    const Result<std::vector<shm::Card>> cards =
        shm::decodeCards({shm::encode(mine), shm::encode(other)}, mine);
    return cards ? std::string() : cards.error().message;
  };
  const shm::Card same = shm::makeCard(1, layout);
  EXPECT_EQ(errorBeside(same), "");
  shm::Card elsewhere = same;
  elsewhere.node.bootId[0] = elsewhere.node.bootId[0] == 'a' ? 'b' : 'a';
  elsewhere.node.hostName = {'f', 'a', 'r'};
  expectContains(errorBeside(elsewhere), "rank 1 runs on another machine (far) than rank 0 (");
  shm::Card contained = same;
  ++contained.node.networkNamespace;
  expectContains(errorBeside(contained), "different network namespaces");
}

TEST(ShmConnect, OptionsOutOfRangeAreRefused) {
  ExchangeBoard board(1);
  BoardExchange exchange(board, 0);
  for (const auto& [slotBytes, slots] : std::vector<std::pair<size_t, int>>{
           {0, 1}, {100, 1}, {size_t{1} << 25, 1}, {64, 0}, {64, 65}, {64, -1}}) {
    const ShmOptions options{slotBytes, slots, true, Deadline::afterMs(1000)};
    const Result<std::unique_ptr<Endpoint>> endpoint = connectShm(exchange, kSecret, options);
    ASSERT_FALSE(endpoint);
    EXPECT_EQ(endpoint.error().code, pealInvalidArgument);
  }
}

TEST(ShmConnect, ARankThatNeverCallsIsNamedAtTheDeadline) {
  runConnecting(3, [](int rank, ExchangeBoard& board) {
    if (rank == 1) {
      // Listens, and does nothing else.
      const shm::Layout layout(3, 2, 4096);
      const shm::Card card = shm::makeCard(rank, layout);
      const Result<OwnedFd> listener = shm::listenAt(card.listener, 10);
      EXPECT_TRUE(listener);
      EXPECT_TRUE(board.allGather(rank, shm::encode(card)));
      EXPECT_TRUE(board.allGather(rank, {}));
      return;
    }
    BoardExchange exchange(board, rank);
    const std::string error = errorOf(exchange, kSecret, optionsFor(2000));
    EXPECT_TRUE(board.allGather(rank, {}));
    if (error.find("gave up") == std::string::npos) {  // whose deadline passed first
      expectContains(error, "no answer from rank 1;");
    } else {
      expectContains(error, "rank 1");
    }
  });
}

TEST(ShmConnect, ARankThatDiesWhileConnectingIsNoticed) {
  ExchangeBoard board(2);
  const std::vector<ChildResult> results =
      runProcesses(2, std::chrono::milliseconds(kTestLimitMs), [&](const Child& child) {
        HookedExchange exchange(board, child.index(), [&](const auto&) {
          if (child.index() == 1) {
            _exit(7);
          }
        });
        const std::string error = errorOf(exchange, kSecret, optionsFor());
        expectContains(error, "rank 1");
        expectContains(error, "died");
        return 0;
      });
  EXPECT_EQ(results[0].exitCode, 0) << results[0].message;
  EXPECT_EQ(results[1].exitCode, 7);
}

// Everybody who may open a socket can call the listener. None of them may disturb.
TEST(ShmConnect, StrangersAreTurnedAway) {
  runConnecting(2, [](int rank, ExchangeBoard& board) {
    std::vector<OwnedFd> open;
    HookedExchange exchange(board, rank, [&](const std::vector<shm::Card>& cards) {
      if (rank != 0) {
        return;
      }
      for (int caller = 0; caller < 60; ++caller) {
        OwnedFd socket;
        int failed = EAGAIN;
        const Deadline deadline = Deadline::afterMs(kFarMs);
        while (failed == EAGAIN && !deadline.passed()) {
          failed = shm::connectTo(cards[1].listener, socket);
        }
        ASSERT_EQ(failed, 0);
        const std::vector<std::byte> garbage = pattern(0, caller, static_cast<size_t>(caller * 20));
        shm::Greeting forged{};
        forged.note = shm::Note::Hello;
        forged.version = shm::kWireVersion;
        forged.dstRank = 1;
        if (caller % 3 == 0) {
          shm::sendPacket(socket.get(), garbage.data(), garbage.size(), -1);
        } else if (caller % 3 == 1) {
          shm::sendPacket(socket.get(), &forged, sizeof forged, socket.get());
        }
        if (caller % 2 == 0) {
          open.push_back(std::move(socket));  // and stays
        }
      }
    });
    const Result<std::unique_ptr<Endpoint>> endpoint = connectShm(exchange, kSecret, optionsFor());
    EXPECT_TRUE(endpoint) << endpoint.error().message;
    EXPECT_TRUE(board.allGather(rank, {}));
  });
}

TEST(ShmConnect, ARankWithoutDescriptorsSaysSoAndTheOthersNameIt) {
  for (const rlim_t spare : {0, 1, 2, 3, 4}) {
    SCOPED_TRACE(spare);
    runConnecting(3, [spare](int rank, ExchangeBoard& board) {
      BoardExchange exchange(board, rank);
      rlimit before{};
      getrlimit(RLIMIT_NOFILE, &before);
      if (rank == 0) {
        const OwnedFd next(open("/dev/null", O_RDONLY | O_CLOEXEC));
        const rlimit limit{static_cast<rlim_t>(next.get()) + spare, before.rlim_max};
        setrlimit(RLIMIT_NOFILE, &limit);
      }
      const std::string error = errorOf(exchange, kSecret, optionsFor());
      setrlimit(RLIMIT_NOFILE, &before);  // the leak sanitizer opens files at the end
      expectContains(error, rank == 0 ? "ulimit -n" : "rank 0");
      expectContains(error, "Too many open files");
    });
  }
}

size_t openFiles() {
  size_t count = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    ++count;
  }
  return count;
}

// Mappings of memory files of this library, and their resident KiB.
std::pair<int, long> segmentMappings() {
  std::ifstream smaps("/proc/self/smaps");
  std::string line;
  int count = 0;
  long residentKib = 0;
  bool inside = false;
  while (std::getline(smaps, line)) {
    if (line.find('-') != std::string::npos && line.find(':') != std::string::npos &&
        line.find(" kB") == std::string::npos) {
      inside = line.find("memfd:peal-") != std::string::npos;
      count += inside ? 1 : 0;
    } else if (inside && line.rfind("Rss:", 0) == 0) {
      residentKib += std::stol(line.substr(4));
    }
  }
  return {count, residentKib};
}

TEST(ShmConnect, NothingIsLeftAfterwards) {
  for (const Transport& transport : allTransports()) {
    const size_t before = openFiles();
    for (int turn = 0; turn < 20; ++turn) {
      runRanks(transport, 3, {}, [&](const Rank& self) {
        sendMessage(self, (self.rank + 1) % 3, pattern(self.rank, 0, 3000), digestOf(0));
        const int previous = (self.rank + 2) % 3;
        expectMessage(self, previous, pattern(previous, 0, 3000), digestOf(0));
      });
    }
    EXPECT_EQ(openFiles(), before);
    EXPECT_EQ(segmentMappings().first, 0);
  }
  runConnecting(2, [](int rank, ExchangeBoard& board) {
    size_t before = 0;
    for (int turn = 0; turn < 20; ++turn) {
      BoardExchange exchange(board, rank);
      EXPECT_TRUE(connectShm(exchange, kSecret, optionsFor()));
      before = turn == 0 ? openFiles() : before;
    }
    EXPECT_EQ(openFiles(), before);
    EXPECT_EQ(segmentMappings().first, 0);
  });
}

TEST(ShmConnect, AnIdleCommunicatorCostsKilobytesAndOneDescriptorPerPeer) {
  runConnecting(8, [](int rank, ExchangeBoard& board) {
    BoardExchange exchange(board, rank);
    const size_t before = openFiles();
    const ShmOptions options{65536, 4, true, Deadline::afterMs(kTestLimitMs / 2)};
    const Result<std::unique_ptr<Endpoint>> endpoint = connectShm(exchange, kSecret, options);
    EXPECT_TRUE(endpoint);
    EXPECT_LE(openFiles(), before + 7);
    EXPECT_LE(segmentMappings().second, 64);
    EXPECT_TRUE(exchange.allGather({}));
  });
}

// A forked child holds no socket of its parent and cannot use the endpoint; the parent goes on.
TEST(ShmConnect, AForkedChildCannotSpeakForItsParent) {
  runConnecting(2, [](int rank, ExchangeBoard& board) {
    BoardExchange exchange(board, rank);
    Result<std::unique_ptr<Endpoint>> endpoint = connectShm(exchange, kSecret, optionsFor());
    ASSERT_TRUE(endpoint) << endpoint.error().message;
    const Rank self{rank, 2, **endpoint, exchange};
    sendMessage(self, 1 - rank, pattern(rank, 0, 20), digestOf(0));
    self.meet();
    self.endpoint.announce(digestOf(rank), true);
    const uint32_t token = self.endpoint.prepareSleep();
    self.meet();
    if (rank == 0) {
      const size_t before = openFiles();
      expectAllSucceeded(runProcesses(1, kHangs, [&](const Child&) {
        EXPECT_EQ(openFiles(), before) << "one pipe more, one socket less";
        // A wait asks the link first: nothing goes out in the parent's name, and nothing of its mail is
        // taken.
        EXPECT_EQ(self.link(1).tryStage(500), nullptr);
        EXPECT_EQ(self.endpoint.tryStageAll(8), nullptr);
        Arrival arrival;
        EXPECT_FALSE(self.link(1).tryReceive(arrival));
        EXPECT_TRUE(self.endpoint.faulted());
        const Result<void> health = self.endpoint.progress(1);
        EXPECT_FALSE(health);
        if (!health) {
          expectContains(health.error().message, "forked child");
        }
        // Nor does its sleep end the parent's, or what it calls look like a call of the parent's.
        self.endpoint.announce(digestOf(9), true);
        self.endpoint.sleep(self.endpoint.prepareSleep(), 1000000);
        self.endpoint.farewell(-1, "");  // as a communicator that the child destroys
        endpoint->reset();               // says no farewell
        return 0;
      }));
    }
    self.meet();
    EXPECT_FALSE(self.link(1 - rank).released(1));
    EXPECT_FALSE(self.endpoint.faulted()) << "the child told of releases";
    EXPECT_TRUE(self.endpoint.peerState(1 - rank).inside);
    EXPECT_EQ(self.endpoint.peerState(1 - rank).digest, digestOf(1 - rank));
    self.meet();
    if (rank == 1) {
      sendMessage(self, 0, pattern(1, 2, 20), digestOf(2));
    }
    self.meet();
    EXPECT_EQ(self.endpoint.prepareSleep() != token, rank == 0) << "a sleeper is woken by a message";
    self.endpoint.cancelSleep();
    self.meet();
    expectMessage(self, 1 - rank, pattern(1 - rank, 0, 20), digestOf(0));
    if (rank == 0) {
      expectMessage(self, 1, pattern(1, 2, 20), digestOf(2));
    }
    sendMessage(self, 1 - rank, pattern(rank, 1, 500), digestOf(1));
    expectMessage(self, 1 - rank, pattern(1 - rank, 1, 500), digestOf(1));
    EXPECT_TRUE(self.endpoint.progress(1 - rank));
    self.meet();
  });
}

TEST(ShmConnect, ProbeSaysWhatThisMachineCanDo) {
  const ShmSupport support = probeShm();
  EXPECT_TRUE(support.available) << support.reason;
  EXPECT_FALSE(support.reason.empty());
  EXPECT_FALSE(support.crossReadReason.empty());
}

}  // namespace
}  // namespace peal::test
