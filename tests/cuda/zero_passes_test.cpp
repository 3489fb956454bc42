// The kernels of the ZeRO engine against the host's loops, bit for bit: sizes, alignments, values of all
// magnitudes, several blocks, in the simulator's modes.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <random>
#include <vector>

#include "lib/zero/cuda/kernels.h"
#include "lib/zero/loops.h"
#include "lib/zero/norm.h"
#include "tests/cuda/draws.h"
#include "tests/cuda/kernel_modes.h"
#include "tests/cudasim/core/buffer.h"
#include "tests/cudasim/core/run.h"

namespace peal::cuda {
namespace {

using cudasim::DeviceBuffer;
using test::InMode;
using test::Mode;

constexpr size_t kGuardElements = 16;

// An array in device memory, `shift` elements behind an aligned address, where the memory ends that a kernel
// may touch; what is before it stays as it is.
template <class T>
class ShiftedArray {
 public:
  ShiftedArray(const std::vector<T>& values, size_t shift)
      : begin_((kGuardElements + shift) * sizeof(T)),
        count_(values.size()),
        buffer_(begin_ + values.size() * sizeof(T) + 1) {
    buffer_.fill(0x5a);
    if (!values.empty()) {
      std::memcpy(buffer_.template host<T>(begin_), values.data(), values.size() * sizeof(T));
    }
  }
  T* data() const { return buffer_.template device<T>(begin_); }
  std::vector<T> values() const {
    const T* from = buffer_.template host<T>(begin_);
    return {from, from + count_};
  }
  bool isFramed() const {
    const auto* bytes = buffer_.template host<uint8_t>();
    bool whole = bytes[begin_ + count_ * sizeof(T)] == 0x5a;
    for (size_t i = 0; i < begin_; ++i) {
      whole = whole && bytes[i] == 0x5a;
    }
    return whole;
  }

