// Numbers of training: N of zero-vectors.json, against the engine.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "peal/adamw.h"
#include "tests/zero/vectors.h"

namespace peal::zero::test {
namespace {

// y = w x, squared error: the gradient of a sample is (w x - y) x, summed on a rank, divided by all samples.
void meanGradient(const json& test) {
  const auto x = test.at("inputs").at("x").get<std::vector<float>>();
  const auto y = test.at("inputs").at("y").get<std::vector<float>>();
  const json& expected = test.at("expected");
  const float w = test.at("inputs").at("w").get<float>();
  std::vector<pealZeroReport_t> reports(2);
  std::vector<float> moments(2);
  onRanks(2, [&](int rank, pealComm_t comm) {
    Engine engine(comm, defaultOptions());
    const int id = engine.addParameter("w", 1, 0, pealZeroNoDecay);
    engine.setInitial(id, &w);
    engine.seal();
    engine.enter(0, pealZeroBackward);
    const float weight = widen(*engine.weights(id));
    float sum = 0;
    for (size_t i = 2 * static_cast<size_t>(rank); i < 2 * static_cast<size_t>(rank) + 2; ++i) {
      const float sample = (weight * x[i] - y[i]) * x[i];
      EXPECT_EQ(sample, expected.at("per_sample")[i].get<float>());
      sum += sample;
    }
    EXPECT_EQ(sum / 2, expected.at("rank_means")[static_cast<size_t>(rank)].get<float>());
    *engine.gradient(id) = roundToBf16(sum);
    engine.gradientReady(id);
    engine.leave(0, pealZeroBackward);
    engine.endMicroBatch();
    reports[static_cast<size_t>(rank)] = engine.step(1e-3, 2);
    engine.read(id, pealZeroMoment1, &moments[static_cast<size_t>(rank)]);
  });
  for (int rank = 0; rank < 2; ++rank) {
    EXPECT_EQ(reports[static_cast<size_t>(rank)].gradientNorm, std::abs(expected.at("mean").get<double>()));
    EXPECT_NEAR(moments[static_cast<size_t>(rank)], 0.1 * expected.at("mean").get<double>(), 1e-6);
  }
}

std::vector<std::vector<float>> trainTen(int ranks, int stage, int steps, std::vector<uint64_t>* adamFloats) {
  std::vector<std::vector<float>> weights(static_cast<size_t>(ranks));
  std::vector<uint64_t> floats(static_cast<size_t>(ranks));
  onRanks(ranks, [&](int rank, pealComm_t comm) {
    pealZeroOptions_t options = defaultOptions();
    options.stage = stage;
    Trainer trainer(comm, rank, options, {{6, 0}, {4, 0}});
    for (int i = 0; i < steps; ++i) {
      trainer.step();
    }
    weights[static_cast<size_t>(rank)] = trainer.read(pealZeroMaster);
    for (const pealZeroArena_t& arena : trainer.engine().memory()) {
      if (std::string(arena.name).starts_with("moment")) {
        floats[static_cast<size_t>(rank)] += arena.bytes / 4;
      }
    }
  });
  if (adamFloats != nullptr) {
    *adamFloats = floats;
  }
  return weights;
}

// AdamW in fp64 without decay, of elements [first, first + count) of an array: sums of B gradients in,
// weights out.
struct Adam64 {
  std::vector<double> weights, moment1, moment2;
  int samples;
  int step = 0;
  Adam64(uint64_t elements, int B)
      : weights(elements, 0.1), moment1(elements), moment2(elements), samples(B) {}
  static void apply(void* user, void* values, size_t first, size_t count) {
    auto& state = *static_cast<Adam64*>(user);
    for (size_t i = 0; i < count; ++i) {
      double& value = static_cast<double*>(values)[i];
      double& m = state.moment1[first + i];
      double& v = state.moment2[first + i];
      const double g = value / state.samples;
      m = 0.9 * m + 0.1 * g;
      v = 0.999 * v + 0.001 * g * g;
      const double root = std::sqrt(v / (1 - std::pow(0.999, state.step)));
      value = state.weights[first + i] -= 1e-2 * (m / (1 - std::pow(0.9, state.step))) / (root + 1e-8);
    }
  }
};

// ZeRO-1 in fp64 by the library's one collective, which each bucket of a fused step is, against one rank that
// has all of it. The engine's own gradients are bf16 or fp32.
void shardedAgainstOneGpu(const json& test) {
  const json& expected = test.at("expected");
  const auto sizes = expected.at("shard_sizes").get<std::vector<size_t>>();
  const int N = test.at("inputs").at("N").get<int>();
  const auto P = test.at("inputs").at("P").get<uint64_t>();
  const auto B = test.at("inputs").at("B").get<int>();
  const int steps = test.at("inputs").at("steps").get<int>();
  for (int rank = 0; rank < N; ++rank) {
    pealZeroPlanInput_t input = inputOf(static_cast<double>(P), N);
    input.rank = rank;
    EXPECT_EQ(plan(input).stages[1].shardElements, sizes[static_cast<size_t>(rank)]);
  }
  const auto sample = [](uint64_t i, int b, int step) {
    return std::sin(static_cast<double>(i * 7) + b * 1.7 + step);
  };
  const auto sumOfSamples = [&](const std::vector<double>& weights, int begin, int end, int step) {
    std::vector<double> sums(weights.size());
    for (uint64_t i = 0; i < weights.size(); ++i) {
      for (int b = begin; b < end; ++b) {
        sums[i] += sample(i, b, step) + weights[i];
      }
    }
    return sums;
  };
  Adam64 one(P, B);
  for (one.step = 1; one.step <= steps; ++one.step) {
    std::vector<double> sums = sumOfSamples(one.weights, 0, B, one.step);
    Adam64::apply(&one, sums.data(), 0, P);
  }
  std::vector<std::vector<double>> replicas(static_cast<size_t>(N));
  onRanks(N, [&](int rank, pealComm_t comm) {
    Adam64 shard(sizes[static_cast<size_t>(rank)], B);
    std::vector<double> weights(P, 0.1);
    for (shard.step = 1; shard.step <= steps; ++shard.step) {
      const auto sums = sumOfSamples(weights, rank * B / N, (rank + 1) * B / N, shard.step);
      ASSERT_EQ(pealReduceApplyGather(sums.data(), weights.data(), sizes.data(), pealFloat64, &Adam64::apply,
                                      &shard, comm, nullptr),
                pealSuccess)
          << pealGetLastError(comm);
    }
    replicas[static_cast<size_t>(rank)] = weights;
  });
  double difference = 0;
  for (uint64_t i = 0; i < P; ++i) {
    difference = std::max(difference, std::abs(one.weights[i] - replicas[0][i]));
    EXPECT_GT(std::abs(one.weights[i] - 0.1), 1e-3);  // it moved
  }
  EXPECT_LT(difference, expected.at("max_abs_diff_lt").get<double>());
  ASSERT_EQ(expected.at("replicas"), "bitwise equal");
  for (const std::vector<double>& weights : replicas) {
    EXPECT_EQ(weights, replicas[0]);
  }
  const auto trained = trainTen(N, 1, steps, nullptr);
  for (const std::vector<float>& weights : trained) {
    EXPECT_EQ(weights, trained[0]);
  }
}

void fiftyAdamSteps(const json& test) {
  const json& expected = test.at("expected");
  const int N = test.at("inputs").at("N").get<int>();
  std::vector<uint64_t> replicated, sharded;
  const auto ddp = trainTen(N, 0, 50, &replicated);
  const auto stage1 = trainTen(N, 1, 50, &sharded);
  double difference = 0;
  for (size_t i = 0; i < ddp[0].size(); ++i) {
    difference = std::max(difference, static_cast<double>(std::abs(ddp[0][i] - stage1[0][i])));
  }
  EXPECT_EQ(difference, expected.at("max_abs_diff").get<double>());
  uint64_t all = 0, shards = 0;
  for (int rank = 0; rank < N; ++rank) {
    all += replicated[static_cast<size_t>(rank)];
    shards += sharded[static_cast<size_t>(rank)];
  }
  EXPECT_EQ(all, expected.at("adam_floats_ddp").get<uint64_t>());
  EXPECT_EQ(shards, expected.at("adam_floats_z1").get<uint64_t>());
}

void floatsOfReduceScatter(const json& test) {
  const int N = test.at("inputs").at("N").get<int>();
  std::vector<uint64_t> sizes(static_cast<size_t>(N));
  onRanks(N, [&](int rank, pealComm_t comm) {
    pealZeroOptions_t options = defaultOptions();
    options.stage = 2;
    Trainer trainer(comm, rank, options, {{test.at("inputs").at("P").get<uint64_t>(), 0}});
    for (const pealZeroArena_t& arena : trainer.engine().memory()) {
      if (std::string(arena.name) == "gradients") {
        sizes[static_cast<size_t>(rank)] = arena.bytes / 2;
      }
    }
  });
  EXPECT_EQ(json(sizes), test.at("expected").at("sizes"));
}

void shardedClip(const json& test) {
  ASSERT_EQ(test.at("inputs").at("formula"), "scale=min(1,max_norm/(sqrt(sum sq)+1e-6))");
  ASSERT_EQ(test.at("expected").at("same_on_all_ranks"), true);
  for (const double maxNorm : {1e-3, 0.1, 1e6}) {
    std::vector<pealZeroReport_t> reports(4);
    onRanks(4, [&](int rank, pealComm_t comm) {
      pealZeroOptions_t options = defaultOptions();
      options.clipNorm = maxNorm;
      Trainer trainer(comm, rank, options, unevenShape());
      reports[static_cast<size_t>(rank)] = trainer.step();
    });
    for (const pealZeroReport_t& report : reports) {
      EXPECT_EQ(report.clipFactor, std::min(1.0, maxNorm / (report.gradientNorm + 1e-6)));
      EXPECT_EQ(report.clipFactor, reports[0].clipFactor);
    }
    EXPECT_EQ(reports[0].clipFactor == 1.0, maxNorm == 1e6);
  }
}

}  // namespace

Handlers numberHandlers() {
  return {
      {"N01", meanGradient},          {"N02", shardedAgainstOneGpu}, {"N03", fiftyAdamSteps},
      {"N04", floatsOfReduceScatter}, {"N05", shardedClip},
  };
}

}  // namespace peal::zero::test
