// pealAdamwStep and pealReduceAdamwGather on host memory: the loops, segments, the control block, streams,
// the fused step against its parts, and what they refuse.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "lib/zero/loops.h"
#include "peal/adamw.h"

namespace peal::zero {
namespace {

struct Shard {
  static constexpr size_t kCount = 1001;
  std::vector<float> master = std::vector<float>(kCount, 0.5f), moment1 = std::vector<float>(kCount),
                     moment2 = std::vector<float>(kCount);
  std::vector<uint16_t> gradient, weight = std::vector<uint16_t>(kCount);
  pealAdamwControl_t control{4, 1e-2, 0.5, 0, 0};
  std::vector<pealAdamwSegment_t> segments{{100, 0.1}, {100, 0.7}, {kCount + 5, 0}};

  Shard() {
    for (size_t i = 0; i < kCount; ++i) {
      gradient.push_back(toBf16(static_cast<float>(i % 17) - 8));
    }
  }
  pealAdamw_t state() {
    return {0.9,
            0.99,
            1e-8,
            master.data(),
            moment1.data(),
            moment2.data(),
            kCount,
            segments.data(),
            segments.size(),
            0,
            0,
            0,
            &control,
            nullptr};
  }
};

void runLoops(Shard& shard) {
  AdamwScalars scalars = adamwScalars({0.9, 0.99, 1e-8, 0}, 1e-2, 5, 0.5);
  scalars.decayFactor = adamwDecayFactor(1e-2, 0.1);
  loops().adamw(scalars, {shard.gradient.data(), shard.master.data(), shard.moment1.data(),
                          shard.moment2.data(), shard.weight.data(), 100});
  scalars.decayFactor = 1;
  loops().adamw(scalars, {shard.gradient.data() + 100, shard.master.data() + 100, shard.moment1.data() + 100,
                          shard.moment2.data() + 100, shard.weight.data() + 100, Shard::kCount - 100});
}

TEST(AdamwStep, RunsTheLoopsBySegments) {
  Shard expected, shard, inPlace, queued;
  runLoops(expected);
  pealAdamw_t state = shard.state();
  ASSERT_EQ(pealAdamwStep(shard.gradient.data(), shard.weight.data(), &state, PEAL_DEVICE_HOST, nullptr),
            pealSuccess);
  EXPECT_EQ(shard.weight, expected.weight);
  EXPECT_EQ(shard.master, expected.master);
  EXPECT_EQ(shard.control.step, 5u);

  state = inPlace.state();
  ASSERT_EQ(
      pealAdamwStep(inPlace.gradient.data(), inPlace.gradient.data(), &state, PEAL_DEVICE_HOST, nullptr),
      pealSuccess);
  EXPECT_EQ(inPlace.gradient, expected.weight);

  // On a stream the control block is read when the step runs, not when it is queued.
  pealStream_t stream = nullptr;
  ASSERT_EQ(pealStreamCreate(&stream), pealSuccess);
  queued.control.learningRate = 77;
  ASSERT_EQ(pealStreamLaunchHostFunc(
                stream, [](void* control) { static_cast<pealAdamwControl_t*>(control)->learningRate = 1e-2; },
                &queued.control),
            pealSuccess);
  state = queued.state();
  ASSERT_EQ(pealAdamwStep(queued.gradient.data(), queued.weight.data(), &state, PEAL_DEVICE_HOST, stream),
            pealSuccess);
  ASSERT_EQ(pealStreamDestroy(stream), pealSuccess);
  EXPECT_EQ(queued.weight, expected.weight);
}

TEST(AdamwStep, SkipsWhenTheFlagIsSet) {
  Shard shard;
  const Shard before = shard;
  shard.control.nonFinite = 1;
  const pealAdamw_t state = shard.state();
  ASSERT_EQ(pealAdamwStep(shard.gradient.data(), shard.weight.data(), &state, PEAL_DEVICE_HOST, nullptr),
            pealSuccess);
  EXPECT_EQ(shard.weight, before.weight);
  EXPECT_EQ(shard.master, before.master);
  EXPECT_EQ(shard.control.step, 4u);
}

TEST(AdamwStep, RefusesBadStates) {
  const auto refused = [](auto&& spoil, const std::string& sentence) {
    Shard shard;
    pealAdamw_t state = shard.state();
    spoil(shard, state);
    EXPECT_EQ(pealAdamwStep(shard.gradient.data(), shard.weight.data(), &state, PEAL_DEVICE_HOST, nullptr),
              pealInvalidArgument);
    EXPECT_NE(std::string(pealGetLastError(nullptr)).find(sentence), std::string::npos)
        << pealGetLastError(nullptr);
  };
  refused([](Shard&, pealAdamw_t& s) { s.master = nullptr; }, "state->master is NULL and 1001 elements");
  refused([](Shard&, pealAdamw_t& s) { s.control = nullptr; }, "state->control is NULL");
  refused([](Shard&, pealAdamw_t& s) { s.beta1 = 1; }, "beta1 is 1");
  refused([](Shard&, pealAdamw_t& s) { s.epsilon = NAN; }, "epsilon nan");
  refused([](Shard&, pealAdamw_t& s) { s.epsilon = 0; }, "epsilon 0; betas");
  refused([](Shard&, pealAdamw_t& s) { s.epsilon = 1e-46; }, "epsilon 1e-46; betas");  // 0 in fp32
  refused([](Shard&, pealAdamw_t& s) { s.segments = nullptr; }, "segments is NULL and segmentCount is 3");
  refused([](Shard& shard, pealAdamw_t&) { shard.segments[1].end = 99; },
          "segments[1].end is 99, below the 100");
  refused([](Shard& shard, pealAdamw_t&) { shard.segments[2].end = 1000; },
          "the last segment ends at 1000 and the shard has 1001 elements");
  refused(
      [](Shard&, pealAdamw_t& s) {
        s.moment1 = reinterpret_cast<float*>(reinterpret_cast<char*>(s.moment1) + 2);
      },
      "not a multiple of 4");
  Shard shard;
  EXPECT_EQ(pealAdamwStep(shard.gradient.data(), shard.weight.data(), nullptr, PEAL_DEVICE_HOST, nullptr),
            pealInvalidArgument);
}

// ---- the fused step ----

using Body = std::function<void(int rank, pealComm_t comm)>;

void withRanks(int ranks, const Body& body) {
  std::vector<pealComm_t> comms(static_cast<size_t>(ranks));
  ASSERT_EQ(pealCommInitAll(comms.data(), ranks, nullptr), pealSuccess) << pealGetLastError(nullptr);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] { body(rank, comms[static_cast<size_t>(rank)]); });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  for (const pealComm_t comm : comms) {
    EXPECT_EQ(pealCommDestroy(comm), pealSuccess);
  }
}