 private:
  size_t begin_, count_;
  DeviceBuffer buffer_;
};

void launchOn(unsigned blocks, unsigned threads, const char* name, const std::function<void()>& body) {
  cudasim::Grid grid{.grid = {blocks}, .block = {threads}, .body = body, .name = name};
  cudasim::Grid* const grids[] = {&grid};
  const cudasim::RunResult result = cudasim::run(grids, cudasim::World::Alone, cudasim::OnTrap::Return);
  ASSERT_TRUE(result.ok()) << result.text;
}

// exponents: fields of the bf16 values are drawn from [least, least + spread].
std::vector<uint16_t> drawnValues(size_t count, unsigned seed, int least, int spread) {
  std::mt19937 engine(seed);
  std::vector<uint16_t> values(count);
  for (uint16_t& value : values) {
    const auto field = static_cast<unsigned>(least) + engine() % static_cast<unsigned>(spread + 1);
    value = static_cast<uint16_t>((engine() & 0x807fu) | field << 7);
  }
  return values;
}

std::vector<float> drawnWide(size_t count, unsigned seed, int least, int spread) {
  std::mt19937 engine(seed);
  std::vector<float> values(count);
  for (float& value : values) {
    const auto field = static_cast<unsigned>(least) + engine() % static_cast<unsigned>(spread + 1);
    value = __builtin_bit_cast(
        float, (static_cast<uint32_t>(engine()) & 0x807fffffu) | static_cast<uint32_t>(field) << 23);
  }
  return values;
}

std::vector<uint32_t> bitsOfSums(const std::vector<float>& sums) {
  std::vector<uint32_t> bits(sums.size());
  std::transform(sums.begin(), sums.end(), bits.begin(),
                 [](float sum) { return __builtin_bit_cast(uint32_t, sum); });
  return bits;
}

template <class Value>
std::vector<Value> drawn(size_t count, unsigned seed, int least, int spread) {
  if constexpr (sizeof(Value) == 4) {
    return drawnWide(count, seed, least, spread);
  } else {
    return drawnValues(count, seed, least, spread);
  }
}

void runLoop(int kind, std::vector<uint16_t>& values, std::vector<float>& sums) {
  const zero::Loops& loops = zero::loops();
  const size_t count = values.size();
  kind == 0   ? loops.widen(values.data(), sums.data(), count)
  : kind == 1 ? loops.add(values.data(), sums.data(), count)
  : kind == 2 ? loops.addAndRound(values.data(), sums.data(), count)
              : loops.round(sums.data(), values.data(), count);
}
void runLoop(int kind, std::vector<float>& values, std::vector<float>& sums) {
  std::vector<float>& made = kind >= 2 ? values : sums;
  for (size_t i = 0; i < values.size(); ++i) {
    made[i] = kind == 0 ? values[i] : kind == 3 ? sums[i] : values[i] + sums[i];
  }
}

template <class Value>
void expectPass(int kind, size_t count, size_t valueShift, size_t sumShift) {
  SCOPED_TRACE(testing::Message() << count << " elements of " << sizeof(Value) << " bytes, shifts "
                                  << valueShift << " and " << sumShift << ", kind " << kind);
  std::vector<Value> values = drawn<Value>(count, 7, 100, 30);
  std::vector<float> sums(count);
  for (size_t i = 0; i < count; ++i) {
    sums[i] = static_cast<float>(static_cast<int>(i % 101) - 50) * 0.0173f;
  }
  const ShiftedArray<Value> onValues(values, valueShift);
  const ShiftedArray<float> onSums(sums, sumShift);
  const ZeroPassArgs args{onValues.data(), onSums.data(), count, kind, sizeof(Value) == 4 ? 1 : 0};
  launchOn(3, 64, "zeroPass", [&] { zeroPassKernel()(args); });
  runLoop(kind, values, sums);
  const std::vector<Value> made = onValues.values();
  EXPECT_TRUE(made.empty() || std::memcmp(made.data(), values.data(), count * sizeof(Value)) == 0);
  EXPECT_EQ(bitsOfSums(onSums.values()), bitsOfSums(sums));
  EXPECT_TRUE(onValues.isFramed() && onSums.isFramed());
}

TEST(ZeroPasses, GiveTheBitsOfTheLoops) {
  for (const size_t count : {0, 1, 7, 8, 63, 1031, 4096}) {
    for (int kind = 0; kind < 4; ++kind) {
      for (const auto& [valueShift, sumShift] : {std::pair<size_t, size_t>{0, 0}, {3, 3}, {8, 4}, {1, 0}}) {
        expectPass<uint16_t>(kind, count, valueShift, sumShift);
      }
      for (const auto& [valueShift, sumShift] : {std::pair<size_t, size_t>{0, 0}, {3, 3}, {4, 8}, {1, 0}}) {
        expectPass<float>(kind, count, valueShift, sumShift);
      }
    }
  }
}

template <class Value>
zero::SquareSum countedByKernel(const std::vector<Value>& values, size_t shift, unsigned blocks) {
  constexpr bool kIsWide = sizeof(Value) == 4;
  constexpr size_t kParts = kIsWide ? 3 : 2;
  const ShiftedArray<Value> onValues(values, shift);
  const ShiftedArray<uint64_t> counted(std::vector<uint64_t>(kParts * zero::kExponents), 0);
  // In two launches, as two buckets of a step are.
  const size_t half = values.size() / 2;
  for (const auto& [begin, count] : {std::pair<size_t, size_t>{0, half}, {half, values.size() - half}}) {
    const ZeroSquaresArgs args{onValues.data() + begin, count, counted.data()};
    const ZeroSquaresKernel kernel = kIsWide ? zeroWideSquaresKernel() : zeroSquaresKernel();
    launchOn(blocks, kZeroSquareThreads, "zeroSquares", [&] { kernel(args); });
  }
  EXPECT_TRUE(onValues.isFramed() && counted.isFramed());
  zero::CountedSquares numbers{};
  const std::vector<uint64_t> all = counted.values();
  std::memcpy(&numbers, all.data(), all.size() * sizeof all[0]);
  zero::SquareSum sum;
  sum.addCounted(numbers, kIsWide ? zero::SquareSum::Counted::Fp32 : zero::SquareSum::Counted::Bf16);
  return sum;
}

double widened(uint16_t value) { return fromBf16(value); }
double widened(float value) { return value; }

template <class Value>
void expectSquares(const std::vector<Value>& values, size_t shift, unsigned blocks) {
  const zero::SquareSum byKernel = countedByKernel(values, shift, blocks);
  zero::SquareSum byLoops;
  byLoops.add(values.data(), values.size());
  EXPECT_EQ(byKernel.nonFinite(), byLoops.nonFinite());
  EXPECT_EQ(byKernel.limbs(), byLoops.limbs());
  const double expected = zero::squareSumValue(byLoops.limbs());
  double plain = 0;
  for (const Value value : values) {
    const double wide = widened(value);
    plain += std::isfinite(wide) ? wide * wide : 0;
  }
  EXPECT_NEAR(expected, plain, 1e-12 * plain);
}

template <class Value>
void expectSquaresOfAllMagnitudes() {
  struct Magnitudes {
    int least, spread;
  };
  for (const Magnitudes magnitudes :
       {Magnitudes{110, 12}, {110, 11}, {110, 40}, {0, 3}, {0, 254}, {240, 14}, {239, 15}, {0, 255}}) {
    for (const size_t count : {1, 9, 256, 3001}) {
      for (const size_t shift : {0, 3, 8}) {
        SCOPED_TRACE(testing::Message() << count << " values, exponents " << magnitudes.least << " + "
                                        << magnitudes.spread << ", shift " << shift);
        const auto seed = static_cast<unsigned>(count);
        expectSquares(drawn<Value>(count, seed, magnitudes.least, magnitudes.spread), shift, 2);
      }
    }
  }
  expectSquares(std::vector<Value>{}, 0, 1);
  expectSquares(std::vector<Value>(777, Value{0}), 1, 2);
}

TEST(ZeroPasses, SquaresAreExactWhateverTheirMagnitudes) {
  expectSquaresOfAllMagnitudes<uint16_t>();
  // The largest value as often as fills the low part many times.
  expectSquares(std::vector<uint16_t>(20000, 0x7f7f), 0, 1);
}

TEST(ZeroPasses, WideSquaresAreExactWhateverTheirMagnitudes) {
  expectSquaresOfAllMagnitudes<float>();
  // Sums of the parts as large as they get: full mantissas, 11 exponents above the one that says the unit.
  std::vector<float> full(20000, __builtin_bit_cast(float, 0x4bffffffu | 11u << 23));
  for (size_t i = 0; i < full.size(); i += 256) {
    full[i] = __builtin_bit_cast(float, 0x4bffffffu);
  }
  expectSquares(full, 0, 1);
  expectSquares(std::vector<float>(20000, std::numeric_limits<float>::max()), 0, 1);
  expectSquares(std::vector<float>(3000, std::numeric_limits<float>::denorm_min()), 2, 1);
}

TEST(ZeroPasses, SquaresInAllModes) {
  const std::vector<uint16_t> values = drawnValues(5000, 3, 90, 60);
  const std::vector<float> wide = drawnWide(2500, 3, 90, 60);
  for (int mode = 0; mode < test::kModes; ++mode) {
    SCOPED_TRACE(test::kModeNames[mode]);
    for (int64_t seed = 1; seed <= test::kTestDraws; ++seed) {
      const InMode inMode(static_cast<Mode>(mode), seed);
      expectSquares(values, 5, 4);
      expectSquares(wide, 5, 4);
    }
  }
}

// ---- AdamW where pealAdamwStep has none
// -----------------------------------------------------------------

constexpr AdamwSettings kSettings{0.9, 0.95, 1e-8, 0.1};
constexpr uint64_t kSeed = 77, kFirstIndex = 1'000'003;

// Arrays of a stretch; masters in the three ways at once.
struct Stretch {
  Stretch(size_t count, unsigned seed) : moment1(drawnWide(count, seed, 100, 10)) {
    const std::vector<float> draws = drawnWide(count, seed + 1, 95, 8);
    for (size_t i = 0; i < count; ++i) {
      wideGradient.push_back(draws[i]);
      gradient.push_back(toBf16(draws[i]));
      moment2.push_back(std::abs(moment1[i]) * 1e-2f);
      master.push_back(draws[i] * 40 + 0.01f);
      weight.push_back(splitWeight(master[i]));
      remainder.push_back(splitRemainder(master[i]));
    }
  }
  std::vector<float> moment1, moment2, master, wideGradient;
  std::vector<uint16_t> gradient, weight;
  std::vector<int16_t> remainder;
};

void loopsUpdate(ZeroUpdateKind kind, bool stochastic, const AdamwScalars& scalars, uint64_t step,
                 Stretch& s) {
  const zero::Loops& loops = zero::loops();
  const size_t count = s.master.size();
  float *m = s.moment1.data(), *v = s.moment2.data();
  uint16_t* weight = s.weight.data();
  switch (kind) {
    case ZeroUpdateKind::Remainders:
      return loops.adamwRemainder(scalars, {s.gradient.data(), s.remainder.data(), m, v, weight, count});
    case ZeroUpdateKind::OwnMasters:
      return loops.adamwWeights(scalars, {s.gradient.data(), s.master.data(), m, v, count});
    case ZeroUpdateKind::WideGradients:
      return stochastic
                 ? loops.adamwStochasticFp32(scalars,
                                             {s.wideGradient.data(), s.master.data(), m, v, weight, count},
                                             {kSeed, step, kFirstIndex})
                 : loops.adamwFp32(scalars, {s.wideGradient.data(), s.master.data(), m, v, weight, count});
    case ZeroUpdateKind::WideRemainders:
      return loops.adamwRemainderFp32(scalars,
                                      {s.wideGradient.data(), s.remainder.data(), m, v, weight, count});
    case ZeroUpdateKind::WideWeights:
      return loops.adamwWeightsFp32(scalars, {s.wideGradient.data(), s.master.data(), m, v, count});
  }
}

void expectUpdate(ZeroUpdateKind kind, size_t count, size_t shift, size_t apart, bool stochastic) {
  SCOPED_TRACE(testing::Message() << count << " elements, kind " << static_cast<int>(kind) << ", shift "
                                  << shift << ", second moments " << apart << " apart, random "
                                  << stochastic);
  Stretch s(count, 11);
  const ShiftedArray<uint16_t> gradient(s.gradient, shift), weight(s.weight, shift);
  const ShiftedArray<float> wideGradient(s.wideGradient, shift), master(s.master, shift),
      moment1(s.moment1, shift), moment2(s.moment2, shift + apart);
  const ShiftedArray<int16_t> remainder(s.remainder, shift);
  const bool ownMasters = kind == ZeroUpdateKind::WideWeights || kind == ZeroUpdateKind::OwnMasters;
  const bool hasRemainders = kind == ZeroUpdateKind::Remainders || kind == ZeroUpdateKind::WideRemainders;
  const bool isNarrow = kind == ZeroUpdateKind::Remainders || kind == ZeroUpdateKind::OwnMasters;
  void* const weights = ownMasters ? static_cast<void*>(master.data()) : weight.data();
  for (uint64_t step = 5; step < 7; ++step) {
    AdamwScalars scalars = adamwScalars(kSettings, 3e-3, step, 0.25);
    scalars.decayFactor = adamwDecayFactor(3e-3, 0.1);
    const ZeroUpdateArgs args{isNarrow ? static_cast<const void*>(gradient.data()) : wideGradient.data(),
                              hasRemainders ? static_cast<void*>(remainder.data()) : master.data(),
                              moment1.data(),
                              moment2.data(),
                              weights,
                              count,
                              scalars,
                              kind,
                              stochastic ? 1 : 0,
                              kSeed,
                              step,
                              kFirstIndex};
    launchOn(3, 64, "zeroUpdate", [&] { zeroUpdateKernel()(args); });
    loopsUpdate(kind, stochastic, scalars, step, s);
  }
  EXPECT_EQ(bitsOfSums(moment1.values()), bitsOfSums(s.moment1));
  EXPECT_EQ(bitsOfSums(moment2.values()), bitsOfSums(s.moment2));
  EXPECT_EQ(bitsOfSums(master.values()), bitsOfSums(s.master));
  EXPECT_EQ(weight.values(), s.weight);
  EXPECT_EQ(remainder.values(), s.remainder);
  EXPECT_TRUE(gradient.isFramed() && wideGradient.isFramed() && weight.isFramed() && master.isFramed() &&
              moment1.isFramed() && moment2.isFramed() && remainder.isFramed());
}

TEST(ZeroUpdate, GivesTheBitsOfTheLoops) {
  for (int kind = 0; kind <= static_cast<int>(ZeroUpdateKind::WideWeights); ++kind) {
    for (const size_t count : {0, 1, 8, 63, 1031}) {
      for (const size_t shift : {0, 3, 8}) {
        expectUpdate(static_cast<ZeroUpdateKind>(kind), count, shift, 0, false);
      }
      expectUpdate(static_cast<ZeroUpdateKind>(kind), count, 0, 1, false);
    }
  }
  for (const size_t shift : {0, 3}) {
    expectUpdate(ZeroUpdateKind::WideGradients, 1031, shift, 0, true);
  }
}

}  // namespace
}  // namespace peal::cuda
