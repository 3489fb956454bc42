// Conversions between fp32 and the narrow formats: toFloat and fromFloat, and those inside the loops, against
// the reference that searches the nearest value.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <bit>
#include <cfenv>
#include <cmath>
#include <cstring>
#include <limits>

#include "lib/reduce/dispatch.h"
#include "tests/unit/reduce/reference.h"

namespace peal {
namespace {

uint64_t codeCount(pealDataType_t type) { return 1ULL << (8 * elementBytes(type)); }

uint64_t fromFloatBits(pealDataType_t type, float value) {
  uint64_t code = 0;
  fromFloat(type, value, &code);
  return code;
}

bool isSame(double x, double y) {
  return std::isnan(x) ? std::isnan(y) : x == y && std::signbit(x) == std::signbit(y);
}

class ConversionTest : public testing::TestWithParam<pealDataType_t> {};

TEST_P(ConversionTest, ToFloatIsRightForEveryCode) {
  for (uint64_t code = 0; code < codeCount(GetParam()); ++code) {
    const float value = toFloat(GetParam(), &code);
    ASSERT_TRUE(isSame(value, reference::decode(GetParam(), code)))
        << fmt::format("{:#x} -> {}", code, value);
  }
}

// Every value, every point halfway between two values, and the floats next to each of those.
TEST_P(ConversionTest, FromFloatIsRightAtEveryBoundary) {
  const auto check = [](float value) {
    for (const float candidate :
         {value, std::nextafterf(value, -INFINITY), std::nextafterf(value, INFINITY)}) {
      ASSERT_EQ(fromFloatBits(GetParam(), candidate), reference::encode(GetParam(), candidate))
          << fmt::format("{:a}", candidate);
    }
  };
  double previous = 0;
  for (uint64_t code = 0; code < codeCount(GetParam()); ++code) {
    const double value = reference::decode(GetParam(), code);
    check(static_cast<float>(value));
    check(static_cast<float>((value + previous) / 2));
    if (HasFatalFailure()) {
      return;
    }
    previous = value;
  }
  for (const float value : {448.F, 463.9F, 464.F, 480.F, 57344.F, 61439.F, 61440.F, 65519.F, 65520.F, 65536.F,
                            3.3895314e38F, 3.4e38F, std::numeric_limits<float>::max(), 1e-45F, 0.F}) {
    check(value);
    check(-value);
  }
}

TEST_P(ConversionTest, FromFloatIsRightForRandomFloats) {
  reference::Random random(3);
  for (int i = 0; i < 1000000; ++i) {
    const auto value = std::bit_cast<float>(static_cast<uint32_t>(random.bits()));
    ASSERT_EQ(fromFloatBits(GetParam(), value), reference::encode(GetParam(), value))
        << fmt::format("{:a}", value);
  }
}

// The sanitizers look at code, not at values.
#ifdef PEAL_SANITIZED
constexpr uint64_t kPartners = 6;
#else
constexpr uint64_t kPartners = 24;
#endif

// The loops of one instruction set, applied to two columns of elements.
std::vector<uint64_t> reducePairs(Isa isa, pealDataType_t type, pealRedOp_t kind,
                                  const std::vector<uint64_t>& first, const std::vector<uint64_t>& second) {
  const size_t size = elementBytes(type);
  std::vector<uint8_t> columns[2];
  for (const int c : {0, 1}) {
    columns[c].resize(first.size() * size);
    for (size_t i = 0; i < first.size(); ++i) {
      std::memcpy(columns[c].data() + i * size, c == 0 ? &first[i] : &second[i], size);
    }
  }
  const void* const sources[] = {columns[0].data(), columns[1].data()};
  ReduceOp op;
  op.kind = kind;
  reduceWith(isa, type, op,
             {.sources = sources, .destinations = {columns[0].data(), nullptr}, .count = first.size()});
  std::vector<uint64_t> results(first.size());
  for (size_t i = 0; i < first.size(); ++i) {
    std::memcpy(&results[i], columns[0].data() + i * size, size);
  }
  return results;
}

// Sums and products of two codes fall on values, on halfway points and between them, so they try the loops'
// own conversions: every code of the type with every code (fp8) or with a few dozen (16 bits).
TEST_P(ConversionTest, LoopsConvertEveryCodeRightly) {
  reference::Random random(5);
  const uint64_t codes = codeCount(GetParam());
  const uint64_t partners = codes == 256 ? 256 : kPartners;
  for (uint64_t p = 0; p < partners; ++p) {
    std::vector<uint64_t> first(codes);
    std::vector<uint64_t> second(codes);
    for (uint64_t code = 0; code < codes; ++code) {
      first[code] = code;
      second[code] = codes == 256 ? p : p % 4 == 0 ? random.below(codes) : random.below(codes) | 1;
    }
    for (const pealRedOp_t kind : {pealSum, pealProd, pealMax, pealMin}) {
      std::vector<uint64_t> expected(codes);
      ReduceOp op;
      op.kind = kind;
      for (uint64_t code = 0; code < codes; ++code) {
        const uint64_t pair[] = {first[code], second[code]};
        expected[code] = reference::reduce(GetParam(), op, pair, -1, Finish::Yes);
      }
      for (const Isa isa : reference::isas()) {
        const std::vector<uint64_t> results = reducePairs(isa, GetParam(), kind, first, second);
        for (uint64_t code = 0; code < codes; ++code) {
          ASSERT_EQ(results[code], expected[code]) << fmt::format("{} of {:#x} and {:#x}, {}", opName(kind),
                                                                  first[code], second[code], isaName(isa));
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Types, ConversionTest, testing::ValuesIn(reference::kNarrowTypes),
                         reference::kNameOfType);

TEST(Fp32, PassesThroughUnchanged) {
  for (const uint32_t bits : {0U, 0x80000000U, 1U, 0x7f800000U, 0x7fa00001U, 0x3f800000U}) {
    uint32_t stored = 0;
    fromFloat(pealFloat32, std::bit_cast<float>(bits), &stored);
    EXPECT_EQ(stored, bits);
    EXPECT_EQ(std::bit_cast<uint32_t>(toFloat(pealFloat32, &bits)), bits);
  }
}

TEST(Fp8, SaturatesAndKeepsWhatMaxAndMinChoose) {
  EXPECT_EQ(fromFloatBits(pealFloat8e4m3, INFINITY), 0x7eU);
  EXPECT_EQ(fromFloatBits(pealFloat8e5m2, -INFINITY), 0xfbU);
  for (const Isa isa : reference::isas()) {
    // e5m2: 0x7c is infinity, 0x3c is 1.
    EXPECT_EQ(reducePairs(isa, pealFloat8e5m2, pealSum, {0x7c}, {0x3c})[0], 0x7bU) << isaName(isa);
    EXPECT_EQ(reducePairs(isa, pealFloat8e5m2, pealMax, {0x7c}, {0x3c})[0], 0x7cU) << isaName(isa);
    EXPECT_EQ(reducePairs(isa, pealFloat8e5m2, pealMin, {0xfc}, {0x3c})[0], 0xfcU) << isaName(isa);
  }
}

TEST(MaxAndMin, DoNotDependOnTheOrderOfTheSources) {
  const uint64_t negativeNan = 0xffc12345;
  const uint64_t one = 0x3f800000;
  const uint64_t minusZero = 0x80000000;
  for (const Isa isa : reference::isas()) {
    for (const pealRedOp_t kind : {pealMax, pealMin}) {
      EXPECT_EQ(reducePairs(isa, pealFloat32, kind, {negativeNan, one}, {one, negativeNan}),
                (std::vector<uint64_t>{0x7fc00000, 0x7fc00000}));
    }
    EXPECT_EQ(reducePairs(isa, pealFloat32, pealMax, {minusZero, 0}, {0, minusZero}),
              (std::vector<uint64_t>{0, 0}));
    EXPECT_EQ(reducePairs(isa, pealFloat32, pealMin, {minusZero, 0}, {0, minusZero}),
              (std::vector<uint64_t>{minusZero, minusZero}));
  }
}

TEST(Fp32, KeepsSubnormals) {
  for (const Isa isa : reference::isas()) {
    EXPECT_EQ(reducePairs(isa, pealFloat32, pealSum, {1}, {2})[0], 3U) << isaName(isa);
    EXPECT_EQ(reducePairs(isa, pealFloat32, pealProd, {0x00800000}, {0x3f000000})[0], 0x00400000U)
        << isaName(isa);
  }
}

// The caller's thread may round otherwise; its own state is as before afterwards.
TEST(FloatState, OfTheCallerMakesNoDifference) {
  const std::vector<uint64_t> one{0x3f800000};
  const std::vector<uint64_t> tiny{0x30000000};
  for (const Isa isa : reference::isas()) {
    ASSERT_EQ(std::fesetround(FE_UPWARD), 0);
    const std::vector<uint64_t> sum = reducePairs(isa, pealFloat32, pealSum, one, tiny);
    const int roundingAfter = std::fegetround();
    std::fesetround(FE_TONEAREST);
    EXPECT_EQ(sum, one) << isaName(isa);
    EXPECT_EQ(roundingAfter, FE_UPWARD) << isaName(isa);
  }
}

TEST(Names, AreThoseOfNcclTests) {
  const char* const types[] = {"int8", "uint8", "int32",  "uint32",   "int64",  "uint64",
                               "half", "float", "double", "bfloat16", "f8e4m3", "f8e5m2"};
  const size_t sizes[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};
  for (int t = 0; t < pealNumTypes; ++t) {
    EXPECT_STREQ(typeName(static_cast<pealDataType_t>(t)), types[t]);
    EXPECT_EQ(elementBytes(static_cast<pealDataType_t>(t)), sizes[t]);
  }
  const char* const ops[] = {"sum", "prod", "max", "min", "avg"};
  for (int o = 0; o < pealNumOps; ++o) {
    EXPECT_STREQ(opName(static_cast<pealRedOp_t>(o)), ops[o]);
  }
}

}  // namespace
}  // namespace peal
