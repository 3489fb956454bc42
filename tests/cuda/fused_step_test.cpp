// The fused step's kernel on simulated ranks: the bits of a reduce-scatter, the host's AdamW loop and an
// all-gather, for ring and two-shot, blocks of any size, one to three channels, with and without references.
#include <gtest/gtest.h>

#include <cstring>
#include <numeric>
#include <random>
#include <vector>

#include "lib/reduce/reduce.h"
#include "lib/zero/loops.h"
#include "tests/cuda/kernel_ranks.h"
#include "tests/cudasim/core/options.h"

namespace peal::cuda::test {
namespace {

constexpr double kBeta1 = 0.9, kBeta2 = 0.95, kEpsilon = 1e-8, kRate = 1e-2, kScale = 0.5;
constexpr uint64_t kSeed = 5;

struct FusedCase {
  std::vector<size_t> counts;  // of each rank's block
  Algorithm algorithm = Algorithm::TwoShot;
  int slots = 2, channels = 1;
  bool inPlace = false, references = false, stochastic = false;
  bool skip = false;
  enum Kept { Nowhere, Apart, InGradients } kept = Nowhere;  // the sums
  std::vector<int> nodes{};                                  // of each rank; empty: one
  int ahead = 0;
};

// One rank's state, on the host: what the kernel must leave.
struct Shard {
  std::vector<float> master, moment1, moment2;
};

class Fused {
 public:
  explicit Fused(const FusedCase& test)
      : test_(test),
        ranks_({.ranks = size(),
                .channels = test.channels,
                .slots = test.slots,
                .slotBytes = 5120,
                .nodes = test.nodes}) {
    std::mt19937 random(1);
    std::normal_distribution<float> normal(0, 1);
    for (int rank = 0; rank < size(); ++rank) {
      std::vector<uint16_t> gradient(total());
      for (uint16_t& value : gradient) {
        value = toBf16(normal(random));
      }
      gradients_.push_back(gradient);
      Shard shard{std::vector<float>(count(rank)), std::vector<float>(count(rank)),
                  std::vector<float>(count(rank))};
      for (float& value : shard.master) {
        value = normal(random);
      }
      onDevice_.emplace_back(rank, shard, gradient, test);
      shards_.push_back(shard);
    }
  }

  void step() {
    std::vector<std::function<void()>> kernels;
    for (int rank = 0; rank < size(); ++rank) {
      kernels.emplace_back([args = argsOf(rank)] { reduceAdamwGatherKernel()(args); });
    }
    const cudasim::RunResult result = ranks_.run(kernels);
    ASSERT_EQ(ranks_.complaint(result), "");
    ++steps_;
    if (!test_.skip) {
      expectStep();
    }
  }

  void check() {
    for (int rank = 0; rank < size(); ++rank) {
      SCOPED_TRACE(testing::Message() << "rank " << rank);
      const OnDevice& device = onDevice_[static_cast<size_t>(rank)];
      const Shard& shard = shards_[static_cast<size_t>(rank)];
      equal(device.master, shard.master);
      equal(device.moment1, shard.moment1);
      equal(device.moment2, shard.moment2);
      if (!test_.skip) {
        equal(device.weights, weights_);
        expectKept(rank);
      }
      EXPECT_EQ(device.control.host<pealAdamwControl_t>()->step, test_.skip ? 0 : steps_);
      EXPECT_TRUE(device.weights.frontIntact() && device.master.frontIntact());
    }
  }

  void expectKept(int rank) const {
    if (test_.kept == FusedCase::Nowhere) {
      return;
    }
    const OnDevice& device = onDevice_[static_cast<size_t>(rank)];
    const std::byte* kept =
        test_.kept == FusedCase::Apart ? device.reduced.host() : device.gradients.host() + 2 * start(rank);
    const std::vector<uint16_t> sum = sumFor(rank);
    EXPECT_TRUE(sum.empty() || std::memcmp(kept, sum.data(), 2 * sum.size()) == 0);
  }

  // In place the gradients were overwritten by weights.
  void refillGradients() {
    for (int rank = 0; rank < size(); ++rank) {
      OnDevice& device = onDevice_[static_cast<size_t>(rank)];
      fill(test_.inPlace ? device.weights : device.gradients, gradients_[static_cast<size_t>(rank)]);
    }
  }

