// pealAdamwStep on host memory: the loops, segments, the control block, streams, and what it refuses.
#include <gtest/gtest.h>

#include <cstring>
#include <string>
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
            &control};
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

}  // namespace
}  // namespace peal::zero