struct RankShard {
  RankShard(size_t count, int rank)
      : master(count, 0.25f + static_cast<float>(rank)), moment1(count), moment2(count) {}
  pealAdamw_t state() {
    return {0.9, 0.99, 1e-8, master.data(), moment1.data(), moment2.data(), master.size(), nullptr, 0,
            1,   9,    3,    &control,      reduced};
  }
  std::vector<float> master, moment1, moment2;
  pealAdamwControl_t control{0, 1e-2, 1, 0, 0};
  void* reduced = nullptr;
};

TEST(ReduceAdamwGather, EqualsTheThreeSteps) {
  const std::vector<std::vector<size_t>> cases{{17}, {5, 0, 1100}, {0, 0, 0}, {70000, 3, 1, 9}};
  for (const std::vector<size_t>& counts : cases) {
    for (const bool inPlace : {false, true}) {
      const size_t total = std::accumulate(counts.begin(), counts.end(), size_t{0});
      withRanks(static_cast<int>(counts.size()), [&](int rank, pealComm_t comm) {
        const auto own = static_cast<size_t>(rank);
        const size_t before = std::accumulate(counts.begin(), counts.begin() + rank, size_t{0});
        std::vector<uint16_t> gradients(total), weights(total), expected(total);
        for (size_t i = 0; i < total; ++i) {
          gradients[i] = toBf16(static_cast<float>((i * 7 + own * 3) % 19) - 9);
        }
        RankShard fused(counts[own], rank), separate(counts[own], rank);
        std::vector<uint16_t> sums(counts[own]), kept(counts[own]);
        fused.reduced = kept.data();
        for (int step = 0; step < 2; ++step) {
          pealAdamw_t state = separate.state();
          uint16_t* block = expected.data() + before;
          ASSERT_EQ(pealReduceScatterV(gradients.data(), block, counts.data(), pealBfloat16, pealSum, comm,
                                       nullptr),
                    pealSuccess);
          sums.assign(block, block + counts[own]);
          ASSERT_EQ(pealAdamwStep(block, block, &state, PEAL_DEVICE_HOST, nullptr), pealSuccess);
          ASSERT_EQ(pealAllGatherV(block, expected.data(), counts.data(), pealBfloat16, comm, nullptr),
                    pealSuccess);
          weights = gradients;
          state = fused.state();
          ASSERT_EQ(pealReduceAdamwGather(inPlace ? weights.data() : gradients.data(), weights.data(),
                                          counts.data(), &state, comm, nullptr),
                    pealSuccess)
              << pealGetLastError(comm);
          EXPECT_EQ(weights, expected);
          EXPECT_EQ(kept, sums);
          EXPECT_EQ(fused.master, separate.master);
          EXPECT_EQ(fused.moment2, separate.moment2);
        }
        EXPECT_EQ(fused.control.step, 2u);
      });
    }
  }
}