 private:
  struct OnDevice {
    OnDevice(int rank, const Shard& shard, const std::vector<uint16_t>& gradient, const FusedCase& test)
        : gradients(rank, 2 * gradient.size()),
          weights(rank, 2 * gradient.size()),
          master(rank, 4 * shard.master.size()),
          moment1(rank, 4 * shard.master.size()),
          moment2(rank, 4 * shard.master.size()),
          reduced(rank, 2 * shard.master.size()),
          control(sizeof(pealAdamwControl_t), rank) {
      fill(master, shard.master);
      fill(moment1, shard.moment1);
      fill(moment2, shard.moment2);
      *control.host<pealAdamwControl_t>() = {0, kRate, kScale, test.skip ? uint64_t{1} : 0, 0};
    }
    Array gradients, weights, master, moment1, moment2, reduced;
    cudasim::DeviceBuffer control;
  };

  template <class T>
  static void fill(const Array& array, const std::vector<T>& values) {
    if (!values.empty()) {
      std::memcpy(array.host(), values.data(), values.size() * sizeof(T));
    }
  }
  template <class T>
  static void equal(const Array& array, const std::vector<T>& values) {
    EXPECT_TRUE(values.empty() || std::memcmp(array.host(), values.data(), values.size() * sizeof(T)) == 0);
  }

  int size() const { return static_cast<int>(test_.counts.size()); }
  size_t count(int rank) const { return test_.counts[static_cast<size_t>(rank)]; }
  size_t start(int rank) const {
    return std::accumulate(test_.counts.begin(), test_.counts.begin() + rank, size_t{0});
  }
  size_t total() const { return start(size()); }

  void* reducedOf(int rank) const {
    const OnDevice& device = onDevice_[static_cast<size_t>(rank)];
    return test_.kept == FusedCase::Nowhere ? nullptr
           : test_.kept == FusedCase::Apart ? static_cast<void*>(device.reduced.device())
                                            : device.gradients.device() + 2 * start(rank);
  }

  ReduceAdamwGatherArgs argsOf(int rank) {
    const OnDevice& device = onDevice_[static_cast<size_t>(rank)];
    ReduceAdamwGatherArgs args{};
    CollectiveArgs& call = args.collective;
    call.comm = ranks_.view(rank);
    call.digest.count = total();
    call.digest.collective = pealStatAllReduce;
    call.digest.type = pealBfloat16;
    call.kind = pealStatAllReduce;
    call.algorithm = test_.algorithm;
    call.ahead = test_.ahead;
    call.op = pealSum;
    call.in = test_.inPlace ? device.weights.device() : device.gradients.device();
    call.out = device.weights.device();
    call.total = total();
    call.parts = size();
    call.hasStarts = 1;
    for (int r = 0; r <= size(); ++r) {
      call.starts[r] = start(r);
    }
    call.chunkCount = ranks_.shape().payloadBytes(Protocol::Simple) / 2;
    for (int peer = 0; test_.references && peer < size(); ++peer) {
      call.inAt[peer] = reinterpret_cast<uint64_t>(call.in);
      call.outAt[peer] = reinterpret_cast<uint64_t>(call.out);
    }
    const auto floats = [](const Array& array) { return reinterpret_cast<float*>(array.device()); };
    args.state = {kBeta1,
                  kBeta2,
                  kEpsilon,
                  floats(device.master),
                  floats(device.moment1),
                  floats(device.moment2),
                  count(rank),
                  nullptr,
                  0,
                  test_.stochastic ? 1 : 0,
                  kSeed,
                  start(rank),
                  device.control.device<pealAdamwControl_t>(),
                  reducedOf(rank)};
    return args;
  }

  // The gradients' sum over the ranks in the algorithm's order, of the block of `owner`.
  std::vector<uint16_t> sumFor(int owner) const {
    const auto block = [&](int rank) {
      const auto from =
          gradients_[static_cast<size_t>(rank % size())].begin() + static_cast<ptrdiff_t>(start(owner));
      return std::vector<uint16_t>(from, from + static_cast<ptrdiff_t>(count(owner)));
    };
    const auto sum = [&](const std::vector<std::vector<uint16_t>>& parts) {
      std::vector<uint16_t> result(count(owner));
      std::vector<const void*> sources;
      for (const std::vector<uint16_t>& part : parts) {
        sources.push_back(part.data());
      }
      reduce(pealBfloat16, {},
             {.sources = sources, .destinations = {result.data(), nullptr}, .count = result.size()});
      return result;
    };
    if (test_.algorithm == Algorithm::Ring) {
      std::vector<uint16_t> partial = block(owner + 1);
      for (int k = 2; k <= size(); ++k) {
        partial = sum({partial, block(owner + k)});
      }
      return partial;
    }
    std::vector<std::vector<uint16_t>> all;
    const Grouping nodes = ranks_.grouping();
    for (int node = 0; test_.algorithm == Algorithm::Hierarchical && node < nodes.nodes; ++node) {
      std::vector<std::vector<uint16_t>> terms;
      for (int local = 0; local < nodes.nodeSize(node); ++local) {
        terms.push_back(block(nodes.rank(node, local)));
      }
      if (node != nodes.node(owner)) {
        terms = {sum(terms)};
      }
      all.insert(all.end(), terms.begin(), terms.end());
    }
    for (int rank = 0; test_.algorithm != Algorithm::Hierarchical && rank < size(); ++rank) {
      all.push_back(block(rank));
    }
    return sum(all);
  }

