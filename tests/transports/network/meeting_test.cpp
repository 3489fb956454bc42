// How ranks on different nodes make their control connections: who is let in, who is not, and what the error
// says when a peer is out of reach.
#include "transports/network/meeting.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <thread>

#include "tests/support/exchange.h"
#include "transports/network/card.h"

namespace peal::network {
namespace {

using test::BoardExchange;
using test::ExchangeBoard;

constexpr Key kSecret{1, 2, 3};

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

// An exchange in which a test sees, and may change, what a rank learns of the others' cards. The cards are
// the second thing that a meeting exchanges.
class CardExchange final : public Exchange {
 public:
  using Look = std::function<void(int rank, Card& card)>;
  CardExchange(ExchangeBoard& board, int rank, Look look) : inner_(board, rank), look_(std::move(look)) {}
  int rank() const override { return inner_.rank(); }
  int size() const override { return inner_.size(); }
  Result<std::vector<Bytes>> allGather(const Bytes& mine) override {
    Result<std::vector<Bytes>> blobs = inner_.allGather(mine);
    if (++count_ == 2 && look_ && blobs) {
      for (size_t rank = 0; rank < blobs->size(); ++rank) {
        Result<Card> card = decodeCard((*blobs)[rank]);
        EXPECT_TRUE(card);
        look_(static_cast<int>(rank), *card);
        (*blobs)[rank] = encode(*card);
      }
    }
    return blobs;
  }