// Sizes around the chunks' boundaries (a slot: 32768 elements) and the epilogue's pieces (8192), with empty
// blocks, memory that peers read in place or not, and on a stream.
TEST(ReduceAdamwGather, EqualsTheThreeStepsAtEveryBoundary) {
  const std::vector<std::vector<size_t>> cases{{8191},
                                               {8192, 8193},
                                               {32767, 32768, 32769},
                                               {0, 65537, 0, 131},
                                               {98305, 1, 0, 40961, 16385},
                                               {2047, 2048, 2049}};
  for (const std::vector<size_t>& counts : cases) {
    const size_t total = std::accumulate(counts.begin(), counts.end(), size_t{0});
    for (const bool readable : {false, true}) {
      withRanks(static_cast<int>(counts.size()), [&](int rank, pealComm_t comm) {
        const auto own = static_cast<size_t>(rank);
        const size_t before = std::accumulate(counts.begin(), counts.begin() + rank, size_t{0});
        std::vector<uint16_t> ownMemory(readable ? 0 : 2 * total), expected(total);
        void* shared = nullptr;
        if (readable) {
          ASSERT_EQ(pealMemAlloc(&shared, 4 * total), pealSuccess);
        }
        uint16_t* gradients = readable ? static_cast<uint16_t*>(shared) : ownMemory.data();
        uint16_t* weights = gradients + total;
        for (size_t i = 0; i < total; ++i) {
          gradients[i] = toBf16(static_cast<float>((i * 7 + own * 3) % 19) * 0.37f - 3);
        }
        const std::vector<uint16_t> before16(gradients, gradients + total);
        const std::vector<pealAdamwSegment_t> segments{{counts[own] / 3, 0.1}, {counts[own], 0.01}};
        RankShard fused(counts[own], rank), separate(counts[own], rank);
        pealStream_t stream = nullptr;
        ASSERT_EQ(pealStreamCreate(&stream), pealSuccess);
        for (int step = 0; step < 2; ++step) {
          pealAdamw_t state = separate.state();
          state.segments = segments.data();
          state.segmentCount = segments.size();
          uint16_t* block = expected.data() + before;
          ASSERT_EQ(pealReduceScatterV(gradients, block, counts.data(), pealBfloat16, pealSum, comm, nullptr),
                    pealSuccess);
          ASSERT_EQ(pealAdamwStep(block, block, &state, PEAL_DEVICE_HOST, nullptr), pealSuccess);
          ASSERT_EQ(pealAllGatherV(block, expected.data(), counts.data(), pealBfloat16, comm, nullptr),
                    pealSuccess);
          state = fused.state();
          state.segments = segments.data();
          state.segmentCount = segments.size();
          ASSERT_EQ(pealReduceAdamwGather(gradients, weights, counts.data(), &state, comm, stream),
                    pealSuccess);
          ASSERT_EQ(pealStreamSynchronize(stream), pealSuccess) << pealGetLastError(comm);
          EXPECT_TRUE(std::equal(expected.begin(), expected.end(), weights));
          EXPECT_TRUE(std::equal(before16.begin(), before16.end(), gradients));
          EXPECT_EQ(fused.master, separate.master);
          EXPECT_EQ(fused.moment1, separate.moment1);
          EXPECT_EQ(fused.moment2, separate.moment2);
        }
        ASSERT_EQ(pealStreamDestroy(stream), pealSuccess);
        if (readable) {
          ASSERT_EQ(pealMemFree(shared), pealSuccess);
        }
      });
    }
  }
}

