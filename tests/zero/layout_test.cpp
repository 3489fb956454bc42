// Where elements lie and who owns them.
#include "lib/zero/layout.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <numeric>

#include "lib/zero/planner.h"

namespace peal::zero {
namespace {

std::vector<Parameter> model(const std::vector<uint64_t>& sizes, const std::vector<int>& units) {
  std::vector<Parameter> parameters;
  for (size_t i = 0; i < sizes.size(); ++i) {
    parameters.push_back(
        {fmt::format("p{}", i), sizes[i], units[i], i % 2 == 0 ? pealZeroDecay : pealZeroNoDecay});
  }
  return parameters;
}

std::vector<Parameter> flat(const std::vector<uint64_t>& sizes) {
  return model(sizes, std::vector<int>(sizes.size(), 0));
}

TEST(Layout, BucketsFillFromTheEndAndNeverSplitAParameter) {
  const Layout layout = makeLayout(flat({4, 3, 100, 2, 5, 1}), {false}, 2, 2, 0, 8);
  ASSERT_EQ(layout.elements, 115u);
  // 1 + 5 + 2 = 8 fill the first bucket; 100 is larger than a bucket; 3 + 4 the last.
  ASSERT_EQ(layout.buckets.size(), 3u);
  EXPECT_EQ(layout.buckets[0].begin, 107u);
  EXPECT_EQ(layout.buckets[0].elements, 8u);
  EXPECT_EQ(layout.buckets[0].parameters, (std::vector<size_t>{3, 4, 5}));
  EXPECT_EQ(layout.buckets[1].elements, 100u);
  EXPECT_EQ(layout.buckets[2].begin, 0u);
  EXPECT_EQ(layout.buckets[2].elements, 7u);
  EXPECT_EQ(layout.largestBucket, 100u);
  EXPECT_EQ(layout.parameters[3].begin, 107u);
  EXPECT_EQ(layout.parameters[3].bucket, 0u);
}

TEST(Layout, AtStage3ABucketIsAUnit) {
  const Layout layout =
      makeLayout(model({4, 3, 100, 2, 5, 1}, {0, 0, 1, 1, 2, 2}), {false, true, false}, 3, 4, 1, 8);
  ASSERT_EQ(layout.units.size(), 3u);
  ASSERT_EQ(layout.buckets.size(), 3u);
  EXPECT_TRUE(layout.units[1].kept);
  for (size_t u = 0; u < 3; ++u) {
    EXPECT_EQ(layout.buckets[2 - u].parameters, layout.units[u].parameters);
    EXPECT_EQ(layout.buckets[2 - u].elements, layout.units[u].elements);
  }
  EXPECT_EQ(layout.of[Precision::Bf16].largestUnit, 102u);
}

TEST(Layout, OneBucketGivesTheFirstRanksOneMore) {
  const std::vector<size_t> expected{3, 3, 2, 2};
  EXPECT_EQ(makeLayout(flat({10}), {false}, 1, 4, 0, 1 << 20).buckets[0].counts, expected);
}

// However the space is cut, a rank's blocks add up to the shard that the planner knows without buckets.
TEST(Layout, BlocksOfAnyBucketsAddUpToThePlannersShard) {
  const std::vector<uint64_t> sizes{7, 1, 0, 13, 5, 2, 2, 1, 31, 3, 11, 1, 0, 17};
  for (const int ranks : {1, 2, 3, 4, 5, 7, 64, 1000}) {
    for (const size_t bucketElements : {1, 3, 7, 20, 1 << 19}) {
      uint64_t total = 0;
      for (int rank = 0; rank < ranks; ++rank) {
        const Layout layout = makeLayout(flat(sizes), {false}, 2, ranks, rank, bucketElements);
        EXPECT_EQ(layout.shardElements, shardElements(layout.elements, ranks, rank));
        uint64_t inShard = 0;
        for (const Bucket& bucket : layout.buckets) {
          EXPECT_EQ(std::accumulate(bucket.counts.begin(), bucket.counts.end(), uint64_t{0}),
                    bucket.elements);
          EXPECT_EQ(bucket.shardBegin, inShard);
          EXPECT_EQ(bucket.ownElements, bucket.counts[static_cast<size_t>(rank)]);
          inShard += bucket.ownElements;
          for (const size_t count : bucket.counts) {
            EXPECT_LE(count - bucket.elements / static_cast<uint64_t>(ranks), 1u);
          }
        }
        total += layout.shardElements;
      }
      EXPECT_EQ(total, 94u);
    }
  }
}

TEST(Layout, FewerElementsThanRanks) {
  for (int rank = 0; rank < 5; ++rank) {
    const Layout layout = makeLayout(flat({1, 0, 2}), {false}, 3, 5, rank, 1 << 20);
    EXPECT_EQ(layout.shardElements, rank < 3 ? 1u : 0u);
  }
  EXPECT_EQ(makeLayout(flat({0, 0}), {false}, 1, 3, 2, 1 << 20).shardElements, 0u);
}

// Trained ones lie as if the frozen ones were not there; those lie behind them, and are divided alike.
TEST(Layout, FrozenParametersLieBehindAndTiedNamesNowhere) {
  const std::vector<uint64_t> sizes{7, 5, 3, 11, 4, 7, 2};
  for (const int ranks : {1, 2, 3, 5, 64}) {
    for (const int stage : {1, 3}) {
      uint64_t trained = 0, frozen = 0;
      for (int rank = 0; rank < ranks; ++rank) {
        std::vector<Parameter> parameters = model(sizes, {0, 0, 1, 1, 2, 0, 2});
        parameters[1].role = Role::Frozen;
        parameters[2].role = Role::Frozen;
        parameters[3].role = Role::Frozen;  // unit 1 is all frozen
        parameters[5].role = Role::Alias;
        parameters[5].tiedTo = 0;
        const Layout layout = makeLayout(parameters, {false, false, false}, stage, ranks, rank, 4);
        EXPECT_EQ(layout.elements, 13u);
        EXPECT_EQ(layout.frozenElements, 19u);
        EXPECT_EQ(layout.shardElements, shardElements(13, ranks, rank));
        EXPECT_EQ(layout.frozenShardElements, shardElements(19, ranks, rank));
        trained += layout.shardElements;
        frozen += layout.frozenShardElements;
        EXPECT_EQ(layout.parameters[4].begin, 7u);
        EXPECT_EQ(layout.parameters[6].begin, 11u);
        EXPECT_EQ(layout.parameters[1].begin, 13u);
        EXPECT_EQ(layout.parameters[3].begin, 21u);
        EXPECT_EQ(layout.parameters[5].begin, 0u);
        EXPECT_EQ(&layout.bucketOf(layout.parameters[5]), &layout.bucketOf(layout.parameters[0]));
        EXPECT_EQ(&layout.bucketOf(layout.parameters[2]), &layout.frozen[1]);
        EXPECT_EQ(layout.frozen[0].shardBegin, layout.shardElements);
        EXPECT_EQ(layout.of[Precision::Bf16].largestUnit, 14u);
        if (stage == 3) {
          EXPECT_EQ(layout.buckets.size(), 2u);
          EXPECT_TRUE(layout.units[1].buckets.empty());
          EXPECT_EQ(layout.largestBucket, 7u);
        }
      }
      EXPECT_EQ(trained, 13u);
      EXPECT_EQ(frozen, 19u);
    }
  }
}

// Of each type one bucket is filled at a time; buckets have their numbers by when they are complete, and a
// rank's share of each type is the planner's.
TEST(Layout, BucketsHaveOneTypeAndSharesOfEachTypeArePlanned) {
  for (const int ranks : {1, 2, 3, 5, 64}) {
    for (const int stage : {1, 3}) {
      PerPrecision<uint64_t> owned;
      for (int rank = 0; rank < ranks; ++rank) {
        std::vector<Parameter> parameters = model({7, 5, 3, 11, 4, 6, 9, 2}, {0, 0, 1, 1, 2, 2, 2, 2});
        for (const size_t wide : {1, 3, 5, 7}) {
          parameters[wide].precision = Precision::Fp32;
        }
        parameters[6].role = parameters[7].role = Role::Frozen;
        const Layout layout = makeLayout(parameters, {false, false, false}, stage, ranks, rank, 14);
        const Extent& narrow = layout.of[Precision::Bf16];
        const Extent& wide = layout.of[Precision::Fp32];
        EXPECT_EQ(narrow.elements, 14u);
        EXPECT_EQ(wide.elements, 22u);
        EXPECT_EQ(narrow.shardElements, shardElements(14, ranks, rank));
        EXPECT_EQ(wide.shardElements, shardElements(22, ranks, rank));
        EXPECT_EQ(narrow.frozenShardElements, shardElements(9, ranks, rank));
        EXPECT_EQ(wide.frozenShardElements, shardElements(2, ranks, rank));
        for (const Bucket& bucket : layout.buckets) {
          for (const size_t id : bucket.parameters) {
            EXPECT_EQ(layout.parameters[id].precision, bucket.precision);
          }
          owned[bucket.precision] += bucket.ownElements;
        }
        if (stage == 1) {
          // Backwards: 5, and not 3 with it; 3, and not 1; 4, 2 and 0, of which the last is the very last.
          ASSERT_EQ(layout.buckets.size(), 4u);
          EXPECT_EQ(layout.buckets[0].parameters, (std::vector<size_t>{5}));
          EXPECT_EQ(layout.buckets[1].parameters, (std::vector<size_t>{3}));
          EXPECT_EQ(layout.buckets[2].parameters, (std::vector<size_t>{1}));
          EXPECT_EQ(layout.buckets[3].parameters, (std::vector<size_t>{0, 2, 4}));
        } else {
          ASSERT_EQ(layout.buckets.size(), 6u);
          EXPECT_EQ(layout.units[1].buckets, (std::vector<size_t>{2, 3}));
        }
        // fp32 weights first: 22 and 2 elements of 4 bytes.
        EXPECT_EQ(layout.bucketOf(layout.parameters[7]).weightsAt, 88u);
        EXPECT_EQ(layout.bucketOf(layout.parameters[6]).weightsAt, 96u + 28u);
        EXPECT_EQ(layout.parameters[1].begin, 14u);
      }
      EXPECT_EQ(owned[Precision::Bf16], 14u);
      EXPECT_EQ(owned[Precision::Fp32], 22u);
    }
  }
}

TEST(Layout, SegmentsChangeWithTheDecay) {
  // Decay, none, decay: elements 0-3, 4-6, 7-11; the zero-length parameter makes no segment.
  std::vector<Parameter> parameters = flat({4, 3, 0, 5});
  parameters[3].decay = pealZeroDecay;
  const Layout layout = makeLayout(parameters, {false}, 1, 1, 0, 1 << 20);
  const std::vector<Segment> segments = updateSegments(layout, layout.buckets[0], 2, 9);
  ASSERT_EQ(segments.size(), 3u);
  EXPECT_EQ(segments[0].begin, 2u);
  EXPECT_EQ(segments[0].elements, 2u);
  EXPECT_EQ(segments[0].decay, pealZeroDecay);
  EXPECT_EQ(segments[1].elements, 3u);
  EXPECT_EQ(segments[1].decay, pealZeroNoDecay);
  EXPECT_EQ(segments[2].begin, 7u);
  EXPECT_EQ(segments[2].elements, 4u);
  EXPECT_EQ(segments[2].index, 7u);
  parameters[1].decay = pealZeroDecay;
  parameters[3].group = 1;
  const Layout grouped = makeLayout(parameters, {false}, 1, 1, 0, 1 << 20);
  const std::vector<Segment> byGroup = updateSegments(grouped, grouped.buckets[0], 2, 9);
  ASSERT_EQ(byGroup.size(), 2u);
  EXPECT_EQ(byGroup[0].elements, 5u);
  EXPECT_EQ(byGroup[1].group, 1);
}

}  // namespace
}  // namespace peal::zero
