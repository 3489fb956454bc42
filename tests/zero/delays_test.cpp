// Every kind of operation, delayed on each rank in turn, leaves the bits as they are: nothing is read before
// it is there, and no buffer is used again before the stream is done with it.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <set>
#include <thread>
#include <vector>

#include "tests/zero/before.h"
#include "tests/zero/breadth.h"
#include "tests/zero/ranks.h"

namespace peal::zero::test {
namespace {

constexpr std::chrono::milliseconds kFirstDelay{10}, kDelay{1};

// A way to train in which buffers are used again and again.
struct Way {
  int ranks, stage, group, microBatches, each;
  std::vector<Kind> kinds;  // that it has
  bool isFused = false;
};

const std::vector<Way>& ways() {
  static const std::vector<Way> all{
      {2, 0, 0, 2, 1, {Kind::AllReduce, Kind::Sum, Kind::Control, Kind::Update}},
      {2, 1, 0, 2, 0, {Kind::ReduceScatter, Kind::Gather, Kind::Control, Kind::Update}},
      {3, 2, 0, 2, 0, {Kind::ReduceScatter, Kind::Gather, Kind::Sum, Kind::Control, Kind::Update}},
      {3, 3, 0, 2, 0, {Kind::ReduceScatter, Kind::Gather, Kind::Sum, Kind::Control, Kind::Update}},
      {4, 3, 2, 2, 0, {Kind::ReduceScatter, Kind::Gather, Kind::Replicas, Kind::Sum, Kind::Update}},
      {2, 1, 0, 2, 1, {Kind::ReduceScatter, Kind::Sum, Kind::Control, Kind::Fused}, true},
      {3, 2, 0, 1, 0, {Kind::ReduceScatter, Kind::Gather, Kind::Control, Kind::Update, Kind::Fused}, true},
      {4, 2, 2, 2, 1, {Kind::ReduceScatter, Kind::Gather, Kind::Replicas, Kind::Sum, Kind::Update}},
  };
  return all;
}

// The late rank's first operation of that kind comes `first` later, its others kDelay.
std::vector<float> trainDelayed(const Way& way, Kind kind, int lateRank,
                                std::chrono::milliseconds first = kFirstDelay) {
  pealZeroOptions_t options = defaultOptions();
  options.stage = way.stage;
  options.shardGroup = way.group;
  options.microBatches = way.microBatches;
  options.reduceEachMicroBatch = way.each;
  options.bucketBytes = 150;
  options.bucketSlots = 1;
  options.unitSlots = 2;
  options.rebuildBuckets = 0;  // would wait for everything between the two steps
  options.clipNorm = way.isFused ? 0 : 0.5;
  options.skipNonFinite = way.isFused ? 0 : 1;
  std::vector<float> state;
  onRanks(way.ranks, [&](int rank, pealComm_t comm) {
    Trainer trainer(comm, rank, options, unevenShape());
    trainer.announces = way.isFused;
    std::atomic<int> delays{0};  // by the stream's worker and by this thread; read when both are done
    std::vector<float> own;
    {
      const Before before(trainer.engine().handle(), [&](Kind now) {
        if (now == kind && rank == lateRank) {
          std::this_thread::sleep_for(delays++ == 0 ? first : kDelay);
        }
      });
      for (int step = 0; step < 2; ++step) {
        trainer.step();
      }
      for (const pealZeroTensor_t tensor : {pealZeroMaster, pealZeroMoment2, pealZeroWeight}) {
        const std::vector<float> values = trainer.read(tensor);
        own.insert(own.end(), values.begin(), values.end());
      }
    }
    EXPECT_EQ(delays > 0, rank == lateRank) << nameOf(kind);
    if (rank == 0) {
      state = own;
    }
  });
  return state;
}

TEST(Delays, BeforeAnyOperationOnAnyRankChangeNoBits) {
  for (const Way& way : ways()) {
    const std::vector<float> expected = trainDelayed(way, Kind::Other, -1);
    for (const Kind kind : way.kinds) {
      for (int lateRank = firstLateRank(way.ranks); lateRank < way.ranks; ++lateRank) {
        EXPECT_EQ(trainDelayed(way, kind, lateRank), expected)
            << fmt::format("{} ranks, stage {}, groups of {}, each {}: {} of rank {} is late", way.ranks,
                           way.stage, way.group, way.each, nameOf(kind), lateRank);
      }
    }
  }
}

// Long enough that the caller is done with all it can do meanwhile: each kind of operation in each way.
TEST(Delays, OfATenthOfASecondChangeNoBits) {
  std::set<Kind> tried;
  for (const Way& way : ways()) {
    if (way.ranks > kMostRanks) {
      continue;
    }
    const std::vector<float> expected = trainDelayed(way, Kind::Other, -1);
    for (const Kind kind : way.kinds) {
      tried.insert(kind);
      EXPECT_EQ(trainDelayed(way, kind, way.ranks - 1, std::chrono::milliseconds(100)), expected)
          << fmt::format("{} ranks, stage {}, groups of {}, each {}: {} is late", way.ranks, way.stage,
                         way.group, way.each, nameOf(kind));
    }
  }
  // All but what is not training.
  EXPECT_EQ(tried.size() + 1, static_cast<size_t>(kMostRanks < 4 ? kKinds - 1 : kKinds));
}

}  // namespace
}  // namespace peal::zero::test
