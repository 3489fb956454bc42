// The deterministic option: every element is the plain loop over ranks, bit for bit, whatever the count, and
// low precision is rounded once.
#include <sched.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>

#include "lib/reduce/reduce.h"
#include "peal/adamw.h"
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

// The fused step hands whole blocks over in place only if every rank can: none, some or all have memory that
// peers read.
TEST(FusedStep, GoesInPlaceIfAllRanksCan) {
  const std::vector<size_t> counts{300'000, 70'001, 3};
  const size_t total = 370'004;
  for (const int readable : {0b000, 0b010, 0b101, 0b111}) {
    runAsProcesses(3, [&](pealComm_t comm, int rank) {
      std::vector<int32_t> own(2 * total);
      void* memory = own.data();
      const bool isReadable = (readable >> rank & 1) != 0;
      if (isReadable) {
        PEAL_ASSERT_OK(pealMemAlloc(&memory, 2 * total * sizeof(int32_t)));
      }
      auto* inputs = static_cast<int32_t*>(memory);
      int32_t* results = inputs + total;
      for (size_t i = 0; i < total; ++i) {
        inputs[i] = static_cast<int32_t>(i) * (rank + 1);
        results[i] = 7;
      }
      const auto negate = [](void* /*user*/, void* values, size_t /*first*/, size_t count) {
        std::transform(static_cast<int32_t*>(values), static_cast<int32_t*>(values) + count,
                       static_cast<int32_t*>(values), [](int32_t sum) { return -sum; });
      };
      for (int round = 0; round < 2; ++round) {
        PEAL_EXPECT_OK(
            pealReduceApplyGather(inputs, results, counts.data(), pealInt32, negate, nullptr, comm, nullptr));
        size_t wrong = 0;
        for (size_t i = 0; i < total; ++i) {
          wrong += results[i] != -6 * static_cast<int32_t>(i) ? 1 : 0;
        }
        EXPECT_EQ(wrong, 0u) << "readable on " << readable;
      }
      // One round: a part for each of two peers, and the result.
      pealCommStats_t stats{};
      PEAL_EXPECT_OK(pealCommGetStats(comm, &stats));
      EXPECT_EQ(stats.messages[pealStatAllReduce] == uint64_t{2 * 4}, readable == 0b111)
          << stats.messages[pealStatAllReduce] << " messages, readable on " << readable;
      if (isReadable) {
        PEAL_EXPECT_OK(pealMemFree(memory));
      }
    });
  }
}

// With more ranks than processors a long all-reduce does, too, in place or not.
TEST(CrowdedAllReduce, GoesInPlaceIfAllRanksCan) {
  cpu_set_t before, one;
  ASSERT_EQ(sched_getaffinity(0, sizeof before, &before), 0);
  CPU_ZERO(&one);
  for (size_t cpu = 0; cpu < CPU_SETSIZE && CPU_COUNT(&one) == 0; ++cpu) {
    if (CPU_ISSET(cpu, &before)) {
      CPU_SET(cpu, &one);
    }
  }
  ASSERT_EQ(sched_setaffinity(0, sizeof one, &one), 0);
  constexpr size_t kCount = 1'000'003;
  for (const int readable : {0b000, 0b101, 0b111}) {
    runAsProcesses(3, [&](pealComm_t comm, int rank) {
      std::vector<int32_t> own(2 * kCount);
      void* memory = own.data();
      if ((readable >> rank & 1) != 0) {
        PEAL_ASSERT_OK(pealMemAlloc(&memory, 2 * kCount * sizeof(int32_t)));
      }
      auto* const results = static_cast<int32_t*>(memory);
      for (int32_t* const inputs : {results + kCount, results}) {
        for (size_t i = 0; i < kCount; ++i) {
          results[i] = -1;
          inputs[i] = static_cast<int32_t>(i) * (rank + 1);
        }
        PEAL_EXPECT_OK(pealAllReduce(inputs, results, kCount, pealInt32, pealSum, comm, nullptr));
        size_t wrong = 0;
        for (size_t i = 0; i < kCount; ++i) {
          wrong += results[i] != 6 * static_cast<int32_t>(i) ? 1 : 0;
        }
        EXPECT_EQ(wrong, 0u) << "readable on " << readable;
      }
      // One round: a part for each of two peers, and the result.
      pealCommStats_t stats{};
      PEAL_EXPECT_OK(pealCommGetStats(comm, &stats));
      EXPECT_EQ(stats.messages[pealStatAllReduce] == uint64_t{2 * 4}, readable == 0b111)
          << stats.messages[pealStatAllReduce] << " messages, readable on " << readable;
      if (memory != own.data()) {
        PEAL_EXPECT_OK(pealMemFree(memory));
      }
    });
  }
  sched_setaffinity(0, sizeof before, &before);
}

}  // namespace
}  // namespace peal::test
