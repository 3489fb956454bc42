// Numbers of training: N of zero-vectors.json, against the engine.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

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

// The engine's gradients are bf16, so the fp64 bound is checked by updating as it shards: each of four owners
// updates its block in fp64, and the blocks together are the unsharded update.
void shardedAgainstOneGpu(const json& test) {
  const json& expected = test.at("expected");
  const auto sizes = expected.at("shard_sizes").get<std::vector<uint64_t>>();
  const int N = test.at("inputs").at("N").get<int>();
  const auto P = test.at("inputs").at("P").get<uint64_t>();
  const auto B = test.at("inputs").at("B").get<int>();
  const int steps = test.at("inputs").at("steps").get<int>();
  for (int rank = 0; rank < N; ++rank) {
    pealZeroPlanInput_t input = inputOf(static_cast<double>(P), N);
    input.rank = rank;
    EXPECT_EQ(plan(input).stages[1].shardElements, sizes[static_cast<size_t>(rank)]);
  }
  std::vector<double> one(P, 0.1), many(P, 0.1), m1(P), v1(P), mN(P), vN(P);
  const auto sample = [](uint64_t i, int b, int step) {
    return std::sin(static_cast<double>(i * 7) + b * 1.7 + step);
  };
  const auto adam = [](double g, int t, double& w, double& m, double& v) {
    m = 0.9 * m + 0.1 * g;
    v = 0.999 * v + 0.001 * g * g;
    w -= 1e-2 * (m / (1 - std::pow(0.9, t))) / (std::sqrt(v / (1 - std::pow(0.999, t))) + 1e-8);
  };
  double difference = 0;
  for (int t = 1; t <= steps; ++t) {
    uint64_t begin = 0;
    for (int owner = 0; owner < N; ++owner) {
      for (uint64_t i = begin; i < begin + sizes[static_cast<size_t>(owner)]; ++i) {
        double whole = 0, sum = 0;
        for (int b = 0; b < B; ++b) {
          whole += sample(i, b, t) + one[i];
        }
        for (int rank = 0; rank < N; ++rank) {
          double part = 0;
          for (int b = rank * B / N; b < (rank + 1) * B / N; ++b) {
            part += sample(i, b, t) + many[i];
          }
          sum += part;
        }
        adam(whole / B, t, one[i], m1[i], v1[i]);
        adam(sum / B, t, many[i], mN[i], vN[i]);
        difference = std::max(difference, std::abs(one[i] - many[i]));
      }
      begin += sizes[static_cast<size_t>(owner)];
    }
    EXPECT_EQ(begin, P);
  }
  EXPECT_LT(difference, expected.at("max_abs_diff_lt").get<double>());
  ASSERT_EQ(expected.at("replicas"), "bitwise equal");
  const auto weights = trainTen(N, 1, steps, nullptr);
  for (const std::vector<float>& rank : weights) {
    EXPECT_EQ(rank, weights[0]);
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