 private:
  BoardExchange inner_;
  Look look_;
  int count_ = 0;
};

struct Met {
  std::vector<Connection> connections;
  std::string error;
};

// Every rank is a node. `look`, `secret` and `limitMs` are of rank 0, `lookOfLast` is the last rank's.
std::vector<Met> meet(int size, const CardExchange::Look& look = nullptr, const Key& secret = kSecret,
                      int limitMs = 20000, const CardExchange::Look& lookOfLast = nullptr,
                      int limitOfOthersMs = 20000) {
  ExchangeBoard board(size);
  std::vector<Met> met(static_cast<size_t>(size));
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < size; ++rank) {
    ranks.emplace_back([&, rank] {
      CardExchange exchange(board, rank, rank == 0 ? look : rank == size - 1 ? lookOfLast : nullptr);
      MeetingOptions options{{}, "", Deadline::afterMs(rank == 0 ? limitMs : limitOfOthersMs)};
      for (int peer = 0; peer < size; ++peer) {
        if (peer != rank) {
          options.peers.push_back(peer);
        }
      }
      Result<std::vector<Connection>> result = meetPeers(exchange, rank == 0 ? secret : kSecret, options);
      Met& mine = met[static_cast<size_t>(rank)];
      if (result) {
        mine.connections = std::move(*result);
      } else {
        mine.error = result.error().message;
      }
    });
  }
  for (std::thread& rank : ranks) {
    rank.join();
  }
  return met;
}

const Connection* to(const Met& met, int peer) {
  for (const Connection& one : met.connections) {
    if (one.peerRank == peer) {
      return &one;
    }
  }
  return nullptr;
}

TEST(Meeting, EveryPairSharesAConnectionAndItsKeys) {
  const std::vector<Met> met = meet(4);
  for (int a = 0; a < 4; ++a) {
    EXPECT_EQ(met[static_cast<size_t>(a)].error, "");
    for (int b = 0; b < a; ++b) {
      const Connection* there = to(met[static_cast<size_t>(a)], b);
      const Connection* back = to(met[static_cast<size_t>(b)], a);
      ASSERT_NE(there, nullptr);
      ASSERT_NE(back, nullptr);
      EXPECT_EQ(there->sendKey, back->receiveKey);
      EXPECT_EQ(there->receiveKey, back->sendKey);
      EXPECT_NE(there->sendKey, there->receiveKey);
      const char word = static_cast<char>(16 * a + b);
      char got = 0;
      ASSERT_EQ(write(there->socket.fd(), &word, 1), 1);
      while (read(back->socket.fd(), &got, 1) != 1) {
        std::this_thread::yield();
      }
      EXPECT_EQ(got, word);
    }
  }
}

TEST(Meeting, AnotherSecretIsRefusedAndSaid) {
  size_t addresses = 0;
  const auto count = [&](int rank, const Card& card) {
    addresses = rank == 1 ? card.addresses.size() : addresses;
  };
  const std::vector<Met> met = meet(2, count, Key{9, 9, 9}, 1500, nullptr, 1500);
  for (const Met& one : met) {
    EXPECT_TRUE(contains(one.error, "rank 0 cannot reach rank 1")) << one.error;
    EXPECT_TRUE(contains(one.error, "it is not that rank")) << one.error;
    EXPECT_TRUE(contains(one.error, "no control connection from rank 0")) << one.error;
    EXPECT_TRUE(contains(one.error, std::to_string(addresses) + " strangers")) << one.error;
  }
}

std::vector<Socket> callSilently(const Address& address, int count) {
  std::vector<Socket> strangers;
  for (int i = 0; i < count; ++i) {
    Socket& stranger = strangers.emplace_back(::socket(address.family(), SOCK_STREAM | SOCK_CLOEXEC, 0));
    EXPECT_EQ(::connect(stranger.fd(), address.pointer(), address.length), 0) << address.text();
  }
  return strangers;
}

// A rank that opens its door late finds a crowd there, and in it, long before the others, the peer, which has
// one address to call.
TEST(Meeting, ACrowdDoesNotPushOutThePeerThatCameBeforeIt) {
  std::vector<Socket> strangers;
  const auto oneAddress = [](int, Card& card) { card.addresses.resize(1); };
  const auto isLate = [&](int rank, const Card& card) {
    if (rank == 1) {
      std::this_thread::sleep_for(std::chrono::milliseconds(300));  // so late that the peer has called
      strangers = callSilently(card.addresses.front(), 100);
    }
  };
  for (const Met& one : meet(2, oneAddress, kSecret, 20000, isLate)) {
    EXPECT_EQ(one.error, "");
    EXPECT_EQ(one.connections.size(), 1U);
  }
}

// And if the crowd was there first, it makes room in the end.
TEST(Meeting, ThoseWhoStaySilentMakeRoomForThePeer) {
  std::vector<Socket> strangers;
  const auto crowd = [&](int rank, Card& card) {
    card.addresses.resize(1);
    if (rank == 1) {
      strangers = callSilently(card.addresses.front(), 50);
    }
  };
  for (const Met& one : meet(2, crowd)) {
    EXPECT_EQ(one.error, "");
    EXPECT_EQ(one.connections.size(), 1U);
  }
}

// What strangers say, or do not say, at a listener; none of it may keep a rank out.
TEST(Meeting, StrangersAreTurnedAway) {
  std::vector<Socket> strangers;
  const auto intrude = [&](int rank, const Card& card) {
    if (rank == 0) {
      return;
    }
    const std::vector<std::string> words{"", "GET / HTTP/1.1\r\n\r\n", std::string(200, 'x'),
                                         "pealOpn1" + std::string(48, '\0')};
    for (int i = 0; i < 40; ++i) {
      const Address& address = card.addresses.front();
      Socket stranger(::socket(address.family(), SOCK_STREAM | SOCK_CLOEXEC, 0));
      ASSERT_EQ(::connect(stranger.fd(), address.pointer(), address.length), 0) << address.text();
      const std::string& word = words[static_cast<size_t>(i) % words.size()];
      EXPECT_EQ(::send(stranger.fd(), word.data(), word.size(), MSG_NOSIGNAL),
                static_cast<ssize_t>(word.size()));
      strangers.push_back(std::move(stranger));
    }
  };
  for (const Met& one : meet(2, intrude)) {
    EXPECT_EQ(one.error, "");
    EXPECT_EQ(one.connections.size(), 1U);
  }
}

Address refusing() {
  // A port that was free a moment ago, and that nobody listens at.
  const in_addr loopback{htonl(INADDR_LOOPBACK)};
  Listening once = listenAt(ipv4Address(&loopback, 0));
  return ipv4Address(&loopback, boundPort(once.socket));
}

TEST(Meeting, AddressesAreTriedInTurnUntilOneWorks) {
  const auto spoil = [](int rank, Card& card) {
    if (rank == 1) {
      card.addresses.insert(card.addresses.begin(), refusing());
    }
  };
  for (const Met& one : meet(3, spoil)) {
    EXPECT_EQ(one.error, "");
    EXPECT_EQ(one.connections.size(), 2U);
  }
}

TEST(Meeting, APeerOutOfReachIsNamedWithAllItsAddressesAndWhy) {
  std::vector<Address> wrong;
  Listening silent = listenAt(refusing());  // takes connections and never answers
  Address mute = refusing();
  mute.setPort(boundPort(silent.socket));
  const auto spoil = [&](int rank, Card& card) {
    if (rank == 1) {
      card.addresses = {refusing(), refusing(), mute};
      wrong = card.addresses;
    }
  };
  const std::vector<Met> met = meet(2, spoil, kSecret, 1500, nullptr, 1500);
  for (const Met& one : met) {
    ASSERT_EQ(wrong.size(), 3U);
    for (size_t i = 0; i < 2; ++i) {
      EXPECT_TRUE(contains(one.error, wrong[i].text() + ": Connection refused")) << one.error;
    }
    EXPECT_TRUE(contains(one.error, wrong[2].text() + ": connected, but nobody")) << one.error;
    EXPECT_TRUE(contains(one.error, " (lo)")) << one.error;  // the last that rank 1 listens at
    EXPECT_TRUE(contains(one.error, "PEAL_INTERFACE")) << one.error;
  }
}

// Rank 0 gives up soon because rank 1 refuses; rank 2, which is only slow, is not accused.
TEST(Meeting, WhoWasNotWaitedForIsNotAccused) {
  const Listening silent = listenAt(refusing());
  Address mute = refusing();
  mute.setPort(boundPort(silent.socket));
  const auto spoil = [&](int rank, Card& card) {
    if (rank > 0) {
      card.addresses = {rank == 1 ? refusing() : mute};
    }
  };
  for (const Met& one : meet(3, spoil, kSecret, 20000, nullptr, 1500)) {
    EXPECT_TRUE(contains(one.error, "rank 0 cannot reach rank 1 for control messages")) << one.error;
    EXPECT_TRUE(contains(one.error, "rank 0 then waited no longer for rank 2")) << one.error;
    EXPECT_FALSE(contains(one.error, "rank 0 cannot reach rank 2")) << one.error;
  }
}

// A card comes from another machine: whatever it holds, decoding it reads no byte beyond it.
TEST(Card, SurvivesTheWireAndRefusesWhatIsNone) {
  const in_addr four{htonl(0x0a010203)};
  in6_addr six{};
  inet_pton(AF_INET6, "fd00::7", &six);
  const Card card{freshNonce(), {ipv4Address(&four, 1234), ipv6Address(&six, 99, 0)}};
  const Bytes blob = encode(card);
  const Result<Card> back = decodeCard(blob);
  ASSERT_TRUE(back);
  EXPECT_EQ(back->listener, card.listener);
  ASSERT_EQ(back->addresses.size(), 2U);
  EXPECT_EQ(back->addresses[0].text(), "10.1.2.3:1234");
  EXPECT_EQ(back->addresses[1].text(), "[fd00::7]:99");
  for (size_t bytes = 0; bytes < blob.size(); ++bytes) {
    const Bytes cut(blob.begin(), blob.begin() + static_cast<std::ptrdiff_t>(bytes));
    const bool whole = bytes == sizeof(Nonce) || bytes == sizeof(Nonce) + 7;
    EXPECT_EQ(static_cast<bool>(decodeCard(cut)), whole) << bytes;
  }
  Bytes many(sizeof(Nonce));
  for (size_t i = 0; i <= kAddressesMost; ++i) {
    append(many, ByteView(blob).subspan(sizeof(Nonce), 7));
  }
  EXPECT_FALSE(decodeCard(many));
}

}  // namespace
}  // namespace peal::network
