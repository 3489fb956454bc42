// The kernels of zoo/, compiled by nvcc, translated and run on the simulator, against the same functions and
// simple rules on the host: equal bits.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "tests/cudasim/ptx_test/zoo/functions.h"
#include "tests/cudasim/ptx_test/zoo_launch.h"

namespace peal::cudasim {
namespace {

// Elements in device memory and what a kernel of zoo::Args makes of them.
class PtxZoo : public testing::Test {
 protected:
  static constexpr uint32_t kThreads = 64, kBlocks = 9, kCount = kThreads * kBlocks;

  PtxZoo() {
    std::mt19937_64 random(7);
    std::generate_n(in_.host<uint64_t>(), kCount, [&] { return random() >> random() % 40; });
    args_.in = in_.device<const uint64_t>();
    args_.out = out_.device<uint64_t>();
    args_.count = kCount;
    args_.shift = 5;
    args_.scale = 0.3F;
    args_.offset = -7.25;
    for (uint8_t i = 0; i < 11; ++i) {
      args_.bytes[i] = static_cast<uint8_t>(200 + 7 * i);
    }
    args_.flag = true;
    onHost_ = args_;
    onHost_.in = in_.host<const uint64_t>();
  }
  ~PtxZoo() override { options() = defaultOptions(); }

  uint64_t in(uint32_t i) const { return in_.host<uint64_t>()[i]; }
  template <class Expected>
  void compare(const RunResult& result, Expected expected) {
    ASSERT_TRUE(result.ok()) << result.text;
    for (uint32_t i = 0; i < kCount; ++i) {
      ASSERT_EQ(out_.host<uint64_t>()[i], expected(i)) << "element " << i;
    }
  }

