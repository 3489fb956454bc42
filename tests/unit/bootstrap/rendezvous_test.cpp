// Ranks meet and exchange blobs: the happy paths.
#include <dirent.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>

#include "tests/unit/bootstrap/ranks.h"
#include "tests/unit/bootstrap/roots.h"

namespace peal::test {
namespace {

Bytes blobOf(int rank, size_t bytes) { return Bytes(bytes, static_cast<std::byte>(rank + 1)); }

size_t openDescriptors() {
  DIR* directory = opendir("/proc/self/fd");
  size_t count = 0;
  while (readdir(directory) != nullptr) {
    ++count;
  }
  closedir(directory);
  return count;
}

void meetAndExchange(const pealUniqueId& id, int size) {
  std::vector<Secret> secrets(static_cast<size_t>(size));
  onRanks(size, [&](int rank) {
    const Joined joined = join(id, rank, size);
    ASSERT_NE(joined.rendezvous, nullptr) << joined.error.message;
    EXPECT_EQ(joined.rendezvous->rank(), rank);
    EXPECT_EQ(joined.rendezvous->size(), size);
    secrets[static_cast<size_t>(rank)] = joined.rendezvous->secret();
    for (const size_t bytes : {size_t{0}, size_t{1}, size_t{1000}, size_t{65536}}) {
      // Lengths differ by rank.
      const auto all = joined.rendezvous->allGather(blobOf(rank, bytes / static_cast<size_t>(rank + 1)));
      ASSERT_TRUE(all) << all.error().message;
      ASSERT_EQ(all->size(), static_cast<size_t>(size));
      for (int other = 0; other < size; ++other) {
        EXPECT_EQ((*all)[static_cast<size_t>(other)], blobOf(other, bytes / static_cast<size_t>(other + 1)));
      }
    }
  });
  EXPECT_NE(secrets.front(), Secret{});
  EXPECT_EQ(std::count(secrets.begin(), secrets.end(), secrets.front()), size);
}

class RendezvousOfSize : public ::testing::TestWithParam<int> {};

TEST_P(RendezvousOfSize, AllRanksMeetAndExchange) {
  const Result<pealUniqueId> id = createUniqueId();
  ASSERT_TRUE(id) << id.error().message;
  meetAndExchange(*id, GetParam());
}

INSTANTIATE_TEST_SUITE_P(Sizes, RendezvousOfSize, ::testing::Range(1, 10));

TEST(Rendezvous, WorksOverIpv4AndIpv6) {
  for (const int family : {AF_INET, AF_INET6}) {
    const TestRoot root = makeRoot({}, family);
    ASSERT_NE(root.service, nullptr);
    EXPECT_EQ(root.content.addresses.front().family(), family);
    meetAndExchange(root.id, 4);
    EXPECT_TRUE(eventually([&] { return root.service->finished(); }));
    EXPECT_EQ(root.service->strangers(), 0u);
  }
}

TEST(Rendezvous, AnAddressThatRefusesIsPassedOver) {
  const TestRoot root = makeRoot();
  IdContent content = root.content;
  // Nobody listens at these addresses of the loopback network, nor at IPv6's.
  const in_addr first{htonl(0x7f000005)};
  content.addresses = {ipv4Address(&first, content.port), loopback(AF_INET6, content.port),
                       content.addresses.front()};
  meetAndExchange(encodeId(content), 3);
}

TEST(Rendezvous, EachHasItsOwnSecret) {
  const TestRoot root = makeRoot();
  const TestRoot other = makeRoot();
  const Joined one = join(root.id, 0, 1);
  const Joined two = join(other.id, 0, 1);
  ASSERT_NE(one.rendezvous, nullptr) << one.error.message;
  ASSERT_NE(two.rendezvous, nullptr) << two.error.message;
  EXPECT_NE(one.rendezvous->secret(), two.rendezvous->secret());
}

TEST(Rendezvous, ManyAtATimeDoNotMix) {
  constexpr int kRendezvous = 6;
  onRanks(kRendezvous, [](int) {
    const Result<pealUniqueId> id = createUniqueId();
    ASSERT_TRUE(id) << id.error().message;
    meetAndExchange(*id, 3);
  });
}

TEST(Rendezvous, ManyExchangesKeepTheirOrder) {
  const TestRoot root = makeRoot();
  onRanks(3, [&](int rank) {
    const Joined joined = join(root.id, rank, 3);
    ASSERT_NE(joined.rendezvous, nullptr) << joined.error.message;
    for (uint32_t i = 0; i < 200; ++i) {
      Bytes mine;
      appendInteger(mine, i * 3 + static_cast<uint32_t>(rank));
      const auto all = joined.rendezvous->allGather(mine);
      ASSERT_TRUE(all) << all.error().message;
      for (uint32_t other = 0; other < 3; ++other) {
        ASSERT_EQ(readInteger<uint32_t>((*all)[other]), i * 3 + other);
      }
    }
  });
}

TEST(Rendezvous, LateRanksAreWaitedFor) {
  const TestRoot root = makeRoot();
  std::atomic<bool> firstIsWaiting{false};
  onRanks(2, [&](int rank) {
    if (rank == 1) {
      // Rank 0 has begun to join; it is then in the middle of it for longer than a handshake takes.
      ASSERT_TRUE(eventually([&] { return firstIsWaiting.load(); }));
      (void)poll(nullptr, 0, 100);
    } else {
      firstIsWaiting = true;
    }
    const Joined joined = join(root.id, rank, 2);
    EXPECT_NE(joined.rendezvous, nullptr) << joined.error.message;
  });
}

TEST(Rendezvous, ABlobThatIsTooLongIsRefusedAndHurtsNobody) {
  const TestRoot root = makeRoot();
  onRanks(2, [&](int rank) {
    const Joined joined = join(root.id, rank, 2);
    ASSERT_NE(joined.rendezvous, nullptr) << joined.error.message;
    if (rank == 1) {
      const auto refused = joined.rendezvous->allGather(Bytes(65537));
      ASSERT_FALSE(refused);
      EXPECT_EQ(refused.error().code, pealInvalidArgument);
      EXPECT_NE(refused.error().message.find("65537"), std::string::npos) << refused.error().message;
    }
    EXPECT_TRUE(joined.rendezvous->allGather(blobOf(rank, 65536)));
  });
}

TEST(Rendezvous, NothingIsLeftOpen) {
  // The newest service may not be gone yet, here and at the end; making an id sweeps up after older ones.
  const auto descriptorsAfterOneMore = [] {
    const Result<pealUniqueId> id = createUniqueId();
    EXPECT_NE(join(*id, 0, 1).rendezvous, nullptr);
    return openDescriptors();
  };
  const size_t before = descriptorsAfterOneMore();
  for (int i = 0; i < 20; ++i) {
    const Result<pealUniqueId> id = createUniqueId();
    ASSERT_TRUE(id) << id.error().message;
    meetAndExchange(*id, 3);
  }
  EXPECT_TRUE(eventually([&] { return descriptorsAfterOneMore() <= before + 2; }))
      << "before: " << before << ", now: " << openDescriptors();
}

}  // namespace
}  // namespace peal::test