// A step that all ranks skip sends and writes nothing, keeps its place in the order, and the next one runs.
TEST(ReduceAdamwGather, SkipsOnAllRanks) {
  withRanks(3, [](int rank, pealComm_t comm) {
    const std::vector<size_t> counts{700, 0, 5000};
    std::vector<uint16_t> gradients(5700, toBf16(1)), weights(5700, 7);
    RankShard shard(counts[static_cast<size_t>(rank)], rank);
    const std::vector<float> master = shard.master;
    shard.control.nonFinite = 1;
    const pealAdamw_t state = shard.state();
    pealCommStats_t stats{};
    ASSERT_EQ(pealReduceAdamwGather(gradients.data(), weights.data(), counts.data(), &state, comm, nullptr),
              pealSuccess);
    ASSERT_EQ(pealCommGetStats(comm, &stats), pealSuccess);
    EXPECT_EQ(stats.messages[pealStatAllReduce], 0u);
    EXPECT_EQ(shard.control.step, 0u);
    EXPECT_EQ(shard.master, master);
    EXPECT_EQ(weights, std::vector<uint16_t>(5700, 7));
    shard.control.nonFinite = 0;
    ASSERT_EQ(pealReduceAdamwGather(gradients.data(), weights.data(), counts.data(), &state, comm, nullptr),
              pealSuccess);
    ASSERT_EQ(pealCommGetStats(comm, &stats), pealSuccess);
    EXPECT_GT(stats.messages[pealStatAllReduce], 0u);
    EXPECT_EQ(shard.control.step, 1u);
    EXPECT_EQ(std::count(weights.begin(), weights.end(), uint16_t{7}), 0);
  });
}

