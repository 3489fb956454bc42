// The deterministic option: every element is the plain loop over ranks, bit for bit, whatever the count, and
// low precision is rounded once.
#include <cmath>
#include <cstring>
#include <random>

#include "lib/reduce/reduce.h"
#include "tests/processes/ranks.h"

namespace peal::test {
namespace {

// Numbers of very different size, so that every order of summation has its own bits.
std::vector<float> inputOf(int rank, size_t count) {
  std::mt19937 random(static_cast<unsigned>(rank) * 7919 + 1);
  std::normal_distribution<float> normal;
  std::vector<float> values(count);
  for (float& value : values) {
    value = std::ldexp(normal(random), static_cast<int>(random() % 24) - 12);
  }
  return values;
}

class Deterministic : public ::testing::TestWithParam<int> {};

TEST_P(Deterministic, Fp32EqualsThePlainLoop) {
  const int size = GetParam();
  pealConfig_t config = PEAL_CONFIG_INITIALIZER;
  config.deterministic = 1;
  runAsProcesses(
      size,
      [&](pealComm_t comm, int rank) {
        for (const size_t count : {size_t{1}, size_t{17}, size_t{5000}, size_t{200003}}) {
          std::vector<float> expected = inputOf(0, count);
          for (int other = 1; other < size; ++other) {
            const std::vector<float> input = inputOf(other, count);
            for (size_t i = 0; i < count; ++i) {
              expected[i] += input[i];
            }
          }
          std::vector<float> data = inputOf(rank, count);
          PEAL_EXPECT_OK(pealAllReduce(data.data(), data.data(), count, pealFloat32, pealSum, comm, nullptr));
          EXPECT_EQ(std::memcmp(data.data(), expected.data(), count * sizeof(float)), 0) << count;
        }
      },
      config);
}

TEST_P(Deterministic, Bf16IsSummedInFp32AndRoundedOnce) {
  const int size = GetParam();
  pealConfig_t config = PEAL_CONFIG_INITIALIZER;
  config.deterministic = 1;
  runAsProcesses(
      size,
      [&](pealComm_t comm, int rank) {
        constexpr size_t kCount = 70001;
        const auto bf16Of = [&](int r) {
          std::vector<uint16_t> bits(kCount);
          const std::vector<float> values = inputOf(r, kCount);
          for (size_t i = 0; i < kCount; ++i) {
            fromFloat(pealBfloat16, values[i], &bits[i]);
          }
          return bits;
        };
        std::vector<float> sum(kCount, 0.0F);
        for (int other = 0; other < size; ++other) {
          const std::vector<uint16_t> input = bf16Of(other);
          for (size_t i = 0; i < kCount; ++i) {
            const float value = toFloat(pealBfloat16, &input[i]);
            sum[i] = other == 0 ? value : sum[i] + value;
          }
        }
        std::vector<uint16_t> expected(kCount);
        for (size_t i = 0; i < kCount; ++i) {
          fromFloat(pealBfloat16, sum[i], &expected[i]);
        }
        std::vector<uint16_t> data = bf16Of(rank);
        PEAL_EXPECT_OK(pealAllReduce(data.data(), data.data(), kCount, pealBfloat16, pealSum, comm, nullptr));
        EXPECT_EQ(std::memcmp(data.data(), expected.data(), kCount * sizeof(uint16_t)), 0);
      },
      config);
}

INSTANTIATE_TEST_SUITE_P(Sizes, Deterministic, ::testing::Values(1, 2, 3, 5, 8));

}  // namespace
}  // namespace peal::test
