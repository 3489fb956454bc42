// The AdamW kernel against the host's loops, bit for bit: sizes, alignments, segments of decay, stochastic
// rounding, the control block.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "lib/executor/cuda/kernels.h"
#include "lib/zero/loops.h"
#include "tests/cudasim/core/buffer.h"
#include "tests/cudasim/core/run.h"

namespace peal::cuda {
namespace {

using cudasim::DeviceBuffer;

// The optimizer's arrays, each at `shift` elements behind an aligned address.
struct Shard {
  enum Array { kNone, kWeight, kMaster, kMoment1, kMoment2 };

  Shard(size_t elements, size_t shiftElements, unsigned seed) : count(elements), shift(shiftElements) {
    std::mt19937 engine(seed);
    std::normal_distribution<float> normal(0, 1);
    for (size_t i = 0; i < count; ++i) {
      gradient.push_back(toBf16(normal(engine) * 1e-2f));
      master.push_back(normal(engine));
      moment1.push_back(normal(engine) * 1e-3f);
      moment2.push_back(std::abs(normal(engine)) * 1e-4f);
      weight.push_back(toBf16(master.back()));
    }
  }
  size_t shiftOf(Array array) const { return array == apart ? shift + 1 : shift; }
  size_t count, shift;
  Array apart = kNone;  // lies one element further than the others
  std::vector<uint16_t> gradient, weight;
  std::vector<float> master, moment1, moment2;
};

// A copy of an array in device memory, with a guard of known bytes on both sides.
template <class T>
class OnDevice {
 public:
  OnDevice(const std::vector<T>& values, size_t shiftElements)
      : count_(values.size()),
        shift_(shiftElements),
        buffer_((values.size() + shiftElements + kGuard) * sizeof(T)) {
    buffer_.fill(0x5a);
    std::copy(values.begin(), values.end(), buffer_.host<T>(shift_ * sizeof(T)));
  }
  T* data() const { return buffer_.device<T>(shift_ * sizeof(T)); }
  std::vector<T> values() const {
    const T* from = buffer_.host<T>(shift_ * sizeof(T));
    return {from, from + count_};
  }
  bool guardsIntact() const {
    const auto* bytes = buffer_.host<uint8_t>();
    const size_t begin = shift_ * sizeof(T);
    const size_t end = (shift_ + count_) * sizeof(T);
    for (size_t i = 0; i < (shift_ + count_ + kGuard) * sizeof(T); ++i) {
      if ((i < begin || i >= end) && bytes[i] != 0x5a) {
        return false;
      }
    }
    return true;
  }

