// Strangers at the root's door: whatever they send or do not send, honest ranks meet and nobody crashes.
#include <gtest/gtest.h>

#include <random>

#include "tests/unit/bootstrap/ranks.h"
#include "tests/unit/bootstrap/roots.h"

namespace peal::test {
namespace {

// Three honest ranks meet within the time that a machine under load needs, not within a stranger's.
void expectHonestRanksMeet(const TestRoot& root) {
  onRanks(3, [&](int rank) {
    const Joined joined = join(root.id, rank, 3, 4000);
    ASSERT_NE(joined.rendezvous, nullptr) << joined.error.message;
    EXPECT_TRUE(joined.rendezvous->allGather(Bytes(100)));
  });
}

Bytes randomBytes(std::mt19937& random, size_t bytes) {
  Bytes made(bytes);
  for (std::byte& byte : made) {
    byte = static_cast<std::byte>(random());
  }
  return made;
}

TEST(Hostile, GarbageIsDroppedAtOnceAndCounted) {
  const TestRoot root = makeRoot();
  std::mt19937 random(1);
  for (int i = 0; i < 5; ++i) {
    RawPeer peer(root.content.port);
    (void)peer.send(randomBytes(random, 300));
    EXPECT_TRUE(peer.isCut());
  }
  RawPeer web(root.content.port);
  (void)web.send(
      viewOf(std::string_view("GET / HTTP/1.1\r\nHost: x\r\nUser-Agent: a scanner of ports\r\n\r\n")));
  EXPECT_TRUE(web.isCut());
  EXPECT_EQ(root.service->strangers(), 6u);
  expectHonestRanksMeet(root);
}

TEST(Hostile, AStrangerThatKnowsTheFormatButNotTheSecretLearnsNothing) {
  const TestRoot root = makeRoot();
  IdContent wrong = root.content;
  wrong.secret[0] ^= 1;
  RawPeer peer(root.content.port);
  ASSERT_TRUE(peer.send(makeOpen(rendezvousKey(wrong), freshNonce())));
  EXPECT_TRUE(peer.receive(1).empty()) << "not one byte for one who has proved nothing";
  EXPECT_EQ(root.service->strangers(), 1u);
  // The same by the library's own joining side: an id with another secret.
  const Joined joined = join(encodeId(wrong), 0, 3);
  EXPECT_EQ(joined.error.code, pealRemoteError);
  EXPECT_NE(joined.error.message.find("another secret"), std::string::npos) << joined.error.message;
  expectHonestRanksMeet(root);
}

TEST(Hostile, HalfAHelloAndThenSilenceEndsAtTheDeadline) {
  const TestRoot root = makeRoot({.helloMs = 400});
  RawPeer silent(root.content.port);
  RawPeer half(root.content.port);
  const Bytes open = makeOpen(rendezvousKey(root.content), freshNonce());
  ASSERT_TRUE(half.send(ByteView(open).first(20)));
  RawPeer opened(root.content.port);
  ASSERT_TRUE(opened.send(open));
  EXPECT_TRUE(silent.isCut());
  EXPECT_TRUE(half.isCut());
  EXPECT_TRUE(opened.isCut());
  EXPECT_TRUE(eventually([&] { return root.service->strangers() == 3; })) << root.service->strangers();
  expectHonestRanksMeet(root);
}

TEST(Hostile, OneByteAtATimeDoesNotProlongTheDeadline) {
  const TestRoot root = makeRoot({.helloMs = 400});
  RawPeer slow(root.content.port);
  const Bytes open = makeOpen(rendezvousKey(root.content), freshNonce());
  const Clock::time_point start = Clock::now();
  size_t sent = 0;
  while (sent < open.size() && slow.send(ByteView(open).subspan(sent, 1))) {
    ++sent;
    (void)poll(nullptr, 0, 100);
  }
  EXPECT_LT(sent, open.size());
  EXPECT_LT(Clock::now() - start, kAtOnce);
  EXPECT_EQ(root.service->strangers(), 1u);
  expectHonestRanksMeet(root);
}

TEST(Hostile, AReplayedHelloDoesNotLetIn) {
  const TestRoot root = makeRoot();
  const Key key = rendezvousKey(root.content);
  // What an eavesdropper would have: the hello of an honest rank.
  Nonces nonces{freshNonce(), {}};
  const Bytes open = makeOpen(key, nonces.rank);
  RawPeer honest(root.content.port);
  ASSERT_TRUE(honest.send(open));
  nonces.root = *readChallenge(key, nonces.rank, honest.receive(kChallengeBytes));
  const Bytes joinMessage = makeJoin(key, nonces, {0, 3, 5000});
  honest.hangUp();

  RawPeer replay(root.content.port);
  ASSERT_TRUE(replay.send(open));
  EXPECT_EQ(replay.receive(kChallengeBytes).size(), kChallengeBytes);
  ASSERT_TRUE(replay.send(joinMessage));
  EXPECT_TRUE(replay.isCut());
  EXPECT_EQ(root.service->strangers(), 1u) << "the honest one that hung up is no stranger";
  expectHonestRanksMeet(root);
}

TEST(Hostile, AHugeLengthFromAMemberIsRefusedAndNamed) {
  const TestRoot root = makeRoot();
  const Key key = rendezvousKey(root.content);
  std::thread other([&] {
    const Joined joined = join(root.id, 0, 2);
    // It may be welcomed before the bad frame is read; then the exchange tells.
    std::string sentence = joined.error.message;
    if (joined.rendezvous != nullptr) {
      const auto all = joined.rendezvous->allGather({});
      ASSERT_FALSE(all);
      sentence = all.error().message;
    }
    EXPECT_NE(sentence.find("rank 1"), std::string::npos) << sentence;
  });
  RawPeer peer(root.content.port);
  Nonces nonces{freshNonce(), {}};
  ASSERT_TRUE(peer.send(makeOpen(key, nonces.rank)));
  nonces.root = *readChallenge(key, nonces.rank, peer.receive(kChallengeBytes));
  ASSERT_TRUE(peer.send(makeJoin(key, nonces, {1, 2, 5000})));
  Bytes header;
  appendInteger(header, uint32_t{0xffffffff});
  appendInteger(header, static_cast<uint32_t>(FrameType::Blob));
  ASSERT_TRUE(peer.send(header));
  other.join();
}

TEST(Hostile, TwoHundredSilentConnectionsDoNotKeepRanksOut) {
  const TestRoot root = makeRoot({.strangersMost = 64});
  std::vector<std::unique_ptr<RawPeer>> crowd;
  for (int i = 0; i < 200; ++i) {
    crowd.push_back(std::make_unique<RawPeer>(root.content.port));
    ASSERT_TRUE(crowd.back()->connected());
  }
  const Clock::time_point start = Clock::now();
  expectHonestRanksMeet(root);
  EXPECT_LT(Clock::now() - start, kAtOnce);
  EXPECT_GE(root.service->strangers(), 200u - 64u) << "those whose place was needed";
}

TEST(Hostile, RandomBytesNeverLetInNorCrash) {
  const TestRoot root = makeRoot({.helloMs = 400});
  const Key key = rendezvousKey(root.content);
  std::mt19937 random(7);
  for (int i = 0; i < 300; ++i) {
    RawPeer peer(root.content.port);
    Bytes bytes = randomBytes(random, random() % 200);
    if (i % 3 == 0) {
      // Close to right: an honest hello with one bit turned.
      bytes = makeOpen(key, freshNonce());
      const size_t bit = random() % (8 * bytes.size());
      bytes[bit / 8] ^= static_cast<std::byte>(1 << bit % 8);
    }
    (void)peer.send(bytes);
    if (i % 2 == 0) {
      peer.hangUp();
    } else if (bytes.size() >= kOpenBytes) {
      EXPECT_TRUE(peer.receive(1).empty());
    }
  }
  EXPECT_TRUE(eventually([&] { return root.service->strangers() == 300; })) << root.service->strangers();
  expectHonestRanksMeet(root);
}

TEST(Hostile, ARankWhoseHelloIsCutTriesAgain) {
  // The first connection gets its challenge and is then cut, as one whose place is needed would be.
  Listening listening = listenAt(loopback());
  ASSERT_EQ(listening.fault.errnum, 0) << listening.fault.text;
  const TestRoot root = makeRoot();
  IdContent content = root.content;
  content.port = boundPort(listening.socket);
  const Key key = rendezvousKey(content);
  std::thread busy([&] {
    pollfd polled{listening.socket.fd(), POLLIN, 0};
    ASSERT_EQ(poll(&polled, 1, 5000), 1);
    {
      const Socket peer(::accept4(listening.socket.fd(), nullptr, nullptr, SOCK_CLOEXEC));
      Bytes open(kOpenBytes);
      ASSERT_EQ(::recv(peer.fd(), open.data(), open.size(), MSG_WAITALL), static_cast<ssize_t>(open.size()));
      const Bytes challenge = makeChallenge(key, {*readOpen(key, open), freshNonce()});
      ASSERT_EQ(::send(peer.fd(), challenge.data(), challenge.size(), MSG_NOSIGNAL),
                static_cast<ssize_t>(challenge.size()));
      Bytes joinMessage(kJoinBytes);
      EXPECT_EQ(::recv(peer.fd(), joinMessage.data(), joinMessage.size(), MSG_WAITALL),
                static_cast<ssize_t>(joinMessage.size()));
    }
    // The second try finds a root.
    RootOptions options;
    options.key = key;
    options.listeners.push_back(std::move(listening.socket));
    Result<std::unique_ptr<RootService>> service = RootService::start(std::move(options));
    ASSERT_TRUE(service) << service.error().message;
    EXPECT_TRUE(eventually([&] { return (*service)->finished(); }));
    EXPECT_EQ((*service)->strangers(), 0u);
  });
  {
    const Joined joined = join(encodeId(content), 0, 1);
    EXPECT_NE(joined.rendezvous, nullptr) << joined.error.message;
  }
  busy.join();
}

TEST(Hostile, AFalseRootIsNotBelieved) {
  // Somebody else listens where the id points, and sends what a root would, without the secret.
  Listening listening = listenAt(loopback());
  ASSERT_EQ(listening.fault.errnum, 0) << listening.fault.text;
  IdContent content;
  content.port = boundPort(listening.socket);
  content.addresses = {loopback(AF_INET, content.port)};
  std::thread impostor([&] {
    pollfd polled{listening.socket.fd(), POLLIN, 0};
    ASSERT_EQ(poll(&polled, 1, 5000), 1);
    const Socket peer(::accept4(listening.socket.fd(), nullptr, nullptr, SOCK_CLOEXEC));
    const Bytes challenge = makeChallenge(Key{}, {freshNonce(), freshNonce()});
    EXPECT_EQ(::send(peer.fd(), challenge.data(), challenge.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(challenge.size()));
    // What the rank sends to it: its hello, and nothing after it.
    std::byte received[256];
    size_t total = 0;
    for (ssize_t got = 1; got > 0; total += static_cast<size_t>(std::max<ssize_t>(got, 0))) {
      got = ::recv(peer.fd(), received, sizeof received, 0);
    }
    EXPECT_EQ(total, kOpenBytes);
  });
  const Joined joined = join(encodeId(content), 0, 2);
  impostor.join();
  EXPECT_EQ(joined.error.code, pealRemoteError);
  EXPECT_NE(joined.error.message.find("does not know the secret"), std::string::npos) << joined.error.message;
}

}  // namespace
}  // namespace peal::test
