// Buckets rebuilt from the order in which gradients became ready: earlier reductions, and the same bits.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <map>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "tests/zero/breadth.h"
#include "tests/zero/ranks.h"

namespace peal::zero::test {
namespace {

pealZeroOptions_t rebuiltOptions(int stage, size_t bucketBytes = 150, int rebuild = 1) {
  pealZeroOptions_t options = defaultOptions();
  options.stage = stage;
  options.bucketBytes = bucketBytes;
  options.bucketSlots = 64;  // the first step needs one for each bucket if the order is wrong
  options.clipNorm = 0.5;
  options.rebuildBuckets = rebuild;
  return options;
}

// As if the model had been registered the wrong way round.
std::vector<size_t> forwards(const Shape& shape = unevenShape()) {
  std::vector<size_t> order(shape.size());
  std::iota(order.begin(), order.end(), size_t{0});
  return order;
}

// No parameter is empty: with buckets of two bytes each is a bucket.
Shape plainShape() { return {{37, 0}, {5, 1}, {64, 2}, {129, 3}, {13, 4}, {200, 5}}; }

std::vector<size_t> mixed(size_t step) {
  std::vector<size_t> order = forwards();
  for (size_t i = 0; i < order.size(); ++i) {
    order[i] = (i * step + 3) % order.size();  // 11 parameters: any step visits all
  }
  return order;
}

std::vector<float> stateOf(Trainer& trainer) {
  std::vector<float> all;
  for (const pealZeroTensor_t tensor : {pealZeroMaster, pealZeroMoment1, pealZeroMoment2, pealZeroWeight}) {
    const std::vector<float> values = trainer.read(tensor);
    all.insert(all.end(), values.begin(), values.end());
  }
  return all;
}

using Prepare = std::function<void(int rank, Trainer&)>;

// After each of three steps.
std::vector<std::vector<float>> states(int ranks, const pealZeroOptions_t& options, const Prepare& prepare) {
  std::vector<std::vector<float>> all(3);
  onRanks(ranks, [&](int rank, pealComm_t comm) {
    Trainer trainer(comm, rank, options, unevenShape());
    prepare(rank, trainer);
    for (std::vector<float>& after : all) {
      trainer.step();
      trainer.engine().checkReplicas();
      const std::vector<float> own = stateOf(trainer);
      if (rank == 0) {
        after = own;
      }
    }
    for (const pealZeroArena_t& arena : trainer.engine().memory()) {
      EXPECT_EQ(arena.bytes, arena.plannedBytes) << arena.name;
    }
  });
  return all;
}

bool sameBits(const std::vector<std::vector<float>>& one, const std::vector<std::vector<float>>& other) {
  return one.size() == other.size() &&
         std::equal(one.begin(), one.end(), other.begin(), [](const auto& a, const auto& b) {
           return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
         });
}

// How many reductions were issued after each gradient, of one step.
std::vector<uint64_t> launches(Trainer& trainer, int stage) {
  const int counter = stage == 0 ? pealZeroAllReduce : pealZeroReduceScatter;
  std::vector<uint64_t> after;
  const uint64_t before = trainer.engine().counters().calls[counter];
  trainer.handedOver = [&](size_t) { after.push_back(trainer.engine().counters().calls[counter] - before); };
  trainer.step();
  trainer.handedOver = {};
  return after;
}

TEST(Rebuild, ReductionsStartEarlierAfterTheFirstStep) {
  for (int stage = 0; stage <= 2; ++stage) {
    for (const int rebuild : {0, 1}) {
      onRanks(2, [&](int rank, pealComm_t comm) {
        Trainer trainer(comm, rank, rebuiltOptions(stage, 2, rebuild), plainShape());
        trainer.order = forwards(plainShape());
        const std::vector<uint64_t> first = launches(trainer, stage);
        const std::vector<uint64_t> second = launches(trainer, stage);
        const size_t count = first.size();
        EXPECT_EQ(first.back(), count);  // a bucket for each parameter
        EXPECT_EQ(first[count - 2], 0u) << "the last gradient held all of them back";
        EXPECT_EQ(second.back(), count);
        if (rebuild == 0) {
          EXPECT_EQ(second, first);
          return;
        }
        for (size_t i = 0; i < count; ++i) {
          EXPECT_EQ(second[i], i + 1) << "stage " << stage;
        }
        EXPECT_EQ(launches(trainer, stage), second) << "rebuilt once";
        std::reverse(trainer.order.begin(), trainer.order.end());
        EXPECT_NE(launches(trainer, stage), second) << "and not again";
      });
    }
  }
}

TEST(Rebuild, ChangesNoBits) {
  for (const int ranks : rankCounts({1, 2, 3, 4, 5})) {
    for (const size_t step : {1u, 3u, 7u}) {
      const Prepare inOrder = [&](int, Trainer& trainer) { trainer.order = mixed(step); };
      const auto expected = states(ranks, rebuiltOptions(0, 1 << 20, 0), inOrder);
      for (int stage = 0; stage <= 2; ++stage) {
        for (const size_t bucketBytes : {size_t{2}, size_t{150}, size_t{402}}) {
          EXPECT_TRUE(sameBits(states(ranks, rebuiltOptions(stage, bucketBytes), inOrder), expected))
              << ranks << " ranks, stage " << stage << ", buckets of " << bucketBytes << ", order " << step;
        }
      }
    }
  }
}

// Rounding at random goes by a parameter's place in the registration, which stays.
TEST(Rebuild, ChangesNoBitsWhateverIsKeptAndHowever) {
  const std::vector<std::pair<std::string, std::function<void(pealZeroOptions_t&)>>> choices{
      {"stochastic", [](auto& o) { o.stochasticRounding = 1; }},
      {"remainders", [](auto& o) { o.master = pealZeroMasterRemainder; }},
      {"fp32", [](auto& o) { o.reduceType = pealZeroReduceFp32; }},
      {"micro-batches", [](auto& o) { o.microBatches = 3; }},
      {"each micro-batch", [](auto& o) { o.microBatches = 2, o.reduceEachMicroBatch = 1; }},
      {"groups", [](auto& o) { o.shardGroup = o.stage == 0 ? 0 : 2; }},
      {"groups, micro-batches", [](auto& o) { o.shardGroup = o.stage == 0 ? 0 : 2, o.microBatches = 2; }},
  };
  for (const auto& [name, choose] : choices) {
    for (int stage = 0; stage <= 2; ++stage) {
      const auto run = [&, &choose = choose](int rebuild) {
        pealZeroOptions_t options = rebuiltOptions(stage, 150, rebuild);
        choose(options);
        return states(4, options, [](int, Trainer& trainer) {
          trainer.order = mixed(4);
          trainer.tamper = [](size_t p, int, uint16_t* gradient) { gradient[0] = p == 2 ? 0 : gradient[0]; };
          trainer.order.erase(trainer.order.begin() + 5);  // counts as zeros, and is ready last
        });
      };
      EXPECT_TRUE(sameBits(run(1), run(0))) << name << ", stage " << stage;
    }
  }
}

TEST(Rebuild, FollowsRankZero) {
  for (int stage = 0; stage <= 2; ++stage) {
    const Prepare byRank = [](int rank, Trainer& trainer) {
      trainer.order = rank == 0 ? forwards() : mixed(static_cast<size_t>(1 + rank));
    };
    EXPECT_TRUE(sameBits(states(3, rebuiltOptions(stage, 2), byRank),
                         states(3, rebuiltOptions(stage, 2, 0), byRank)));
    onRanks(3, [&](int rank, pealComm_t comm) {
      Trainer trainer(comm, rank, rebuiltOptions(stage, 2), plainShape());
      trainer.order = forwards(plainShape());
      if (rank > 0) {
        std::reverse(trainer.order.begin(), trainer.order.end());
      }
      trainer.step();
      const std::vector<uint64_t> second = launches(trainer, stage);
      EXPECT_EQ(second.back(), second.size());
      EXPECT_EQ(second.front(), rank == 0 ? 1u : 0u);
    });
  }
}

// What moves is counted apart from training; the formulas hold in the first step, too.
TEST(Rebuild, CountsWhatMovesApart) {
  onRanks(3, [&](int rank, pealComm_t comm) {
    Trainer trainer(comm, rank, rebuiltOptions(2), unevenShape());
    trainer.order = forwards();
    std::vector<pealZeroCounters_t> counters{trainer.engine().counters()};
    for (int i = 0; i < 3; ++i) {
      trainer.step();
      counters.push_back(trainer.engine().counters());
    }
    const auto sent = [&](size_t step, int counter) {
      return counters[step].bytesSent[counter] - counters[step - 1].bytesSent[counter];
    };
    EXPECT_EQ(sent(1, pealZeroReduceScatter), 2 * 2 * trainer.elements() / 3);  // 489 = 3 * 163
    EXPECT_EQ(sent(2, pealZeroAllGather), sent(1, pealZeroAllGather));
    EXPECT_GT(sent(1, pealZeroStart), 0u);
    EXPECT_EQ(sent(2, pealZeroStart) + sent(3, pealZeroStart), 0u);
  });
}

// A checkpoint knows no buckets: it goes from an engine with rebuilt ones to a fresh one, and back.
TEST(Rebuild, CheckpointsDoNotKnowBuckets) {
  const std::string folder = testing::TempDir() + "peal-rebuild-checkpoint";
  std::filesystem::remove_all(folder);
  for (int stage = 0; stage <= 2; ++stage) {
    std::vector<float> expected;
    onRanks(3, [&](int rank, pealComm_t comm) {
      Trainer trainer(comm, rank, rebuiltOptions(stage), unevenShape());
      trainer.order = forwards();
      trainer.step();
      trainer.step();
      trainer.engine().save(folder);
      trainer.step();
      trainer.step();
      const std::vector<float> own = stateOf(trainer);
      if (rank == 0) {
        expected = own;
      }
    });
    for (const int rebuild : {0, 1}) {  // rebuilt again, with moments that are not zero
      onRanks(3, [&](int rank, pealComm_t comm) {
        Trainer trainer(comm, rank, rebuiltOptions(2 - stage, 300, rebuild), unevenShape());
        trainer.order = mixed(6);
        trainer.engine().load(folder);
        trainer.continueAfter(2);
        trainer.step();
        trainer.step();
        EXPECT_EQ(stateOf(trainer), expected) << "stage " << stage;
        trainer.engine().load(folder);
        trainer.continueAfter(2);
        trainer.step();
        trainer.step();
        EXPECT_EQ(stateOf(trainer), expected) << "loaded into rebuilt buckets, stage " << stage;
      });
    }
    std::filesystem::remove_all(folder);
  }
}

}  // namespace
}  // namespace peal::zero::test
