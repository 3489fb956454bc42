// The control connections once they are made: what peers learn of each other, and that nothing which comes
// over them can do harm.
#include "transports/network/mesh.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <functional>
#include <thread>

namespace peal::network {
namespace {

constexpr Key kThere{1};
constexpr Key kBack{2};

bool soon(const std::function<bool()>& condition) {
  const Deadline deadline = Deadline::afterMs(10000);
  while (!condition() && !deadline.passed()) {
    std::this_thread::yield();
  }
  return condition();
}

// Rank 0 with a mesh, and the other end of its connection to rank 1: a mesh, too, or the bare socket.
class MeshTest : public ::testing::Test {
 protected:
  void SetUp() override {
    int ends[2];
    ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends), 0);
    std::vector<Connection> connections;
    connections.push_back({1, Socket(ends[0]), kThere, kBack});
    mesh_.emplace(2, std::move(connections), bell_);
    ASSERT_TRUE(mesh_->start());
    other_ = Socket(ends[1]);
  }
  Mesh& peer() {
    if (!peer_) {
      std::vector<Connection> connections;
      connections.push_back({0, std::move(other_), kBack, kThere});
      peer_.emplace(2, std::move(connections), peerBell_);
      EXPECT_TRUE(peer_->start());
    }
    return *peer_;
  }
  Departure departure() { return mesh_->departures()[1]; }
  void say(const Bytes& bytes) {
    EXPECT_EQ(::send(other_.fd(), bytes.data(), bytes.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(bytes.size()));
  }
  void expectRefused(const std::string& why) {
    EXPECT_TRUE(soon([&] { return departure().ended; }));
    EXPECT_NE(departure().how.find(why), std::string::npos) << departure().how;
    EXPECT_TRUE(mesh_->grave());
  }

  Bell bell_;
  Bell peerBell_;
  std::optional<Mesh> mesh_;
  std::optional<Mesh> peer_;
  Socket other_;
};

Farewell noCounts(int) { return {}; }

TEST_F(MeshTest, ARankAnswersWhatItIsDoing) {
  EXPECT_FALSE(mesh_->peerState(1).known);
  Digest digest;
  digest.count = 77;
  digest.sequence = 5;
  digest.root = 3;
  peer().announce(digest, true);
  EXPECT_TRUE(soon([&] { return mesh_->peerState(1).known; }));
  EXPECT_EQ(mesh_->peerState(1).digest, digest);
  EXPECT_TRUE(mesh_->peerState(1).inside);
  peer().announce(digest, false);
  EXPECT_TRUE(soon([&] { return !mesh_->peerState(1).inside; }));
}

TEST_F(MeshTest, AFarewellBringsCulpritReasonAndCounts) {
  const uint32_t before = bell_.count();
  peer().farewell(0, "it sent nonsense", [](int rank) {
    EXPECT_EQ(rank, 0);
    return Farewell{-1, 12, 11, {}};
  });
  ASSERT_TRUE(soon([&] { return departure().farewell.has_value(); }));
  EXPECT_EQ(departure().farewell->culpritRank, 0);
  EXPECT_EQ(departure().farewell->reason, "it sent nonsense");
  EXPECT_EQ(departure().farewell->posted, 12U);
  EXPECT_EQ(departure().farewell->released, 11U);
  EXPECT_TRUE(mesh_->grave());
  EXPECT_TRUE(soon([&] { return bell_.count() != before; })) << "sleepers are woken";
}

TEST_F(MeshTest, LeavingInGoodOrderIsNotGrave) {
  peer().farewell(-1, "", noCounts);
  peer_.reset();
  EXPECT_TRUE(soon([&] { return departure().ended; }));
  EXPECT_TRUE(departure().farewell.has_value());
  EXPECT_FALSE(mesh_->grave());
}

TEST_F(MeshTest, AnEndWithoutAFarewellIsADeath) {
  other_.close();
  EXPECT_TRUE(soon([&] { return departure().ended; }));
  EXPECT_FALSE(departure().farewell.has_value());
  EXPECT_TRUE(mesh_->grave());
}

TEST_F(MeshTest, MessagesOfTheFabricArriveInOrder) {
  for (int number = 0; number < 100; ++number) {
    const Bytes message(static_cast<size_t>(number) * 40, static_cast<std::byte>(number));
    peer().send(0, message);
  }
  std::vector<Mail> got;
  EXPECT_TRUE(soon([&] {
    for (Mail& mail : mesh_->takeMail()) {
      got.push_back(std::move(mail));
    }
    return got.size() == 100;
  }));
  for (size_t number = 0; number < got.size(); ++number) {
    EXPECT_EQ(got[number].peerRank, 1);
    EXPECT_EQ(got[number].message, Bytes(number * 40, static_cast<std::byte>(number)));
  }
  EXPECT_FALSE(mesh_->haveMail());
}

// More than a connection holds, to a peer that does not read for a while.
TEST_F(MeshTest, WhatAFullConnectionDoesNotTakeGoesLater) {
  const Bytes message(kFabricMessageMostBytes, std::byte{7});
  for (int number = 0; number < 600; ++number) {
    mesh_->send(1, message);
  }
  mesh_->farewell(-1, "", noCounts);
  EXPECT_TRUE(soon([&] { return peer().departures()[0].farewell.has_value(); }));
  EXPECT_EQ(peer().takeMail().size(), 600U);
}

TEST_F(MeshTest, GarbageEndsTheConnection) {
  say(Bytes(100, std::byte{0}));
  expectRefused("a frame was changed");
}

TEST_F(MeshTest, ALengthIsNotBelieved) {
  Bytes header;
  appendInteger(header, uint32_t{1} << 30);
  appendInteger(header, static_cast<uint32_t>(Kind::Fabric));
  say(header);
  expectRefused("1073741824 bytes");
}

TEST_F(MeshTest, ARepeatedFrameIsRefused) {
  FrameWriter writer(kBack);
  const Bytes frame = writer.frame(static_cast<FrameType>(Kind::StateRequest), {});
  say(frame);
  say(frame);
  expectRefused("repeated");
}

TEST_F(MeshTest, NonsenseInAFrameOfThePeerIsRefused) {
  FrameWriter writer(kBack);
  say(writer.frame(static_cast<FrameType>(Kind::Farewell), encode(Farewell{2, 0, 0, "rank 2 of 2"})));
  expectRefused("makes no sense");
}

TEST(Messages, StatesAndFarewellsSurviveTheWire) {
  const PeerState state{
      {.count = 1ULL << 40, .sequence = 9, .root = -1, .collective = 1, .type = 2, .op = 3, .algorithm = 4},
      true,
      true};
  const std::optional<PeerState> back = decodeState(encode(state));
  ASSERT_TRUE(back);
  EXPECT_EQ(back->digest, state.digest);
  EXPECT_TRUE(back->inside);
  EXPECT_TRUE(back->known);
  const Bytes farewell = encode(Farewell{3, 4, 5, std::string(5000, 'x')});
  ASSERT_TRUE(decodeFarewell(farewell));
  EXPECT_EQ(decodeFarewell(farewell)->reason, std::string(kReasonMostBytes, 'x'));
  for (size_t bytes = 0; bytes < 20; ++bytes) {
    EXPECT_FALSE(decodeFarewell(ByteView(farewell).first(bytes)));
    EXPECT_FALSE(decodeState(ByteView(farewell).first(bytes)));
  }
}

}  // namespace
}  // namespace peal::network
