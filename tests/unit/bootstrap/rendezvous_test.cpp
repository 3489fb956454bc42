// Ranks meet and exchange blobs: the happy paths.
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/unit/bootstrap/ranks.h"

namespace peal::test {
namespace {

std::vector<std::byte> blobOf(int rank, size_t bytes) {
  return std::vector<std::byte>(bytes, static_cast<std::byte>(rank + 1));
}

class Rendezvous_ : public ::testing::TestWithParam<int> {};

TEST_P(Rendezvous_, AllRanksMeetAndExchange) {
  const int size = GetParam();
  const Result<pealUniqueId> id = createUniqueId();
  ASSERT_TRUE(id) << id.error().message;
  std::vector<Secret> secrets(static_cast<size_t>(size));
  onRanks(size, [&](int rank) {
    const Joined joined = join(*id, rank, size);
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

INSTANTIATE_TEST_SUITE_P(Sizes, Rendezvous_, ::testing::Range(1, 10));

}  // namespace
}  // namespace peal::test