  void expectStep() {
    weights_.clear();
    for (int owner = 0; owner < size(); ++owner) {
      Shard& shard = shards_[static_cast<size_t>(owner)];
      std::vector<uint16_t> block = sumFor(owner);
      const AdamwScalars scalars = adamwScalars({kBeta1, kBeta2, kEpsilon, 0}, kRate, steps_, kScale);
      const zero::AdamwArgs args{block.data(),         shard.master.data(), shard.moment1.data(),
                                 shard.moment2.data(), block.data(),        block.size()};
      if (test_.stochastic) {
        zero::loops().adamwStochastic(scalars, args, {kSeed, steps_, start(owner)});
      } else {
        zero::loops().adamw(scalars, args);
      }
      weights_.insert(weights_.end(), block.begin(), block.end());
    }
  }

  const FusedCase test_;
  KernelRanks ranks_;
  std::vector<std::vector<uint16_t>> gradients_;
  std::vector<OnDevice> onDevice_;
  std::vector<Shard> shards_;
  std::vector<uint16_t> weights_;
  uint64_t steps_ = 0;
};

void runTwoSteps(const FusedCase& test) {
  Fused fused(test);
  for (int step = 0; step < 2; ++step) {
    fused.refillGradients();
    fused.step();
    fused.check();
  }
}

TEST(FusedStep, EqualsTheSeparateSteps) {
  const std::vector<std::vector<size_t>> blocks{
      {9}, {64, 64}, {5, 0, 1100}, {3000, 2999, 1, 7000}, {8, 8, 8, 8, 8, 8, 8, 8}};
  for (const auto& counts : blocks) {
    for (const Algorithm algorithm : {Algorithm::TwoShot, Algorithm::Ring}) {
      for (const int channels : {1, 3}) {
        for (const bool inPlace : {false, true}) {
          for (const bool references : {false, true}) {
            SCOPED_TRACE(testing::Message()
                         << counts.size() << " ranks, algorithm " << static_cast<int>(algorithm) << ", "
                         << channels << " channels, in place " << inPlace << ", references " << references);
            runTwoSteps({.counts = counts,
                         .algorithm = algorithm,
                         .slots = 2,
                         .channels = channels,
                         .inPlace = inPlace,
                         .references = references,
                         .stochastic = channels == 3,
                         .kept = inPlace         ? FusedCase::Apart
                                 : channels == 3 ? FusedCase::InGradients
                                                 : FusedCase::Nowhere});
          }
        }
      }
    }
  }
}

TEST(FusedStep, EqualsTheSeparateStepsOverNodes) {
  for (const bool inPlace : {false, true}) {
    for (const int ahead : {0, 1}) {
      const FusedCase test{.counts = {3000, 0, 1, 7000},
                           .algorithm = Algorithm::Hierarchical,
                           .slots = 1 + 2 * ahead,
                           .channels = 1 + ahead,
                           .inPlace = inPlace,
                           .references = ahead == 1};
      for (const std::vector<int>& nodes : {std::vector<int>{0, 0, 1, 1}, std::vector<int>{0, 1, 0, 0}}) {
        FusedCase placed = test;
        placed.nodes = nodes;
        runTwoSteps(placed);
      }
    }
  }
}

TEST(FusedStep, HoldsUnderStarvationAndDelayedStores) {
  const cudasim::Options before = cudasim::options();
  for (int64_t seed = 1; seed <= 4; ++seed) {
    cudasim::options().seed = seed;
    cudasim::options().random = cudasim::options().starve = cudasim::options().weak = 1;
    for (const Algorithm algorithm : {Algorithm::TwoShot, Algorithm::Ring}) {
      SCOPED_TRACE(testing::Message() << "seed " << seed);
      runTwoSteps({.counts = {700, 0, 1501},
                   .algorithm = algorithm,
                   .channels = 2,
                   .references = seed % 2 == 0,
                   .kept = FusedCase::InGradients});
    }
  }
  cudasim::options() = before;
}

TEST(FusedStep, SkipsTogetherWithoutAMessage) {
  Fused fused({.counts = {40, 50}, .skip = true});
  fused.refillGradients();
  fused.step();
  fused.check();
}

}  // namespace
}  // namespace peal::cuda::test