 private:
  static constexpr size_t kGuard = 16;
  size_t count_, shift_;
  DeviceBuffer buffer_;
};

struct Steps {
  std::vector<pealAdamwSegment_t> segments;
  pealAdamwControl_t control{0, 3e-3, 0.25, 0, 0};
  bool stochastic = false;
  unsigned blocks = 2, threads = 64;
  int steps = 3;
};

constexpr double kBeta1 = 0.9, kBeta2 = 0.95, kEpsilon = 1e-8;
constexpr uint64_t kSeed = 77, kFirstIndex = 1'000'003;

// What the kernel leaves in `shard`; the control block afterwards is returned.
pealAdamwControl_t runKernel(Shard& shard, const Steps& run) {
  OnDevice<uint16_t> gradient(shard.gradient, shard.shift),
      weight(shard.weight, shard.shiftOf(Shard::kWeight));
  OnDevice<float> master(shard.master, shard.shiftOf(Shard::kMaster)),
      moment1(shard.moment1, shard.shiftOf(Shard::kMoment1)),
      moment2(shard.moment2, shard.shiftOf(Shard::kMoment2));
  OnDevice<pealAdamwControl_t> control({run.control}, 0);
  OnDevice<pealAdamwSegment_t> segments(run.segments, 0);
  AdamwStepArgs args{};
  args.state = {kBeta1,
                kBeta2,
                kEpsilon,
                master.data(),
                moment1.data(),
                moment2.data(),
                shard.count,
                run.segments.empty() ? nullptr : segments.data(),
                run.segments.size(),
                run.stochastic ? 1 : 0,
                kSeed,
                kFirstIndex,
                control.data(),
                nullptr};
  args.gradient = gradient.data();
  args.weight = weight.data();
  for (int step = 0; step < run.steps; ++step) {
    cudasim::Grid grid{
        .grid = run.blocks, .block = run.threads, .body = [&] { adamwKernel()(args); }, .name = "adamw"};
    cudasim::Grid* grids[] = {&grid};
    const cudasim::RunResult result = cudasim::run(grids, cudasim::World::Alone, cudasim::OnTrap::Return);
    EXPECT_TRUE(result.ok()) << result.text;
  }
  EXPECT_TRUE(gradient.guardsIntact() && weight.guardsIntact() && master.guardsIntact() &&
              moment1.guardsIntact() && moment2.guardsIntact());
  EXPECT_EQ(gradient.values(), shard.gradient);
  shard.weight = weight.values();
  shard.master = master.values();
  shard.moment1 = moment1.values();
  shard.moment2 = moment2.values();
  return control.values().front();
}

void runLoops(Shard& shard, const Steps& run) {
  std::vector<pealAdamwSegment_t> segments = run.segments;
  if (segments.empty()) {
    segments.push_back({shard.count, 0});
  }
  for (int step = 1; step <= run.steps; ++step) {
    const uint64_t number = run.control.step + static_cast<uint64_t>(step);
    AdamwScalars scalars = adamwScalars({kBeta1, kBeta2, kEpsilon, 0}, run.control.learningRate, number,
                                        run.control.gradientScale);
    uint64_t begin = 0;
    for (const pealAdamwSegment_t& segment : segments) {
      const uint64_t end = std::min<uint64_t>(segment.end, shard.count);
      scalars.decayFactor = adamwDecayFactor(run.control.learningRate, segment.weightDecay);
      const zero::AdamwArgs args{shard.gradient.data() + begin, shard.master.data() + begin,
                                 shard.moment1.data() + begin,  shard.moment2.data() + begin,
                                 shard.weight.data() + begin,   end - begin};
      if (run.stochastic) {
        zero::loops().adamwStochastic(scalars, args, {kSeed, number, kFirstIndex + begin});
      } else {
        zero::loops().adamw(scalars, args);
      }
      begin = end;
    }
  }
}

void expectEqualBits(const Shard& kernel, const Shard& loops) {
  EXPECT_EQ(kernel.weight, loops.weight);
  const auto equal = [](const std::vector<float>& a, const std::vector<float>& b) {
    return a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
  };
  EXPECT_TRUE(equal(kernel.master, loops.master));
  EXPECT_TRUE(equal(kernel.moment1, loops.moment1));
  EXPECT_TRUE(equal(kernel.moment2, loops.moment2));
}

TEST(DeviceAdamw, EqualsTheHostsLoops) {
  for (const size_t count : {0, 1, 7, 8, 9, 63, 1024, 1031, 4099}) {
    for (const size_t shift : {0, 1, 3, 8}) {
      SCOPED_TRACE(testing::Message() << count << " elements, shifted by " << shift);
      Shard kernel(count, shift, 1), loops(kernel);
      const Steps run;
      const pealAdamwControl_t control = runKernel(kernel, run);
      runLoops(loops, run);
      expectEqualBits(kernel, loops);
      EXPECT_EQ(control.step, 3u);
      EXPECT_EQ(control.reserved, 0u);
    }
  }
}

TEST(DeviceAdamw, TakesArraysThatAreNotAlignedTogether) {
  for (const Shard::Array array : {Shard::kWeight, Shard::kMaster, Shard::kMoment1, Shard::kMoment2}) {
    SCOPED_TRACE(array);
    Shard kernel(200, 0, 5), loops(kernel);
    kernel.apart = array;
    const Steps run;
    runKernel(kernel, run);
    runLoops(loops, run);
    expectEqualBits(kernel, loops);
  }
}

TEST(DeviceAdamw, DecaysBySegments) {
  const std::vector<std::vector<pealAdamwSegment_t>> cases = {
      {{1000, 0.1}},
      {{3, 0.1}, {4, 0}, {500, 0.2}, {1000, 0}},
      {{1, 0.5}, {1, 0.9}, {999, 0}, {5000, 0.3}},  // an empty segment, and one that ends behind the shard
  };
  for (const auto& segments : cases) {
    for (const bool stochastic : {false, true}) {
      Shard kernel(1000, 0, 2), loops(kernel);
      Steps run;
      run.segments = segments;
      run.stochastic = stochastic;
      run.blocks = 3;
      run.control.step = 1234567;
      EXPECT_EQ(runKernel(kernel, run).step, 1234570u);
      runLoops(loops, run);
      expectEqualBits(kernel, loops);
    }
  }
}

TEST(DeviceAdamw, SkipsWhenTheFlagIsSet) {
  Shard kernel(100, 0, 3);
  const Shard before(kernel);
  Steps run;
  run.control.nonFinite = 1;
  run.control.step = 5;
  EXPECT_EQ(runKernel(kernel, run).step, 5u);
  expectEqualBits(kernel, before);
}

TEST(DeviceAdamw, KeepsNanAndInfinity) {
  Shard kernel(64, 0, 4);
  kernel.gradient[3] = 0x7fc1;
  kernel.gradient[4] = 0x7f80;
  kernel.master[5] = std::numeric_limits<float>::infinity();
  kernel.moment2[6] = 0;
  kernel.gradient[6] = 0;
  for (const bool stochastic : {false, true}) {
    Shard copy(kernel), loops(kernel);
    Steps run;
    run.stochastic = stochastic;
    run.steps = 1;
    runKernel(copy, run);
    runLoops(loops, run);
    EXPECT_EQ(copy.weight.size(), loops.weight.size());
    for (size_t i = 0; i < copy.weight.size(); ++i) {
      const bool nan = std::isnan(fromBf16(loops.weight[i]));
      EXPECT_TRUE(nan ? std::isnan(fromBf16(copy.weight[i])) : copy.weight[i] == loops.weight[i]) << i;
    }
  }
}

}  // namespace
}  // namespace peal::cuda
