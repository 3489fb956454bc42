// The passes over memory: AdamW against an fp64 reference and a numpy fixture, the exact sum of squares,
// accumulation; all with the same bits on every instruction set of this processor.
#include "lib/zero/loops.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <random>
#include <vector>

#include "lib/zero/norm.h"

namespace peal::zero {
namespace {

// What this processor can run.
std::vector<Isa> instructionSets() {
  std::vector<Isa> all{Isa::Baseline};
  if (bestIsa() >= Isa::Avx2) {
    all.push_back(Isa::Avx2);
  }
  if (bestIsa() >= Isa::Avx512) {
    all.push_back(Isa::Avx512);
  }
  return all;
}

struct State {
  std::vector<float> master, moment1, moment2;
  std::vector<uint16_t> weight;
  explicit State(const std::vector<float>& initial)
      : master(initial), moment1(initial.size()), moment2(initial.size()), weight(initial.size()) {}
  AdamwArgs args(const std::vector<uint16_t>& gradient) {
    return {gradient.data(), master.data(), moment1.data(), moment2.data(), weight.data(), master.size()};
  }
};

std::vector<uint16_t> randomBf16(size_t count, unsigned seed, float scale) {
  std::mt19937 engine(seed);
  std::normal_distribution<float> normal(0, scale);
  std::vector<uint16_t> values(count);
  for (uint16_t& value : values) {
    value = toBf16(normal(engine));
  }
  return values;
}

TEST(Bf16, RoundsToNearestEvenAndKeepsNan) {
  EXPECT_EQ(toBf16(1.0f), 0x3f80);
  EXPECT_EQ(toBf16(1.0f + 0x1p-8f), 0x3f80);             // a tie goes to the even neighbour below
  EXPECT_EQ(toBf16(1.0f + 3 * 0x1p-8f), 0x3f82);         // and above
  EXPECT_EQ(toBf16(1.0f + 0x1p-8f + 0x1p-20f), 0x3f81);  // just above a tie
  EXPECT_EQ(toBf16(std::numeric_limits<float>::max()), 0x7f80);
  EXPECT_EQ(toBf16(-std::numeric_limits<float>::infinity()), 0xff80);
  EXPECT_TRUE(std::isnan(fromBf16(toBf16(std::numeric_limits<float>::quiet_NaN()))));
  EXPECT_TRUE(std::isnan(fromBf16(toBf16(std::bit_cast<float>(0x7f800001u)))));
}

// AdamW as published, element by element in fp64.
void referenceAdamw(const AdamwSettings& s, double lr, int step, double scale, bool decays,
                    const std::vector<uint16_t>& gradient, std::vector<double>& w, std::vector<double>& m,
                    std::vector<double>& v) {
  for (size_t i = 0; i < w.size(); ++i) {
    const double g = static_cast<double>(fromBf16(gradient[i])) * scale;
    m[i] = s.beta1 * m[i] + (1 - s.beta1) * g;
    v[i] = s.beta2 * v[i] + (1 - s.beta2) * g * g;
    const double mHat = m[i] / (1 - std::pow(s.beta1, step));
    const double vHat = v[i] / (1 - std::pow(s.beta2, step));
    w[i] -= lr * ((decays ? s.weightDecay * w[i] : 0) + mHat / (std::sqrt(vHat) + s.epsilon));
  }
}

TEST(Adamw, FollowsTheReferenceInFp64) {
  const AdamwSettings settings{0.9, 0.95, 1e-8, 0.1};
  constexpr size_t kCount = 1003;
  for (const Isa isa : instructionSets()) {
    for (const bool decays : {false, true}) {
      State state(std::vector<float>(kCount, 0.25f));
      std::vector<double> w(kCount, 0.25), m(kCount), v(kCount);
      for (int step = 1; step <= 20; ++step) {
        const std::vector<uint16_t> gradient = randomBf16(kCount, static_cast<unsigned>(step), 3.0f);
        AdamwScalars scalars = adamwScalars(settings, 1e-2, static_cast<uint64_t>(step), 1.0 / 7);
        scalars.decayFactor = decays ? adamwDecayFactor(1e-2, settings.weightDecay) : 1.0f;
        loops(isa).adamw(scalars, state.args(gradient));
        referenceAdamw(settings, 1e-2, step, 1.0 / 7, decays, gradient, w, m, v);
      }
      for (size_t i = 0; i < kCount; ++i) {
        ASSERT_NEAR(state.master[i], w[i], 1e-5 + 1.3e-6 * std::abs(w[i])) << i;
        ASSERT_NEAR(state.moment1[i], m[i], 1e-5 + 1.3e-6 * std::abs(m[i])) << i;
        ASSERT_EQ(state.weight[i], toBf16(state.master[i]));
      }
    }
  }
}

// tests/zero/make-adamw-fixture.py wrote it with numpy.
TEST(Adamw, FollowsTheNumpyFixture) {
  std::ifstream file(PEAL_ZERO_TEST_DATA "/adamw-fixture.json");
  ASSERT_TRUE(file.is_open());
  const nlohmann::json fixture = nlohmann::json::parse(file);
  const AdamwSettings settings{fixture["beta1"], fixture["beta2"], fixture["epsilon"],
                               fixture["weightDecay"]};
  const double learningRate = fixture["learningRate"];
  State state(fixture["initial"].get<std::vector<float>>());
  uint64_t step = 0;
  for (const nlohmann::json& now : fixture["steps"]) {
    std::vector<uint16_t> gradient;
    for (const float value : now["gradient"].get<std::vector<float>>()) {
      gradient.push_back(toBf16(value));
      ASSERT_EQ(fromBf16(gradient.back()), value) << "the fixture's gradients are bf16 values";
    }
    AdamwScalars scalars = adamwScalars(settings, learningRate, ++step, fixture["gradientScale"]);
    scalars.decayFactor = adamwDecayFactor(learningRate, settings.weightDecay);
    loops().adamw(scalars, state.args(gradient));
    const auto expected = now["weights"].get<std::vector<double>>();
    ASSERT_EQ(expected.size(), state.master.size());
    for (size_t i = 0; i < expected.size(); ++i) {
      EXPECT_NEAR(state.master[i], expected[i], 2e-6 + 1.3e-6 * std::abs(expected[i])) << step << " " << i;
    }
  }
  EXPECT_EQ(step, 6u);
}

// The mean over many steps is the value, every result is one of its two neighbours, and the bits depend on
// the element's global index alone: an array cut in two gives the same.
TEST(Adamw, RoundsStochasticallyWithoutBias) {
  const AdamwSettings settings{0.9, 0.999, 1e-8, 0};
  constexpr size_t kCount = 1000;
  constexpr float kValue = 1.0f + 0x1p-9f;          // a quarter of the way from 1 to the next bf16, 1 + 2^-7
  const std::vector<uint16_t> gradient(kCount, 0);  // so that the master weights stay
  for (const Isa isa : instructionSets()) {
    State whole(std::vector<float>(kCount, kValue)), parts(whole);
    size_t up = 0;
    for (uint64_t step = 1; step <= 50; ++step) {
      const AdamwScalars scalars = adamwScalars(settings, 1e-3, step, 1);
      loops(isa).adamwStochastic(scalars, whole.args(gradient), {42, step, 7});
      AdamwArgs first = parts.args(gradient);
      AdamwArgs second = first;
      first.count = 333;
      second = {second.gradient + 333, second.master + 333, second.moment1 + 333,
                second.moment2 + 333,  second.weight + 333, kCount - 333};
      loops(isa).adamwStochastic(scalars, first, {42, step, 7});
      loops(isa).adamwStochastic(scalars, second, {42, step, 7 + 333});
      ASSERT_EQ(whole.weight, parts.weight);
      for (const uint16_t weight : whole.weight) {
        ASSERT_TRUE(weight == 0x3f80 || weight == 0x3f81) << weight;
        up += weight == 0x3f81 ? 1 : 0;
      }
    }
    // 50000 draws with probability 1/4: five standard deviations are 0.0097.
    EXPECT_NEAR(static_cast<double>(up) / (50.0 * kCount), 0.25, 0.0097);
  }
  EXPECT_EQ(stochasticBf16(std::numeric_limits<float>::infinity(), 0xffff), 0x7f80);
  EXPECT_EQ(stochasticBf16(std::bit_cast<float>(0x7f7f0000u), 0xffff), 0x7f7f);
  EXPECT_TRUE(std::isnan(fromBf16(stochasticBf16(std::numeric_limits<float>::quiet_NaN(), 0xffff))));
}

// Every weight with every remainder is one master, and every master that is a number (and one NaN of each
// sign) is one such pair, whose weight is one of the nearest.
TEST(Remainder, SplitsMastersExactly) {
  constexpr size_t kPiece = 65536;
  std::vector<float> masters(kPiece), joined(kPiece);
  std::vector<uint16_t> weights(kPiece);
  std::vector<int16_t> remainders(kPiece);
  for (const Isa isa : instructionSets()) {
    for (const uint32_t high : {0u, 1u, 0x7fu, 0x80u, 0x3f7fu, 0x3f80u, 0x3f81u, 0x7f7eu, 0x7f7fu, 0x8000u,
                                0x8001u, 0xbf80u, 0xff7fu}) {
      for (uint32_t low = 0; low < kPiece; ++low) {
        masters[low] = std::bit_cast<float>((high << 16) + low);
      }
      loops(isa).splitWeights(masters.data(), weights.data(), kPiece);
      loops(isa).splitRemainders(masters.data(), remainders.data(), kPiece);
      loops(isa).join(weights.data(), remainders.data(), joined.data(), kPiece);
      ASSERT_EQ(std::memcmp(masters.data(), joined.data(), kPiece * sizeof(float)), 0) << std::hex << high;
      for (uint32_t low = 0; low < kPiece; ++low) {
        const bool tie = low == 0x8000;
        ASSERT_EQ(weights[low], tie ? high + 1 : toBf16(masters[low])) << std::hex << high << " " << low;
      }
    }
    const float infinity = std::numeric_limits<float>::infinity();
    const std::vector<float> special{infinity, -infinity, std::numeric_limits<float>::quiet_NaN(),
                                     std::bit_cast<float>(0x7f800001u), std::bit_cast<float>(0xffffffffu)};
    loops(isa).splitWeights(special.data(), weights.data(), special.size());
    loops(isa).splitRemainders(special.data(), remainders.data(), special.size());
    loops(isa).join(weights.data(), remainders.data(), joined.data(), special.size());
    EXPECT_EQ(joined[0], infinity);
    EXPECT_EQ(joined[1], -infinity);
    for (size_t i = 2; i < special.size(); ++i) {
      EXPECT_TRUE(std::isnan(joined[i]));
      EXPECT_TRUE(std::isnan(fromBf16(weights[i])));
    }
  }
}

// With the same gradients masters and moments are those of the fp32 masters, bit by bit, and so are the
// weights, but for ties.
TEST(Remainder, UpdatesLikeTheFp32Master) {
  const AdamwSettings settings{0.9, 0.95, 1e-8, 0.1};
  constexpr size_t kCount = 20'011;
  std::vector<float> initial(kCount);
  std::mt19937 engine(9);
  std::normal_distribution<float> normal(0, 0.02f);
  for (float& value : initial) {
    value = normal(engine);
  }
  for (const Isa isa : instructionSets()) {
    State state(initial);
    std::vector<float> moment1(kCount), moment2(kCount), joined(kCount);
    std::vector<uint16_t> weights(kCount);
    std::vector<int16_t> remainders(kCount);
    loops(isa).splitWeights(initial.data(), weights.data(), kCount);
    loops(isa).splitRemainders(initial.data(), remainders.data(), kCount);
    size_t ties = 0;
    for (uint64_t step = 1; step <= 20; ++step) {
      const std::vector<uint16_t> gradient = randomBf16(kCount, static_cast<unsigned>(step), 1.0f);
      AdamwScalars scalars = adamwScalars(settings, 1e-3, step, 0.25);
      scalars.decayFactor = adamwDecayFactor(1e-3, settings.weightDecay);
      loops(isa).adamw(scalars, state.args(gradient));
      loops(isa).adamwRemainder(scalars, {gradient.data(), remainders.data(), moment1.data(), moment2.data(),
                                          weights.data(), kCount});
      loops(isa).join(weights.data(), remainders.data(), joined.data(), kCount);
      ASSERT_EQ(joined, state.master) << isaName(isa) << ", step " << step;
      ASSERT_EQ(moment1, state.moment1);
      ASSERT_EQ(moment2, state.moment2);
      for (size_t i = 0; i < kCount; ++i) {
        const bool tie = (std::bit_cast<uint32_t>(joined[i]) & 0xffffu) == 0x8000u;
        ties += tie ? 1 : 0;
        ASSERT_EQ(weights[i], tie ? splitWeight(joined[i]) : state.weight[i]);
      }
    }
    EXPECT_GT(ties, 0u);
    EXPECT_LT(ties, 40u);  // about one in 65536 of 400,220
  }
}

TEST(Loops, SameBitsOnEveryInstructionSet) {
  const AdamwSettings settings{0.9, 0.999, 1e-8, 0.01};
  constexpr size_t kCount = 4099;
  const std::vector<uint16_t> gradient = randomBf16(kCount, 5, 1e-3f);
  std::vector<float> initial(kCount);
  for (size_t i = 0; i < kCount; ++i) {
    initial[i] = fromBf16(gradient[kCount - 1 - i]) * 1.2345f;
  }
  State reference(initial);
  std::vector<uint16_t> sumReference(gradient);
  for (const Isa isa : instructionSets()) {
    State state(initial);
    for (uint64_t step = 1; step <= 3; ++step) {
      AdamwScalars scalars = adamwScalars(settings, 3e-4, step, 0.37);
      scalars.decayFactor = adamwDecayFactor(3e-4, settings.weightDecay);
      loops(isa).adamw(scalars, state.args(gradient));
    }
    std::vector<float> sums(kCount);
    std::vector<uint16_t> sum(gradient), rounded(kCount);
    loops(isa).widen(gradient.data(), sums.data(), kCount);
    loops(isa).add(state.weight.data(), sums.data(), kCount);
    loops(isa).addAndRound(sum.data(), sums.data(), kCount);
    loops(isa).round(sums.data(), rounded.data(), kCount);
    for (size_t i = 0; i < kCount; ++i) {
      const float expected = fromBf16(gradient[i]) + fromBf16(state.weight[i]);
      ASSERT_EQ(sums[i], expected);
      ASSERT_EQ(rounded[i], toBf16(expected));
      ASSERT_EQ(sum[i], toBf16(expected + fromBf16(gradient[i])));
    }
    if (isa == Isa::Baseline) {
      reference = state;
    }
    EXPECT_EQ(state.master, reference.master) << isaName(isa);
    EXPECT_EQ(state.moment1, reference.moment1) << isaName(isa);
    EXPECT_EQ(state.moment2, reference.moment2) << isaName(isa);
    EXPECT_EQ(state.weight, reference.weight) << isaName(isa);
  }
}

// fp32 gradients that bf16 can hold give the bits of bf16 gradients, in all three ways of keeping masters.
TEST(Adamw, TakesFp32Gradients) {
  constexpr size_t kCount = 1'003;
  const AdamwScalars scalars = adamwScalars({0.9, 0.999, 1e-8, 0}, 1e-2, 3, 0.25);
  const std::vector<uint16_t> narrow = randomBf16(kCount, 21, 1.0f);
  std::vector<float> wide(kCount), initial(kCount);
  for (size_t i = 0; i < kCount; ++i) {
    wide[i] = fromBf16(narrow[i]);
    initial[i] = fromBf16(narrow[kCount - 1 - i]) * 0.01f;
  }
  const StochasticKey key{7, 3, 100};
  for (const Isa isa : instructionSets()) {
    const Loops& with = loops(isa);
    for (const bool isStochastic : {false, true}) {
      State expected(initial), state(initial);
      const AdamwArgsOf<float> args{wide.data(),          state.master.data(), state.moment1.data(),
                                    state.moment2.data(), state.weight.data(), kCount};
      if (isStochastic) {
        with.adamwStochastic(scalars, expected.args(narrow), key);
        with.adamwStochasticFp32(scalars, args, key);
      } else {
        with.adamw(scalars, expected.args(narrow));
        with.adamwFp32(scalars, args);
      }
      EXPECT_EQ(state.master, expected.master) << isaName(isa);
      EXPECT_EQ(state.moment1, expected.moment1);
      EXPECT_EQ(state.moment2, expected.moment2);
      EXPECT_EQ(state.weight, expected.weight);
    }
    State expected(initial), state(initial);
    std::vector<int16_t> remainders(kCount), expectedRemainders(kCount);
    with.splitWeights(initial.data(), state.weight.data(), kCount);
    with.splitRemainders(initial.data(), remainders.data(), kCount);
    expected.weight = state.weight;
    expectedRemainders = remainders;
    with.adamwRemainder(scalars, {narrow.data(), expectedRemainders.data(), expected.moment1.data(),
                                  expected.moment2.data(), expected.weight.data(), kCount});
    with.adamwRemainderFp32(scalars, {wide.data(), remainders.data(), state.moment1.data(),
                                      state.moment2.data(), state.weight.data(), kCount});
    EXPECT_EQ(remainders, expectedRemainders) << isaName(isa);
    EXPECT_EQ(state.weight, expected.weight);
    EXPECT_EQ(state.moment2, expected.moment2);
    // fp32 weights are as masters are, with either gradients.
    State masters(initial), narrowOnes(initial), wideOnes(initial);
    with.adamw(scalars, masters.args(narrow));
    with.adamwWeights(scalars, {narrow.data(), narrowOnes.master.data(), narrowOnes.moment1.data(),
                                narrowOnes.moment2.data(), kCount});
    with.adamwWeightsFp32(scalars, {wide.data(), wideOnes.master.data(), wideOnes.moment1.data(),
                                    wideOnes.moment2.data(), kCount});
    for (const State& weights : {narrowOnes, wideOnes}) {
      EXPECT_EQ(weights.master, masters.master) << isaName(isa);
      EXPECT_EQ(weights.moment1, masters.moment1);
      EXPECT_EQ(weights.moment2, masters.moment2);
    }
  }
}

double sumOfSquares(const std::vector<uint16_t>& values, Isa isa = Isa::Baseline) {
  SquareSum sum(loops(isa));
  sum.add(values.data(), values.size());
  return squareSumValue(sum.limbs());
}

TEST(SquareSum, SmallCasesAreExact) {
  EXPECT_EQ(sumOfSquares({}), 0.0);
  EXPECT_EQ(sumOfSquares({0, 0x8000}), 0.0);
  EXPECT_EQ(sumOfSquares({toBf16(3), toBf16(-4)}), 25.0);
  EXPECT_EQ(sumOfSquares({0x0001}), 0x1p-266);  // the smallest subnormal
  EXPECT_EQ(sumOfSquares({0x8001, 0x0002}), 5 * 0x1p-266);
  EXPECT_EQ(sumOfSquares({0x0080}), 0x1p-252);  // the smallest normal
  const double largest = fromBf16(0x7f7f);
  EXPECT_EQ(sumOfSquares(std::vector<uint16_t>(1000, 0x7f7f)), 1000 * (largest * largest));
}

// One huge and many tiny values: the tiny ones alone would round away in fp64.
TEST(SquareSum, NothingIsLostBesideALargeValue) {
  std::vector<uint16_t> values(1 << 12, toBf16(0x1p-40f));  // squares sum to 2^-68
  values.push_back(toBf16(1.0f));
  SquareSum all;
  all.add(values.data(), values.size());
  SquareSum one;
  one.add(values.data() + (1 << 12), 1);
  std::array<int64_t, kSquareLimbs> rest = all.limbs();
  for (size_t i = 0; i < kSquareLimbs; ++i) {
    rest[i] -= one.limbs()[i];
  }
  EXPECT_EQ(squareSumValue(rest), 0x1p-68);
}

TEST(SquareSum, SameBitsHoweverItIsDividedAndOrdered) {
  std::vector<uint16_t> values = randomBf16(100'003, 11, 1.0f);
  for (size_t i = 0; i < values.size(); i += 7) {
    values[i] = toBf16(fromBf16(values[i]) * 1e-12f);  // blocks with a wide span of exponents
  }
  for (size_t i = 40'000; i < 60'000; ++i) {
    values[i] = 0;
  }
  const double expected = sumOfSquares(values);
  long double plain = 0;
  for (const uint16_t value : values) {
    plain += static_cast<long double>(fromBf16(value)) * fromBf16(value);
  }
  EXPECT_NEAR(expected / static_cast<double>(plain), 1, 1e-14);
  for (const Isa isa : instructionSets()) {
    EXPECT_EQ(sumOfSquares(values, isa), expected) << isaName(isa);
  }
  for (const size_t piece : {1u, 127u, 128u, 129u, 5000u}) {
    std::array<int64_t, kSquareLimbs> limbs{};
    for (size_t begin = 0; begin < values.size(); begin += piece) {
      SquareSum part;
      part.add(values.data() + begin, std::min(piece, values.size() - begin));
      const std::array<int64_t, kSquareLimbs> partLimbs = part.limbs();
      for (size_t i = 0; i < kSquareLimbs; ++i) {
        limbs[i] += partLimbs[i];
      }
    }
    EXPECT_EQ(squareSumValue(limbs), expected) << piece;
  }
  std::shuffle(values.begin(), values.end(), std::mt19937(3));
  EXPECT_EQ(sumOfSquares(values), expected);
}

double sumOfWideSquares(const std::vector<float>& values, Isa isa = Isa::Baseline) {
  SquareSum sum(loops(isa));
  sum.add(values.data(), values.size());
  return squareSumValue(sum.limbs());
}

TEST(SquareSum, OfFp32IsExact) {
  EXPECT_EQ(sumOfWideSquares({}), 0.0);
  EXPECT_EQ(sumOfWideSquares({0.0f, -0.0f}), 0.0);
  EXPECT_EQ(sumOfWideSquares({3.0f, -4.0f}), 25.0);
  EXPECT_EQ(sumOfWideSquares({0x1p-149f}), 0x1p-298);
  EXPECT_EQ(sumOfWideSquares(std::vector<float>(300, 0x1p-149f)), 300 * 0x1p-298);
  EXPECT_EQ(sumOfWideSquares({0x1p-126f}), 0x1p-252);
  const float odd = 0x1.fffffep0f;  // all bits of the three products count
  EXPECT_EQ(sumOfWideSquares(std::vector<float>(16, odd)), 16 * (static_cast<double>(odd) * odd));
  for (const size_t count : {127u, 128u, 4096u}) {
    // 127 go value by value, 128 and more as blocks.
    EXPECT_DOUBLE_EQ(sumOfWideSquares(std::vector<float>(count, -odd)),
                     static_cast<double>(static_cast<long double>(count) * odd * odd));
  }
  const double largest = std::numeric_limits<float>::max();
  EXPECT_EQ(sumOfWideSquares(std::vector<float>(1024, std::numeric_limits<float>::max())),
            1024 * (largest * largest));
}

TEST(SquareSum, OfFp32HasTheSameBitsHoweverItIsDividedAndOrdered) {
  std::mt19937 random(5);
  std::normal_distribution<float> normal(0, 1);
  std::vector<float> values(50'003);
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = normal(random) * (i % 911 == 0 ? 1e-20f : 1.0f);
  }
  const double expected = sumOfWideSquares(values);
  long double plain = 0;
  for (const float value : values) {
    plain += static_cast<long double>(value) * value;
  }
  EXPECT_NEAR(expected / static_cast<double>(plain), 1, 1e-14);
  for (const Isa isa : instructionSets()) {
    EXPECT_EQ(sumOfWideSquares(values, isa), expected) << isaName(isa);
  }
  std::array<int64_t, kSquareLimbs> limbs{};
  for (const float& value : values) {  // one by one: never the fast path
    SquareSum part;
    part.add(&value, 1);
    const std::array<int64_t, kSquareLimbs> partLimbs = part.limbs();
    for (size_t i = 0; i < kSquareLimbs; ++i) {
      limbs[i] += partLimbs[i];
    }
  }
  EXPECT_EQ(squareSumValue(limbs), expected);
  std::shuffle(values.begin(), values.end(), random);
  EXPECT_EQ(sumOfWideSquares(values), expected);
  // bf16 values are fp32 values.
  const std::vector<uint16_t> narrow = randomBf16(10'001, 3, 1.0f);
  std::vector<float> widened(narrow.size());
  std::transform(narrow.begin(), narrow.end(), widened.begin(), fromBf16);
  EXPECT_EQ(sumOfWideSquares(widened), sumOfSquares(narrow));
  for (const float bad : {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
    for (const size_t at : {0u, 127u, 10'000u}) {
      std::vector<float> spoiled = widened;
      spoiled[at] = bad;
      SquareSum sum;
      sum.add(spoiled.data(), spoiled.size());
      EXPECT_EQ(sum.nonFinite(), 1);
    }
  }
}

TEST(SquareSum, FindsInfiniteAndNanAnywhere) {
  for (const uint16_t bad : {uint16_t{0x7f80}, uint16_t{0xff80}, uint16_t{0x7fc0}, uint16_t{0xff81}}) {
    for (const size_t at : {0u, 127u, 128u, 300u}) {
      std::vector<uint16_t> values = randomBf16(301, 2, 1.0f);
      SquareSum clean;
      clean.add(values.data(), values.size());
      EXPECT_EQ(clean.nonFinite(), 0);
      values[at] = bad;
      SquareSum sum;
      sum.add(values.data(), values.size());
      EXPECT_EQ(sum.nonFinite(), 1) << std::hex << bad << " at " << at;
    }
  }
}

}  // namespace
}  // namespace peal::zero
