// Element types of the C++ face: which C type has which data type, which ranges are accepted, and bfloat16
// against the definition of its rounding.
#include "peal/element.hpp"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <list>
#include <span>
#include <string>
#include <vector>

namespace {

using peal::Bfloat16;

// ---- data types -------------------------------------------------------------------------------------

static_assert(peal::dataType<signed char> == pealInt8);
static_assert(peal::dataType<unsigned char> == pealUint8);
static_assert(peal::dataType<int> == pealInt32);
static_assert(peal::dataType<unsigned> == pealUint32);
static_assert(peal::dataType<long> == pealInt64 && peal::dataType<long long> == pealInt64);
static_assert(peal::dataType<unsigned long> == pealUint64 &&
              peal::dataType<unsigned long long> == pealUint64);
static_assert(peal::dataType<float> == pealFloat32);
static_assert(peal::dataType<double> == pealFloat64);
static_assert(peal::dataType<const double> == pealFloat64);
static_assert(peal::dataType<Bfloat16> == pealBfloat16);
static_assert(peal::dataType<peal::Float16> == pealFloat16);
static_assert(peal::dataType<peal::Float8e4m3> == pealFloat8e4m3);
static_assert(peal::dataType<peal::Float8e5m2> == pealFloat8e5m2);

static_assert(!peal::Element<bool>);
static_assert(!peal::Element<short>);
static_assert(!peal::Element<long double>);
static_assert(!peal::Element<float*>);
static_assert(!peal::Element<std::string>);

// ---- ranges --------------------------------------------------------------------------------------------

static_assert(peal::Input<std::vector<float>&> && peal::Output<std::vector<float>&>);
static_assert(peal::Input<const std::vector<float>&> && !peal::Output<const std::vector<float>&>);
static_assert(peal::Input<std::span<const int>> && !peal::Output<std::span<const int>>);
static_assert(peal::Output<std::span<int>> && peal::Output<std::array<double, 3>&>);
static_assert(peal::Output<float (&)[4]>);
static_assert(!peal::Input<std::vector<float>>, "a temporary that owns its elements");
static_assert(!peal::Input<std::list<float>&>, "not contiguous");
static_assert(!peal::Input<std::vector<bool>&>);
static_assert(peal::SameElements<std::span<const float>, std::vector<float>&>);
static_assert(!peal::SameElements<std::span<const float>, std::vector<double>&>);

// ---- bfloat16 ------------------------------------------------------------------------------------------

float asFloat(Bfloat16 value) { return static_cast<float>(value); }

TEST(Bfloat16Type, EveryValueSurvivesTheWayThroughFloat) {
  for (uint32_t bits = 0; bits <= 0xffff; ++bits) {
    const Bfloat16 value = Bfloat16::fromBits(static_cast<uint16_t>(bits));
    const float wide = asFloat(value);
    const Bfloat16 again(wide);
    if (std::isnan(wide)) {
      EXPECT_TRUE(std::isnan(asFloat(again))) << bits;
      EXPECT_EQ(std::signbit(asFloat(again)), std::signbit(wide)) << bits;
    } else {
      EXPECT_EQ(again.bits, bits);
    }
  }
}

// Round to nearest by its definition: of the two neighbours the nearer, at a tie the one with an even bit.
TEST(Bfloat16Type, RoundsToNearestEven) {
  for (uint32_t upper = 0; upper < 0x7f80; ++upper) {
    const Bfloat16 below = Bfloat16::fromBits(static_cast<uint16_t>(upper));
    const Bfloat16 above = Bfloat16::fromBits(static_cast<uint16_t>(upper + 1));
    for (const uint32_t lower : {0x0001u, 0x7fffu, 0x8000u, 0x8001u, 0xffffu}) {
      const uint32_t full = (upper << 16) | lower;
      const Bfloat16 even = (upper & 1) == 0 ? below : above;
      const Bfloat16 expected = lower < 0x8000 ? below : lower > 0x8000 ? above : even;
      for (const uint32_t sign : {0u, 0x80000000u}) {
        const uint32_t signedBits = full | sign;
        float value = 0;
        std::memcpy(&value, &signedBits, sizeof value);
        ASSERT_EQ(Bfloat16(value).bits, expected.bits | (sign >> 16)) << std::hex << signedBits;
      }
    }
  }
}

TEST(Bfloat16Type, KnowsInfinityAndNan) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  EXPECT_EQ(Bfloat16(kInfinity).bits, 0x7f80);
  EXPECT_EQ(Bfloat16(-kInfinity).bits, 0xff80);
  EXPECT_EQ(Bfloat16(std::numeric_limits<float>::max()).bits, 0x7f80) << "rounds up to infinity";
  EXPECT_TRUE(std::isnan(asFloat(Bfloat16(std::numeric_limits<float>::quiet_NaN()))));
  // A NaN whose payload is in the lower half only must not become an infinity, and one of all ones must not
  // carry over to zero.
  for (const uint32_t bits : {0x7f800001u, 0xff800001u, 0x7fffffffu, 0xffffffffu}) {
    float value = 0;
    std::memcpy(&value, &bits, sizeof value);
    EXPECT_TRUE(std::isnan(asFloat(Bfloat16(value)))) << std::hex << bits;
  }
}

TEST(Bfloat16Type, StartsAtZero) { EXPECT_EQ(Bfloat16().bits, 0); }

}  // namespace