  DeviceBuffer in_{kCount * sizeof(uint64_t)}, out_{kCount * 6 * sizeof(uint64_t)};
  zoo::Args args_{}, onHost_{};
};

TEST_F(PtxZoo, CallsOfEveryKind) {
  for (const bool flag : {false, true}) {
    args_.flag = onHost_.flag = flag;
    compare(launch(kBlocks, kThreads, [&] { zoo::calls(args_); }),
            [&](uint32_t i) { return zoo::callsOf(onHost_, i); });
  }
}

TEST_F(PtxZoo, Numbers) {
  compare(launch(kBlocks, kThreads, [&] { zoo::numbers(args_); }), [&](uint32_t i) {
    const uint64_t a = in(i), b = in((i + 1) % kCount);
    return zoo::mix(zoo::integersOf(a, b, args_.shift), zoo::floatsOf(a, b, onHost_));
  });
}

uint64_t placesOf(const zoo::Args& args, uint32_t i) {
  constexpr uint32_t kPrimes[] = {2, 3, 5, 7, 11, 13, 17, 19};
  constexpr double kTable[] = {0.5, 1.25, -3, 1e300};
  constexpr const char* kNames[] = {"one", "two", "three"};
  const uint32_t t = i % 64;
  const auto seed = static_cast<uint32_t>(args.in[i]);
  uint32_t shared[9], local[9], global[9];
  zoo::fill(shared, 9, seed);
  zoo::fill(local, 9, seed + 1);
  zoo::fill(global, 9, seed + 2);
  ((seed & 1) != 0 ? shared : (seed & 2) != 0 ? local : global)[3] += args.bytes[t % 11];
  uint64_t hash = zoo::mix(zoo::sum(shared, 9), zoo::sum(local, 9));
  hash = zoo::mix(hash, zoo::sum(global, 9));
  hash = zoo::mix(hash, zoo::sum(kPrimes + t % 4, 5));
  hash = zoo::mixBits(hash, kTable[t % 4]);
  hash = zoo::mix(hash, seed);
  return zoo::mix(hash, t % 3 + 1 + static_cast<uint64_t>(kNames[t % 3][t % 3]));
}

TEST_F(PtxZoo, MemoryOfEveryKind) {
  // One block: all share the module's variable.
  for (uint32_t block = 0; block < kBlocks; ++block) {
    zoo::Args args = args_, onHost = onHost_;
    args.in += block * kThreads, onHost.in += block * kThreads;
    const RunResult result = launch(1, kThreads, [&] { zoo::places(args); });
    ASSERT_TRUE(result.ok()) << result.text;
    for (uint32_t i = 0; i < kThreads; ++i) {
      ASSERT_EQ(out_.host<uint64_t>()[i], placesOf(onHost, i)) << "element " << block * kThreads + i;
    }
  }
}

TEST_F(PtxZoo, MoreThreadsThanLaunchBoundsIsAnError) {
  const RunResult result = launch(1, 128, [&] { zoo::places(args_); });
  EXPECT_EQ(result.kind, TrapKind::Launch);
  EXPECT_NE(result.text.find("128 threads"), std::string::npos) << result.text;
}

TEST_F(PtxZoo, SharedMemoryAndBarriers) {
  for (const int64_t seed : {0, 1, 2}) {
    options().random = seed != 0;
    options().seed = seed;
    compare(launch(
                kBlocks, kThreads, [&] { zoo::sharing(args_); }, kThreads * sizeof(uint64_t)),
            [&](uint32_t i) {
              const uint32_t t = i % kThreads, first = i - t, quad = 31 - t % 32;
              uint64_t scan = 0, odd = 0;
              int all = 1, any = 0;
              for (uint32_t j = first; j < first + kThreads; ++j) {
                scan += j <= i ? in(j) : 0;
                odd += in(j)&1;
                all &= in(j) != 0 ? 1 : 0;
                any |= in(j) == 12345 ? 1 : 0;
              }
              uint64_t hash = zoo::mix(scan, in(first + kThreads - 1 - t) * 3);
              hash = zoo::mixBits(
                  hash, static_cast<float>(quad) + 2 * static_cast<float>(in(first + quad) & 255) - 4);
              return zoo::mix(hash, odd * 4 + static_cast<uint64_t>(all * 2 + any));
            });
  }
}

uint64_t reversedWord(uint32_t word) {
  uint32_t result = 0;
  for (int i = 0; i < 32; ++i) {
    result |= (word >> i & 1) << (31 - i);
  }
  return result;
}

// To nearest even, of a value that is not too large.
uint16_t half(float value) {
  const int exponent = std::max(std::ilogb(value == 0 ? 1 : value), -14);
  const auto units = static_cast<uint32_t>(std::fabs(std::rint(std::ldexp(value, 10 - exponent))));
  return static_cast<uint16_t>((std::signbit(value) ? 0x8000u : 0u) +
                               static_cast<uint32_t>(exponent + 14) * 1024 + units);
}

TEST_F(PtxZoo, OperationsOfWarps) {
  compare(launch(kBlocks, kThreads, [&] { zoo::warps(args_); }), [&](uint32_t i) {
    const uint32_t lane = i % 32, first = i - lane;
    const auto word = [&](uint32_t srcLane) { return static_cast<uint32_t>(in(first + srcLane)); };
    uint32_t ballot = 0;
    bool any = false;
    for (uint32_t j = 0; j < 32; ++j) {
      ballot |= (word(j) >> 2 & 1) << j;
      any |= word(j) % 50 == 0;
    }
    const uint32_t own = word(lane), high = static_cast<uint32_t>(in(i) >> 32);
    uint64_t hash = zoo::mix(1, word(lane ^ 5));
    hash = zoo::mix(hash, word(lane + 3 < 32 ? lane + 3 : lane));
    hash = zoo::mix(hash, word(lane % 8 >= 2 ? lane - 2 : lane));
    hash = zoo::mix(hash, word(lane % 16 + 5 < 16 ? lane + 5 : lane));
    hash = zoo::mix(hash, in(first + i % kThreads * 7 % 32));
    hash = zoo::mixBits(hash, static_cast<double>(word(lane / 4 * 4 + 3)));
    hash = zoo::mix(hash, ballot);
    hash = zoo::mix(hash, (any ? 1u : 0u) + (any ? 0u : 2u));
    hash = zoo::mix(hash, static_cast<uint64_t>(std::popcount(own) + std::countl_zero(own) +
                                                (in(i) == 0 ? 0 : std::countr_zero(in(i)) + 1)));
    const uint32_t permuted =
        (high >> 16 & 255) | (high & 255) << 8 | (own >> 8 & 255) << 16 | (high >> 8 & 255) << 24;
    hash = zoo::mix(hash, reversedWord(own) ^ permuted);
    hash = zoo::mix(hash, static_cast<uint32_t>((uint64_t{high} << 32 | own) >> (own & 31)));
    const float value = zoo::boundedFloat(in(i));
    hash = zoo::mix(hash, half(value));
    const int exponent = std::max(std::ilogb(value == 0 ? 1 : value), -14);
    return zoo::mixBits(
        hash, std::copysign(std::ldexp(std::rint(std::ldexp(value, 10 - exponent)), exponent - 10), value));
  });
}

TEST_F(PtxZooCounters, AtomicsOfEveryKind) {
  for (const int64_t seed : {0, 1, 2, 3}) {
    options().random = seed != 0;
    options().weak = seed == 3;
    options().seed = seed;
    clear();
    words()[2] = ~0u;
    words()[3] = static_cast<uint32_t>(-5000);
    words()[5] = ~0u;
    const RunResult result = launch(kBlocks, kThreads, [&] { zoo::atomics(counters_); });
    ASSERT_TRUE(result.ok()) << result.text;
    uint32_t parity = 0;
    for (uint32_t i = 0; i < kCount; ++i) {
      parity ^= i;
    }
    EXPECT_EQ(words()[0], kCount);
    EXPECT_EQ(words()[1], -2 * kCount);
    EXPECT_EQ(words()[2], 5u);
    EXPECT_EQ(words()[3], static_cast<uint32_t>(static_cast<int>(kCount) - 1 - 1000));
    EXPECT_EQ(words()[4], ~0u);
    EXPECT_EQ(words()[5], 0xffff0000u);
    EXPECT_EQ(words()[6], parity);
    EXPECT_EQ(words()[7], kCount % 10);
    EXPECT_EQ(words()[8], (7 - kCount % 7) % 7);
    EXPECT_EQ(longs()[0], uint64_t{kCount} * (kCount - 1) / 2 << 32);
    EXPECT_EQ(longs()[1], uint64_t{kBlocks} * kThreads * (kThreads - 1) / 2);
    EXPECT_EQ(longs()[2], uint64_t{kCount - 1} << 33);
    EXPECT_EQ(longs()[3], kCount);
    // All drew a ticket; two at most exchanged a zero: the first, and who came after thread 0.
    const auto* flags = flags_.host<uint32_t>();
    EXPECT_EQ(std::count(flags, flags + kCount, 0u), 0);
    const auto zeros = std::count(flags, flags + kCount, 2u);
    EXPECT_TRUE(zeros == 1 || zeros == 2) << zeros;
    EXPECT_EQ(*sums_.host<float>(), kCount / 2.0F);
  }
}

}  // namespace
}  // namespace peal::cudasim
