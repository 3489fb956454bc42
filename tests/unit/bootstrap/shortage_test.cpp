// The first rank's process runs out of descriptors: every rank is told so, and what to raise.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <optional>
#include <vector>

#include "tests/unit/bootstrap/ranks.h"
#include "tests/unit/bootstrap/roots.h"

namespace peal::test {
namespace {

using ::testing::HasSubstr;

// While it lives, this process can open nothing: its limit is lowered and what is free below it is taken.
class NoDescriptors {
 public:
  NoDescriptors() {
    EXPECT_EQ(getrlimit(RLIMIT_NOFILE, &before_), 0);
    rlimit low = before_;
    Socket taken(fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, 0));
    low.rlim_cur = static_cast<rlim_t>(taken.fd()) + 1;
    EXPECT_EQ(setrlimit(RLIMIT_NOFILE, &low), 0);
    while (taken.fd() >= 0) {
      taken_.push_back(std::move(taken));
      taken = Socket(fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, 0));
    }
  }
  ~NoDescriptors() { EXPECT_EQ(setrlimit(RLIMIT_NOFILE, &before_), 0); }
  NoDescriptors(const NoDescriptors&) = delete;
  NoDescriptors& operator=(const NoDescriptors&) = delete;

 private:
  rlimit before_{};
  std::vector<Socket> taken_;
};

// A rank by hand: its sockets exist before there are no more.
class RankByHand {
 public:
  RankByHand(const TestRoot& root, uint32_t rank)
      : key_(rendezvousKey(root.content)), port_(root.content.port), rank_(rank) {}

  // Until the root is to answer for the first time.
  bool open() { return peer_.connectTo(port_) && peer_.send(makeOpen(key_, nonces_.rank)); }
  bool join(uint32_t size) {
    const std::optional<Nonce> root = readChallenge(key_, nonces_.rank, peer_.receive(kChallengeBytes));
    if (!root) {
      return false;
    }
    nonces_.root = *root;
    return peer_.send(makeJoin(key_, nonces_, {rank_, size, 5000}));
  }
  void hangUp() { peer_.hangUp(); }
  // What the root sends next if that is a failure; else, or if nothing comes, "".
  std::string failure() {
    FrameReader reader(directionKey(key_, nonces_, Direction::RootToRank), 65536);
    while (true) {
      Result<std::optional<Frame>> frame = reader.next();
      if (!frame) {
        return "";
      }
      if (frame->has_value()) {
        const bool failed = (*frame)->type == FrameType::Failure && (*frame)->body.size() >= 4;
        return failed ? std::string(textOf(ByteView((*frame)->body).subspan(4))) : "";
      }
      const Bytes more = peer_.receive(1);
      if (more.empty()) {
        return "";
      }
      reader.feed(more);
    }
  }

 private:
  Key key_;
  uint16_t port_;
  uint32_t rank_;
  Nonces nonces_{freshNonce(), {}};
  RawPeer peer_;
};

TEST(Shortage, EveryRankIsToldThoughNoneCouldComeIn) {
  const TestRoot root = makeRoot();
  RankByHand first(root, 0);
  RankByHand second(root, 1);
  RankByHand third(root, 2);
  const NoDescriptors none;
  for (RankByHand* rank : {&first, &second, &third}) {
    ASSERT_TRUE(rank->open());
  }
  for (RankByHand* rank : {&first, &second, &third}) {
    ASSERT_TRUE(rank->join(3));
    EXPECT_THAT(rank->failure(), AllOf(HasSubstr("the first rank's process cannot take in more ranks"),
                                       HasSubstr("(EMFILE)"), HasSubstr("ulimit -n")));
    rank->hangUp();
  }
  EXPECT_EQ(root.service->strangers(), 0u) << "they are no strangers";
}

TEST(Shortage, ASilentStrangerGivesItsDescriptorToARankAndATimeoutSaysSo) {
  const TestRoot root = makeRoot({.joinMs = 1500});
  RankByHand silent(root, 0);
  RankByHand rank(root, 0);
  ASSERT_TRUE(silent.open());
  RawPeer known(root.content.port);
  ASSERT_TRUE(known.send(makeOpen(rendezvousKey(root.content), freshNonce())));
  ASSERT_EQ(known.receive(kChallengeBytes).size(), kChallengeBytes) << "so `silent`, before it, is in too";
  const NoDescriptors none;
  ASSERT_TRUE(rank.open());
  ASSERT_TRUE(rank.join(2));
  EXPECT_THAT(rank.failure(), AllOf(HasSubstr("rank 1 of 2 did not join"),
                                    HasSubstr("The first rank's process had to let ranks wait"),
                                    HasSubstr("(EMFILE)"), HasSubstr("ulimit -n")));
  EXPECT_GE(root.service->strangers(), 1u);
}

TEST(Shortage, ARankThatCannotOpenASocketSaysSoAtHome) {
  const TestRoot root = makeRoot();
  const NoDescriptors none;
  const Joined joined = join(root.id, 0, 2, 500);
  EXPECT_EQ(joined.rendezvous, nullptr);
  EXPECT_THAT(joined.error.message, AllOf(HasSubstr("this process cannot open a socket"),
                                          HasSubstr("(EMFILE)"), HasSubstr("ulimit -n")));
}

}  // namespace
}  // namespace peal::test
