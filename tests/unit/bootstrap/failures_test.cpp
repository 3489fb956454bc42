// What ranks are told when a rendezvous does not come about or falls apart: each a sentence with names and
// values, on every rank that is there, well before anything could be called a hang.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <mutex>

#include "tests/unit/bootstrap/ranks.h"
#include "tests/unit/bootstrap/roots.h"

namespace peal::test {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;

TEST(BootstrapFailure, ARankOutOfRangeIsRefusedAtHome) {
  const TestRoot root = makeRoot();
  for (const auto& [rank, size] : {std::pair{-1, 2}, {2, 2}, {0, 0}, {0, -3}, {0, 1 << 20}}) {
    const Joined joined = join(root.id, rank, size);
    EXPECT_EQ(joined.error.code, pealInvalidArgument);
    EXPECT_THAT(joined.error.message,
                HasSubstr("rank " + std::to_string(rank) + " of " + std::to_string(size)));
  }
}

TEST(BootstrapFailure, SizesThatDisagreeNameBothRanks) {
  const TestRoot root = makeRoot();
  std::vector<Error> errors(2);
  onRanks(
      2, [&](int rank) { errors[static_cast<size_t>(rank)] = join(root.id, rank, rank == 0 ? 2 : 4).error; });
  for (const Error& error : errors) {
    EXPECT_EQ(error.code, pealInvalidUsage);
    EXPECT_THAT(error.message, AllOf(HasSubstr("rank 0"), HasSubstr("rank 1"), HasSubstr("2"), HasSubstr("4"),
                                     HasSubstr("same number")));
  }
}

TEST(BootstrapFailure, ARankThatJoinsTwiceIsNamed) {
  const TestRoot root = makeRoot();
  std::vector<Error> errors(3);
  onRanks(3, [&](int thread) {
    const int rank = thread == 2 ? 1 : thread;
    errors[static_cast<size_t>(thread)] = join(root.id, rank, 3).error;
  });
  for (const Error& error : errors) {
    EXPECT_EQ(error.code, pealInvalidUsage);
    EXPECT_THAT(error.message, HasSubstr("rank 1 joined twice"));
  }
}

TEST(BootstrapFailure, MissingRanksAreNamedToAllWhoCame) {
  const TestRoot root = makeRoot({.joinMs = 2000});
  std::mutex mutex;
  std::vector<Error> errors;
  const Clock::time_point start = Clock::now();
  onRanks(5, [&](int rank) {
    if (rank == 2 || rank == 4) {
      return;
    }
    const Joined joined = join(root.id, rank, 6);
    const std::lock_guard lock(mutex);
    errors.push_back(joined.error);
  });
  EXPECT_LT(Clock::now() - start, kAtOnce);
  ASSERT_EQ(errors.size(), 3u);
  for (const Error& error : errors) {
    EXPECT_EQ(error.code, pealTimeout);
    EXPECT_THAT(error.message, HasSubstr("ranks 2, 4 and 5 of 6 did not join within 2000 ms"));
    EXPECT_THAT(error.message, HasSubstr("ranks 0, 1 and 3 did"));
  }
  EXPECT_TRUE(eventually([&] { return root.service->finished(); }));
}

TEST(BootstrapFailure, TheShortestDeadlineOfARankCounts) {
  const TestRoot root = makeRoot();
  const Joined joined = join(root.id, 1, 2, 200);
  EXPECT_EQ(joined.error.code, pealTimeout);
  EXPECT_THAT(joined.error.message, HasSubstr("rank 0 of 2 did not join within"));
  // A rank that comes too late hears the same, not that nobody is there.
  const Joined late = join(root.id, 0, 2);
  EXPECT_EQ(late.error.code, pealTimeout);
  EXPECT_EQ(late.error.message, joined.error.message);
  EXPECT_TRUE(eventually([&] { return root.service->finished(); })) << "all ranks have been told";
}

TEST(BootstrapFailure, ARootWithoutVisitorsEnds) {
  const TestRoot root = makeRoot({.joinMs = 50});
  EXPECT_TRUE(eventually([&] { return root.service->finished(); }));
}

TEST(BootstrapFailure, ADeadRootIsNoticedWhileJoining) {
  TestRoot root = makeRoot();
  std::thread ender([&] {
    // Until rank 0 has had time to join; it is fine if it has not.
    (void)poll(nullptr, 0, 100);
    root.service.reset();
  });
  const Joined joined = join(root.id, 0, 2);
  ender.join();
  EXPECT_EQ(joined.error.code, pealRemoteError);
  EXPECT_THAT(joined.error.message, AnyOf(HasSubstr("is gone"), HasSubstr("cannot reach the rendezvous")));
}

TEST(BootstrapFailure, ADeadRootIsNoticedInAnExchangeAndStaysNoticed) {
  TestRoot root = makeRoot();
  std::unique_ptr<Rendezvous> kept[2];
  onRanks(2, [&](int rank) { kept[rank] = join(root.id, rank, 2).rendezvous; });
  ASSERT_NE(kept[0], nullptr);
  root.service.reset();
  for (int i = 0; i < 2; ++i) {
    const auto all = kept[0]->allGather({});
    ASSERT_FALSE(all);
    EXPECT_EQ(all.error().code, pealRemoteError);
    EXPECT_THAT(all.error().message, AllOf(HasSubstr("is gone"), HasSubstr("127.0.0.1:")));
  }
}

TEST(BootstrapFailure, AnIdOfAnEndedRootListsItsAddresses) {
  TestRoot root = makeRoot();
  root.service.reset();
  const Clock::time_point start = Clock::now();
  const Joined joined = join(root.id, 1, 2);
  EXPECT_LT(Clock::now() - start, kAtOnce) << "a refusal is no reason to wait";
  EXPECT_EQ(joined.error.code, pealRemoteError);
  EXPECT_THAT(joined.error.message,
              AllOf(HasSubstr("rank 1 of 2"), HasSubstr("127.0.0.1:" + std::to_string(root.content.port)),
                    HasSubstr("ECONNREFUSED")));
}

TEST(BootstrapFailure, ARankThatLeavesWhileJoiningIsNamed) {
  const TestRoot root = makeRoot();
  std::thread waiting([&] {
    const Joined joined = join(root.id, 0, 3);
    EXPECT_EQ(joined.error.code, pealRemoteError);
    EXPECT_THAT(joined.error.message, HasSubstr("rank 2 of 3"));
  });
  // Rank 2 proves the secret, takes its place and is gone.
  RawPeer peer(root.content.port);
  const Key key = rendezvousKey(root.content);
  Nonces nonces{freshNonce(), {}};
  ASSERT_TRUE(peer.send(makeOpen(key, nonces.rank)));
  const std::optional<Nonce> rootNonce = readChallenge(key, nonces.rank, peer.receive(kChallengeBytes));
  ASSERT_TRUE(rootNonce);
  nonces.root = *rootNonce;
  ASSERT_TRUE(peer.send(makeJoin(key, nonces, {2, 3, 10000})));
  // Rank 0 may still be on its way: both orders must end the same.
  peer.hangUp();
  waiting.join();
}

TEST(BootstrapFailure, ARankThatLeavesIsNamedToThoseWhoWaitForIt) {
  const TestRoot root = makeRoot();
  onRanks(3, [&](int rank) {
    Joined joined = join(root.id, rank, 3);
    ASSERT_NE(joined.rendezvous, nullptr) << joined.error.message;
    ASSERT_TRUE(joined.rendezvous->allGather({}));
    if (rank == 1) {
      joined.rendezvous.reset();
      return;
    }
    const auto all = joined.rendezvous->allGather({});
    ASSERT_FALSE(all);
    EXPECT_EQ(all.error().code, pealRemoteError);
    EXPECT_THAT(all.error().message, AllOf(HasSubstr("rank 1 of 3"), HasSubstr("exchange 1")));
  });
}

TEST(BootstrapFailure, ARankThatLeavesAfterTheLastExchangeHurtsNobody) {
  for (int i = 0; i < 20; ++i) {
    const TestRoot one = makeRoot();
    onRanks(4, [&](int rank) {
      const Joined joined = join(one.id, rank, 4);
      ASSERT_NE(joined.rendezvous, nullptr) << joined.error.message;
      EXPECT_TRUE(joined.rendezvous->allGather(Bytes(1000)));
    });
  }
}

TEST(BootstrapFailure, ARankThatDoesNotExchangeIsNamedAtTheDeadline) {
  const TestRoot root = makeRoot();
  std::unique_ptr<Rendezvous> kept[3];
  onRanks(3, [&](int rank) { kept[rank] = join(root.id, rank, 3, 500).rendezvous; });
  onRanks(2, [&](int rank) {
    ASSERT_NE(kept[rank], nullptr);
    const auto all = kept[rank]->allGather({});
    ASSERT_FALSE(all);
    EXPECT_EQ(all.error().code, pealTimeout);
    EXPECT_THAT(all.error().message, HasSubstr("rank 2 of 3 did not take part in exchange 0"));
  });
}

TEST(BootstrapFailure, ADamagedIdIsRefusedBeforeAnythingIsSent) {
  const TestRoot root = makeRoot();
  for (size_t i = 0; i < sizeof(pealUniqueId); ++i) {
    pealUniqueId damaged = root.id;
    damaged.internal[i] = static_cast<char>(damaged.internal[i] ^ 0x10);
    const Joined joined = join(damaged, 0, 1);
    EXPECT_EQ(joined.error.code, pealInvalidArgument) << "byte " << i;
    EXPECT_NE(joined.error.message.find("unique id"), std::string::npos) << joined.error.message;
  }
  EXPECT_EQ(join(pealUniqueId{}, 0, 1).error.code, pealInvalidArgument);
  EXPECT_EQ(root.service->strangers(), 0u);
}

TEST(BootstrapFailure, APortInUseIsNamedWithTheRemedy) {
  Result<OpenedRoot> first = openTcpRoot(0, "lo", "");
  ASSERT_TRUE(first) << first.error().message;
  const std::string wanted = "PEAL_PORT=" + std::to_string(first->port);
  for (const char* interface : {"lo", ""}) {
    const Result<OpenedRoot> second = openTcpRoot(first->port, interface, wanted);
    ASSERT_FALSE(second);
    EXPECT_EQ(second.error().code, pealSystemError);
    EXPECT_THAT(second.error().message,
                AllOf(HasSubstr(wanted), HasSubstr("EADDRINUSE"), HasSubstr("another port")));
  }
  const Result<OpenedRoot> again = openTcpRootAt({loopback(AF_INET, first->port)}, "PEAL_ROOT=here");
  ASSERT_FALSE(again);
  EXPECT_THAT(again.error().message, HasSubstr("PEAL_ROOT=here"));
}

TEST(BootstrapFailure, ALocalSocketInUseIsNamed) {
  const Result<OpenedRoot> first = openUnixRoot("peal-test-in-use");
  ASSERT_TRUE(first) << first.error().message;
  const Result<OpenedRoot> second = openUnixRoot("peal-test-in-use");
  ASSERT_FALSE(second);
  EXPECT_THAT(second.error().message, AllOf(HasSubstr("@peal-test-in-use"), HasSubstr("rank 0")));
}

TEST(BootstrapFailure, ARankBeforeItsRootWaitsOnlyIfTheIdAllowsIt) {
  IdContent content;
  content.place = RootPlace::Unix;
  content.name = "peal-test-nobody";
  content.start = RootStart::Maybe;
  const Clock::time_point start = Clock::now();
  const Joined joined = join(encodeId(content), 1, 2, 150);
  EXPECT_EQ(joined.error.code, pealTimeout);
  EXPECT_THAT(joined.error.message, AllOf(HasSubstr("@peal-test-nobody"), HasSubstr("PEAL_ROOT")));
  EXPECT_GE(Clock::now() - start, std::chrono::milliseconds(140));
}

}  // namespace
}  // namespace peal::test
