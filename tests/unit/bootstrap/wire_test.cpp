// Messages as bytes: what was sealed is read back, and any change to it is refused.
#include "lib/bootstrap/wire.h"

#include <gtest/gtest.h>

#include <random>

namespace peal::test {
namespace {

class Wire : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_TRUE(startSodium()); }
  const Key key_ = Key{1, 2, 3};
  const Nonces nonces_{Nonce{4, 5}, Nonce{6, 7}};
};

Bytes withBitTurned(Bytes bytes, size_t bit) {
  bytes[bit / 8] ^= static_cast<std::byte>(1 << bit % 8);
  return bytes;
}

TEST_F(Wire, HelloMessagesReadBack) {
  const Bytes open = makeOpen(key_, nonces_.rank);
  const Bytes challenge = makeChallenge(key_, nonces_);
  const Bytes join = makeJoin(key_, nonces_, {3, 8, 60000});
  EXPECT_EQ(open.size(), kOpenBytes);
  EXPECT_EQ(challenge.size(), kChallengeBytes);
  EXPECT_EQ(join.size(), kJoinBytes);
  EXPECT_EQ(readOpen(key_, open), nonces_.rank);
  EXPECT_EQ(readChallenge(key_, nonces_.rank, challenge), nonces_.root);
  const auto request = readJoin(key_, nonces_, join);
  ASSERT_TRUE(request);
  EXPECT_EQ(request->rank, 3u);
  EXPECT_EQ(request->size, 8u);
  EXPECT_EQ(request->leftMs, 60000u);
}

TEST_F(Wire, AHelloWithAnyBitTurnedIsRefused) {
  const Bytes open = makeOpen(key_, nonces_.rank);
  const Bytes challenge = makeChallenge(key_, nonces_);
  const Bytes join = makeJoin(key_, nonces_, {3, 8, 60000});
  for (size_t bit = 0; bit < 8 * open.size(); ++bit) {
    EXPECT_FALSE(readOpen(key_, withBitTurned(open, bit))) << bit;
  }
  for (size_t bit = 0; bit < 8 * challenge.size(); ++bit) {
    EXPECT_FALSE(readChallenge(key_, nonces_.rank, withBitTurned(challenge, bit))) << bit;
  }
  for (size_t bit = 0; bit < 8 * join.size(); ++bit) {
    EXPECT_FALSE(readJoin(key_, nonces_, withBitTurned(join, bit))) << bit;
  }
}

TEST_F(Wire, ProofsHoldForOneKeyOneMessageAndOneConversation) {
  const Key other{9};
  EXPECT_FALSE(readOpen(other, makeOpen(key_, nonces_.rank)));
  EXPECT_FALSE(readOpen(key_, makeChallenge(key_, nonces_))) << "a challenge is no hello, though as long";
  EXPECT_FALSE(readChallenge(key_, nonces_.rank, makeOpen(key_, nonces_.rank)));
  EXPECT_FALSE(readChallenge(key_, nonces_.root, makeChallenge(key_, nonces_))) << "for another rank's nonce";
  const Nonces later{nonces_.rank, Nonce{8}};
  EXPECT_FALSE(readJoin(key_, later, makeJoin(key_, nonces_, {0, 1, 1}))) << "replayed";
  EXPECT_FALSE(readOpen(key_, {}));
  EXPECT_NE(directionKey(key_, nonces_, Direction::RankToRoot),
            directionKey(key_, nonces_, Direction::RootToRank));
}

TEST_F(Wire, FramesReadBackHoweverTheyAreCut) {
  for (const size_t cut : {size_t{1}, size_t{7}, size_t{40}, size_t{100000}}) {
    FrameWriter writer(key_);
    FrameReader reader(key_, 1000);
    Bytes stream;
    for (const size_t bytes : {size_t{0}, size_t{1}, size_t{1000}}) {
      append(stream, writer.frame(FrameType::Blob, Bytes(bytes, std::byte{5})));
    }
    std::vector<size_t> lengths;
    for (size_t at = 0; at < stream.size(); at += cut) {
      reader.feed(ByteView(stream).subspan(at, std::min(cut, stream.size() - at)));
      while (true) {
        auto frame = reader.next();
        ASSERT_TRUE(frame) << frame.error().message;
        if (!frame->has_value()) {
          break;
        }
        EXPECT_EQ((**frame).type, FrameType::Blob);
        lengths.push_back((**frame).body.size());
      }
    }
    EXPECT_EQ(lengths, (std::vector<size_t>{0, 1, 1000}));
  }
}

TEST_F(Wire, AFrameOverTheBoundIsRefusedByItsHeader) {
  FrameWriter writer(key_);
  FrameReader reader(key_, 99);
  const Bytes frame = writer.frame(FrameType::Blob, Bytes(100));
  reader.feed(ByteView(frame).first(kFrameHeaderBytes));
  const auto refused = reader.next();
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().message.find("100 bytes"), std::string::npos) << refused.error().message;
}

TEST_F(Wire, AFrameThatIsRepeatedReorderedOrLeftOutIsRefused) {
  FrameWriter writer(key_);
  const Bytes first = writer.frame(FrameType::Blob, Bytes(3));
  const Bytes second = writer.frame(FrameType::Blob, Bytes(3));
  FrameReader repeated(key_, 100);
  repeated.feed(first);
  repeated.feed(first);
  EXPECT_TRUE(repeated.next());
  EXPECT_FALSE(repeated.next());
  FrameReader leftOut(key_, 100);
  leftOut.feed(second);
  EXPECT_FALSE(leftOut.next());
  FrameReader otherWay(directionKey(key_, nonces_, Direction::RootToRank), 100);
  otherWay.feed(first);
  EXPECT_FALSE(otherWay.next());
}

TEST_F(Wire, NoChangedFrameIsEverAccepted) {
  std::mt19937 random(3);
  FrameWriter writer(key_);
  const Bytes frame = writer.frame(FrameType::Table, Bytes(40, std::byte{9}));
  for (size_t bit = 0; bit < 8 * frame.size(); ++bit) {
    FrameReader reader(key_, 64);
    reader.feed(withBitTurned(frame, bit));
    const auto result = reader.next();
    // A longer length only asks for more bytes, of which none fit.
    EXPECT_TRUE(!result || !result->has_value()) << bit;
  }
  for (int i = 0; i < 2000; ++i) {
    FrameReader reader(key_, 64);
    Bytes noise(random() % 300);
    for (std::byte& byte : noise) {
      byte = static_cast<std::byte>(random() % 4 == 0 ? random() : 0);
    }
    reader.feed(noise);
    const auto result = reader.next();
    EXPECT_TRUE(!result || !result->has_value());
  }
}

}  // namespace
}  // namespace peal::test