// A rank that leaves is an error for the others at once, and the step is not counted.
TEST(ReduceAdamwGather, ARankThatAbortsEndsIt) {
  std::vector<pealComm_t> comms(3);
  ASSERT_EQ(pealCommInitAll(comms.data(), 3, nullptr), pealSuccess);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 3; ++rank) {
    threads.emplace_back([&, rank] {
      const pealComm_t comm = comms[static_cast<size_t>(rank)];
      if (rank == 1) {
        EXPECT_EQ(pealCommAbort(comm), pealSuccess);
        return;
      }
      const std::vector<size_t> counts{70000, 70000, 70000};
      std::vector<uint16_t> data(210000, toBf16(1));
      RankShard shard(70000, rank);
      const pealAdamw_t state = shard.state();
      EXPECT_EQ(pealReduceAdamwGather(data.data(), data.data(), counts.data(), &state, comm, nullptr),
                pealRemoteError);
      EXPECT_EQ(shard.control.step, 0u);
      EXPECT_EQ(pealCommAbort(comm), pealSuccess);
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
}

TEST(ReduceAdamwGather, RefusesWhatDoesNotFit) {
  withRanks(1, [](int, pealComm_t comm) {
    RankShard shard(8, 0);
    const pealAdamw_t state = shard.state();
    std::vector<uint16_t> data(16);
    const size_t nine = 9, eight = 8;
    const auto refused = [&](pealResult_t code, const char* sentence, pealResult_t got) {
      EXPECT_EQ(got, code);
      EXPECT_NE(std::string(pealGetLastError(nullptr)).find(sentence), std::string::npos)
          << pealGetLastError(nullptr);
    };
    refused(pealInvalidArgument, "state->count is 8 on rank 0, whose block has 9",
            pealReduceAdamwGather(data.data(), data.data(), &nine, &state, comm, nullptr));
    refused(pealInvalidArgument, "overlap without being the same array",
            pealReduceAdamwGather(data.data(), data.data() + 4, &eight, &state, comm, nullptr));
    refused(pealInvalidArgument, "counts is NULL",
            pealReduceAdamwGather(data.data(), data.data(), nullptr, &state, comm, nullptr));
    ASSERT_EQ(pealGroupStart(), pealSuccess);
    refused(pealInvalidUsage, "not inside a group",
            pealReduceAdamwGather(data.data(), data.data(), &eight, &state, comm, nullptr));
    ASSERT_EQ(pealGroupEnd(), pealSuccess);
  });
}

// ---- any other update -----------------------------------------------------------------------------------

// What pealReduceApplyGather's function is given: where the next piece begins, and what the results still
// have.
struct Applied {
  const double* block = nullptr;  // this rank's, of the results
  size_t next = 0;
  bool hadResults = true;
  static void negate(void* user, void* values, size_t first, size_t count) {
    auto& applied = *static_cast<Applied*>(user);
    EXPECT_EQ(first, applied.next);
    applied.next += count;
    for (size_t i = 0; i < count; ++i) {
      applied.hadResults = applied.hadResults && (applied.block == nullptr || applied.block[first + i] == 7);
      double& value = static_cast<double*>(values)[i];
      value = -value;
    }
  }
};

TEST(ReduceApplyGather, AppliesToEveryElementOnce) {
  const std::vector<std::vector<size_t>> cases{{17}, {5, 0, 1100}, {0, 0}, {9000, 3, 1, 40961}};
  for (const std::vector<size_t>& counts : cases) {
    const size_t total = std::accumulate(counts.begin(), counts.end(), size_t{0});
    withRanks(static_cast<int>(counts.size()), [&](int rank, pealComm_t comm) {
      std::vector<double> inputs(total + 1), results(total + 1, 7);
      for (size_t i = 0; i < total; ++i) {
        inputs[i] = static_cast<double>(i % 1013) + 1000 * rank;
      }
      Applied applied;
      applied.block = std::accumulate(counts.begin(), counts.begin() + rank, results.data());
      ASSERT_EQ(pealReduceApplyGather(inputs.data(), results.data(), counts.data(), pealFloat64,
                                      &Applied::negate, &applied, comm, nullptr),
                pealSuccess)
          << pealGetLastError(comm);
      EXPECT_EQ(applied.next, counts[static_cast<size_t>(rank)]);
      EXPECT_TRUE(applied.hadResults);
      const auto n = static_cast<double>(counts.size());
      for (size_t i = 0; i < total; ++i) {
        ASSERT_EQ(results[i], -(n * static_cast<double>(i % 1013) + 500 * n * (n - 1))) << i;
      }
      EXPECT_EQ(results[total], 7);
    });
  }
}

TEST(ReduceApplyGather, RefusesWhatDoesNotFit) {
  withRanks(1, [](int, pealComm_t comm) {
    std::vector<double> data(16);
    const size_t eight = 8;
    const auto refused = [&](pealResult_t code, const char* sentence, pealResult_t got) {
      EXPECT_EQ(got, code);
      EXPECT_NE(std::string(pealGetLastError(nullptr)).find(sentence), std::string::npos)
          << pealGetLastError(nullptr);
    };
    Applied applied;
    const auto call = [&](const void* inputs, void* results, pealApply_t apply) {
      return pealReduceApplyGather(inputs, results, &eight, pealFloat64, apply, &applied, comm, nullptr);
    };
    refused(pealInvalidArgument, "apply is NULL", call(data.data(), data.data() + 8, nullptr));
    refused(pealInvalidArgument, "results is NULL", call(data.data(), nullptr, &Applied::negate));
    refused(pealInvalidArgument, "overlap.", call(data.data(), data.data(), &Applied::negate));
    refused(pealInvalidArgument, "overlap.", call(data.data(), data.data() + 7, &Applied::negate));
    EXPECT_EQ(call(data.data(), data.data() + 8, &Applied::negate), pealSuccess);
  });
}

// One rank makes the AdamW step, the other its own: both are told.
TEST(ReduceApplyGather, IsNotTheAdamwStep) {
  withRanks(2, [](int rank, pealComm_t comm) {
    const std::vector<size_t> counts{8, 8};
    std::vector<uint16_t> inputs(16), results(16);
    RankShard shard(8, rank);
    const pealAdamw_t state = shard.state();
    const auto nothing = [](void*, void*, size_t, size_t) {};
    EXPECT_EQ(rank == 0
                  ? pealReduceAdamwGather(inputs.data(), results.data(), counts.data(), &state, comm, nullptr)
                  : pealReduceApplyGather(inputs.data(), results.data(), counts.data(), pealBfloat16, nothing,
                                          nullptr, comm, nullptr),
              pealInvalidUsage);
    EXPECT_NE(std::string(pealGetLastError(comm)).find("sum and apply"), std::string::npos)
        << pealGetLastError(comm);
  });
}

}  // namespace
}  // namespace peal::zero
