// The loops against their formulas in double, and the three instruction sets against each other, bit for bit.
#include "tools/train/kernels.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "tests/train/reference_model.h"

namespace peal::train {
namespace {

using Floats = std::vector<float>;

Floats randomFloats(size_t count, uint64_t seed, double deviation = 1) {
  Floats values(count);
  initialValues({"", count, 1, false, 0, deviation, 0}, seed, 0, values.data());
  return values;
}

// The sets that this processor runs.
std::vector<const Kernels*> runnable() {
  std::vector<const Kernels*> sets;
  for (const Kernels* set : {&kBaselineKernels, &kAvx2Kernels, &kAvx512Kernels}) {
    if (processorRuns(*set)) {
      sets.push_back(set);
    }
  }
  return sets;
}

// body(kernels) returns everything it computed.
template <class Body>
void expectSameBits(Body body) {
  const Floats expected = body(kBaselineKernels);
  for (const Kernels* set : runnable()) {
    const Floats got = body(*set);
    ASSERT_EQ(got.size(), expected.size());
    EXPECT_EQ(std::memcmp(got.data(), expected.data(), got.size() * sizeof(float)), 0) << set->name;
  }
}

constexpr size_t kWidths[] = {1, 15, 16, 17, 31, 48, 63, 128};

TEST(Exponential, isWithinTwoUnitsInTheLastPlace) {
  Floats x;
  for (double value = -87; value <= 88; value += 0.00037) {
    x.push_back(static_cast<float>(value));
  }
  Floats y(x.size());
  kernels().exponential(x.data(), y.data(), x.size());
  for (size_t i = 0; i < x.size(); ++i) {
    const double expected = std::exp(static_cast<double>(x[i]));
    const double unit = std::nextafter(static_cast<float>(expected), 3e38f) - static_cast<float>(expected);
    ASSERT_LE(std::abs(y[i] - expected), 2 * unit) << x[i];
  }
}

TEST(Exponential, clampsAndKeepsNan) {
  const float infinity = std::numeric_limits<float>::infinity();
  const Floats x = {0, -infinity, infinity, std::nanf(""), -3e38f, 100};
  Floats y(x.size());
  kernels().exponential(x.data(), y.data(), x.size());
  EXPECT_EQ(y[0], 1.0f);
  EXPECT_LT(y[1], 2e-38f);
  EXPECT_GT(y[2], 1e38f);
  EXPECT_TRUE(std::isnan(y[3]));
  EXPECT_LT(y[4], 2e-38f);
  EXPECT_GT(y[5], 1e38f);
}

TEST(Rounding, isToNearestEvenAndBack) {
  const float infinity = std::numeric_limits<float>::infinity();
  const Floats x = {1.0f, 1.00390625f, 1.01171875f, 1.004f, -1.004f, 3.4e38f, infinity, -0.0f, 1e-40f};
  const Floats expected = {1.0f, 1.0f, 1.015625f, 1.0078125f, -1.0078125f, infinity, infinity, -0.0f};
  std::vector<uint16_t> rounded(x.size());
  Floats back(x.size());
  kernels().narrow(x.data(), rounded.data(), x.size());
  kernels().widen(rounded.data(), back.data(), x.size());
  for (size_t i = 0; i < expected.size(); ++i) {
    EXPECT_EQ(back[i], expected[i]) << x[i];
    EXPECT_EQ(std::signbit(back[i]), std::signbit(expected[i]));
  }
  EXPECT_EQ(back.back(), 0x1p-133f);  // subnormals are kept
  uint32_t lowNanBits = 0x7f800001u;  // its payload would round away to infinity
  float nan;
  std::memcpy(&nan, &lowNanBits, sizeof nan);
  kernels().narrow(&nan, rounded.data(), 1);
  kernels().widen(rounded.data(), back.data(), 1);
  EXPECT_TRUE(std::isnan(back[0]));
}

TEST(Gelu, isItsFormulaAndItsSlope) {
  Floats x;
  for (double value = -12; value <= 12; value += 0.0013) {
    x.push_back(static_cast<float>(value));
  }
  Floats y(x.size()), dy(x.size(), 1.0f);
  kernels().gelu(x.data(), y.data(), x.size());
  kernels().geluBackward(x.data(), dy.data(), x.size());
  for (size_t i = 0; i < x.size(); ++i) {
    const double at = x[i], step = 1e-5;
    const double slope = (ReferenceModel::gelu(at + step) - ReferenceModel::gelu(at - step)) / (2 * step);
    ASSERT_NEAR(y[i], ReferenceModel::gelu(at), 1e-6 * (1 + std::abs(at))) << at;
    ASSERT_NEAR(dy[i], slope, 2e-6) << at;
  }
}

TEST(CausalSoftmax, isItsFormulaInAnyRowBlock) {
  const size_t length = 37;
  const Floats scores = randomFloats(length * length, 3, 20);
  for (size_t firstRow : {size_t{0}, size_t{16}, size_t{36}}) {
    Floats p = scores;
    kernels().causalSoftmax(p.data() + firstRow * length, 0.5f, firstRow, length - firstRow, length, length);
    for (size_t row = firstRow; row < length; ++row) {
      double total = 0;
      for (size_t i = 0; i <= row; ++i) {
        total += std::exp(0.5 * (scores[row * length + i] - scores[row * length]));
      }
      for (size_t i = 0; i < length; ++i) {
        const double expected =
            i > row ? 0 : std::exp(0.5 * (scores[row * length + i] - scores[row * length])) / total;
        ASSERT_NEAR(p[row * length + i], expected, 1e-5 * expected + 1e-30) << row << " " << i;
      }
    }
  }
}

TEST(CrossEntropy, survivesLargeLogits) {
  Floats logits = {1000, 0, -1000, 5, 5, 5};
  const uint32_t targets[] = {1, 2};
  const double loss = kernels().crossEntropy(logits.data(), targets, 2, 3);
  EXPECT_NEAR(loss, 1000 + std::log(3.0), 1e-4);
  EXPECT_NEAR(logits[0], 1, 1e-6);
  EXPECT_NEAR(logits[1], -1, 1e-6);
  EXPECT_NEAR(logits[5], 1.0 / 3 - 1, 1e-6);
}

TEST(InstructionSets, normGivesTheSameBits) {
  for (size_t width : kWidths) {
    const size_t rows = 5;
    const Floats x = randomFloats(rows * width, 1), dy = randomFloats(rows * width, 2);
    const Floats gain = randomFloats(width, 3), bias = randomFloats(width, 4);
    expectSameBits([&](const Kernels& set) {
      Floats y(rows * width), mean(rows), inverse(rows), dx = dy, second(width), all(width);
      set.layerNorm(x.data(), gain.data(), bias.data(), y.data(), mean.data(), inverse.data(), rows, width);
      set.layerNormBackward(dy.data(), x.data(), gain.data(), mean.data(), inverse.data(), dx.data(),
                            all.data(), second.data(), rows, width);
      for (const Floats* part : {&y, &mean, &inverse, &dx, &second}) {
        all.insert(all.end(), part->begin(), part->end());
      }
      return all;
    });
  }
}

TEST(InstructionSets, elementwiseLoopsGiveTheSameBits) {
  for (size_t width : kWidths) {
    const size_t rows = 3;
    const Floats x = randomFloats(rows * width, 1, 2), dy = randomFloats(rows * width, 2);
    const Floats bias = randomFloats(width, 3);
    expectSameBits([&](const Kernels& set) {
      Floats all(rows * width), part(rows * width);
      set.gelu(x.data(), all.data(), x.size());
      const auto keep = [&] { all.insert(all.end(), part.begin(), part.end()); };
      part = dy;
      set.geluBackward(x.data(), part.data(), x.size());
      keep();
      set.addBias(x.data(), bias.data(), part.data(), rows, width);
      keep();
      set.addBias(nullptr, bias.data(), part.data(), rows, width);
      keep();
      set.add(x.data(), part.data(), x.size());
      keep();
      set.sumRows(x.data(), part.data(), rows, width);
      keep();
      set.exponential(x.data(), part.data(), x.size());
      keep();
      std::vector<uint16_t> rounded(x.size());
      set.narrow(x.data(), rounded.data(), x.size());
      set.widen(rounded.data(), part.data(), x.size());
      keep();
      return all;
    });
  }
}

TEST(InstructionSets, softmaxesGiveTheSameBits) {
  for (size_t length : kWidths) {
    const Floats scores = randomFloats(length * length, 1, 3), dy = randomFloats(length * length, 2);
    const std::vector<uint32_t> targets(length, static_cast<uint32_t>(length / 2));
    expectSameBits([&](const Kernels& set) {
      Floats all = scores, dp = dy, logits = scores;
      set.causalSoftmax(all.data(), 0.3f, 0, length, length, length);
      set.causalSoftmaxBackward(all.data(), dp.data(), 0.3f, 0, length, length, length);
      all.push_back(static_cast<float>(set.crossEntropy(logits.data(), targets.data(), length, length)));
      all.insert(all.end(), dp.begin(), dp.end());
      all.insert(all.end(), logits.begin(), logits.end());
      return all;
    });
  }
}

}  // namespace
}  // namespace peal::train
