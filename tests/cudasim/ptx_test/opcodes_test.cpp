// Every instruction of opcodes.inc, translated from PTX and run on the simulator, against plain C++.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cfenv>
#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "tests/cudasim/core/buffer.h"
#include "tests/cudasim/core/run.h"

extern "C" void opcodes(const uint64_t* in, uint64_t* out, uint32_t count);

namespace peal::cudasim {
namespace {

// ---- the vocabulary of opcodes.inc ----
int16_t S(uint16_t bits) { return static_cast<int16_t>(bits); }
int32_t S(uint32_t bits) { return static_cast<int32_t>(bits); }
int64_t S(uint64_t bits) { return static_cast<int64_t>(bits); }
float F(uint32_t bits) { return std::bit_cast<float>(bits); }
double F(uint64_t bits) { return std::bit_cast<double>(bits); }
uint32_t B(float value) { return std::isnan(value) ? 0x7fffffffu : std::bit_cast<uint32_t>(value); }
uint64_t B(double value) { return std::bit_cast<uint64_t>(value); }
float H(uint16_t bits) {
  const int exponent = bits >> 10 & 31, fraction = bits & 1023;
  const float magnitude = exponent == 31  ? fraction != 0 ? NAN : INFINITY
                          : exponent == 0 ? std::ldexp(static_cast<float>(fraction), -24)
                                          : std::ldexp(static_cast<float>(1024 + fraction), exponent - 25);
  return std::copysign(magnitude, (bits & 0x8000) != 0 ? -1.0F : 1.0F);
}
float G(uint16_t bits) { return F(uint32_t{bits} << 16); }

// The code whose value is nearest to `value`, ties to the even code, among `codes` positive ones in order.
template <class Value>
uint16_t nearest(double value, uint32_t codes, Value valueOf) {
  if (std::isnan(value)) {
    return 0x7fff;
  }
  const auto sign = static_cast<uint16_t>(std::signbit(value) ? 0x8000 : 0);
  const double magnitude = std::fabs(value);
  uint32_t low = 0, high = codes;  // valueOf(low) <= magnitude < valueOf(high), the last of which is infinity
  while (high - low > 1) {
    const uint32_t middle = (low + high) / 2;
    (valueOf(middle) <= magnitude ? low : high) = middle;
  }
  const double below = magnitude - valueOf(low), above = valueOf(low + 1) - magnitude;
  return static_cast<uint16_t>(sign | (below < above || (below == above && low % 2 == 0) ? low : low + 1));
}
// Infinity counts as the power of two behind the largest value.
uint16_t nearestHalf(double value) {
  if (std::isinf(value)) {
    return value < 0 ? 0xfc00 : 0x7c00;
  }
  return nearest(std::clamp(value, -65536.0, 65536.0), 0x7c00, [](uint32_t code) {
    return code >= 0x7c00 ? 65536.0 : double{H(static_cast<uint16_t>(code))};
  });
}
uint16_t nearestBrain(float value) {
  if (std::isinf(value)) {
    return value < 0 ? 0xff80 : 0x7f80;
  }
  return nearest(value, 0x7f80, [](uint32_t code) {
    return code >= 0x7f80 ? 0x1p128 : double{G(static_cast<uint16_t>(code))};
  });
}

float least(float a, float b) {
  return std::isnan(a) ? b : std::isnan(b) ? a : a == b ? (std::signbit(a) ? a : b) : std::fmin(a, b);
}
double least(double a, double b) {
  return std::isnan(a) ? b : std::isnan(b) ? a : a == b ? (std::signbit(a) ? a : b) : std::fmin(a, b);
}
template <class To, class From>
To rounded(int mode, From value) {
  const volatile From source = value;
  std::fesetround(mode);
  const volatile To result = static_cast<To>(source);
  std::fesetround(FE_TONEAREST);
  return result;
}
template <class To>
uint64_t clamped(long double whole) {
  const long double least = std::numeric_limits<To>::min(), most = std::numeric_limits<To>::max();
  return std::isnan(whole) ? 0
         : whole <= least  ? static_cast<uint64_t>(std::numeric_limits<To>::min())
         : whole >= most   ? static_cast<uint64_t>(std::numeric_limits<To>::max())
                           : static_cast<uint64_t>(static_cast<To>(whole));
}
uint64_t reversed(uint64_t bits, int width) {
  uint64_t result = 0;
  for (int i = 0; i < width; ++i) {
    result |= (bits >> i & 1) << (width - 1 - i);
  }
  return result;
}
// PTX's own definition of bfe and bfi, bit by bit.
uint64_t fieldOf(uint64_t bits, uint32_t width, uint32_t start, uint32_t length, bool isSigned) {
  start &= 255, length &= 255;
  const uint32_t top = std::min(start + length - 1, width - 1);
  const uint64_t sign = isSigned && length != 0 ? bits >> top & 1 : 0;
  uint64_t result = 0;
  for (uint32_t i = 0; i < width; ++i) {
    result |= (i < length && start + i < width ? bits >> (start + i) & 1 : sign) << i;
  }
  return result;
}
uint64_t fieldInto(uint64_t field, uint64_t bits, uint32_t width, uint32_t start, uint32_t length) {
  start &= 255, length &= 255;
  for (uint32_t i = 0; i < length && start + i < width; ++i) {
    bits = (bits & ~(uint64_t{1} << (start + i))) | (field >> i & 1) << (start + i);
  }
  return bits;
}
uint32_t lookup(uint32_t a, uint32_t b, uint32_t c, uint32_t table) {
  uint32_t result = 0;
  for (int i = 0; i < 32; ++i) {
    result |= (table >> ((a >> i & 1) << 2 | (b >> i & 1) << 1 | (c >> i & 1)) & 1) << i;
  }
  return result;
}

// ---- rows ----
template <int kBits>
struct Unsigned;
template <>
struct Unsigned<0> {
  using Type = uint64_t;
};
template <>
struct Unsigned<16> {
  using Type = uint16_t;
};
template <>
struct Unsigned<32> {
  using Type = uint32_t;
};
template <>
struct Unsigned<64> {
  using Type = uint64_t;
};
template <int kBits>
using Word = typename Unsigned<kBits>::Type;

struct Row {
  const char* text;
  int bits;
  bool isFloat;
  uint64_t (*expected)(uint64_t a, uint64_t b, uint64_t c);
};

#define MAKE_ROW(text, isFloat, d, aBits, bBits, cBits, expectation)            \
  {text, d, isFloat, [](uint64_t a64, uint64_t b64, uint64_t c64) -> uint64_t { \
     [[maybe_unused]] const auto a = static_cast<Word<aBits>>(a64);             \
     [[maybe_unused]] const auto b = static_cast<Word<bBits>>(b64);             \
     [[maybe_unused]] const auto c = static_cast<Word<cBits>>(c64);             \
     return static_cast<Word<d>>(expectation);                                  \
   }},
#define ROW(text, d, a, b, c, expectation) MAKE_ROW(text, false, d, a, b, c, expectation)
#define FLOAT(text, d, a, b, c, expectation) MAKE_ROW(text, true, d, a, b, c, expectation)
const Row kRows[] = {
#include "tests/cudasim/ptx_test/opcodes.inc"
};

constexpr uint64_t kCorners[] = {
    0, 1, 2, 3, 5, 16, 31, 32, 33, 63, 64, 65, 0x7f, 0x80, 0xff, 0x7fff, 0x8000, 0xffff, 0x7fffffff,
    0x80000000, 0xfffffffe, 0xffffffff, 0x7fffffffffffffff, 0x8000000000000000, 0xffffffffffffffff,
    // fp32: 1, -1, 0.5, 1.5, infinities, NaN, least subnormal, largest, 2^31, 2^32, 2^63, 2.5, -0.3
    0x3f800000, 0xbf800000, 0x3f000000, 0x3fc00000, 0x7f800000, 0xff800000, 0x7fc00000, 0xffc00001,
    0x7f7fffff, 0x4f000000, 0x4f800000, 0x5f000000, 0x40200000, 0xbe99999a,
    // near the ends of fp16: 65504, 65519.99, 65520, 2^-24, 2^-25 and more, 2^-14
    0x477fe000, 0x477fefff, 0x477ff000, 0x33800000, 0x33000000, 0x33000001, 0x38800000, 0x387fffff,
    // fp64: 1, -0.5, infinity, NaN, largest, least, 2^63, 2^64, 1e10, the fp32 overflow's halfway point
    0x3ff0000000000000, 0xbfe0000000000000, 0x7ff0000000000000, 0x7ff8000000000000, 0x7fefffffffffffff,
    0x0000000000000001, 0x43e0000000000000, 0x43f0000000000000, 0x4202a05f20000000, 0x47effffff0000000,
    // pairs of halves: fp16 1 and -2, infinities, NaN
    0x3c00c000, 0x7c00fc00, 0x7e000400};

std::vector<uint64_t> inputs() {
  std::vector<uint64_t> words;
  std::mt19937_64 random(1);
  const auto corner = [&] { return kCorners[random() % std::size(kCorners)]; };
  for (const uint64_t a : kCorners) {
    for (const uint64_t b : kCorners) {
      words.insert(words.end(), {a, b, corner()});
    }
  }
  for (int i = 0; i < 4000; ++i) {
    // Floats of a moderate size among them, and small counts.
    const uint64_t moderate = (random() % 4 == 0 ? random() % 70 : 0x3c000000 + random() % 0x08000000);
    words.insert(words.end(),
                 {random(), i % 2 == 0 ? random() : moderate, i % 3 == 0 ? random() : random() % 70});
  }
  // Floats with few digits, which lie halfway between two values of a narrower format.
  for (int i = 0; i < 4000; ++i) {
    const auto few = [&] {
      const uint64_t digits = random() % 2 == 0 ? random() & 0x7ff800 : random() & 0x7fc000;
      return (random() & 1) << 31 | (96 + random() % 50) << 23 | digits;
    };
    words.insert(words.end(), {few(), few(), few()});
  }
  return words;
}

TEST(PtxOpcodes, ComputeWhatTheyAreDefinedTo) {
  const std::vector<uint64_t> words = inputs();
  const size_t count = words.size() / 3;
  DeviceBuffer in(words.size() * sizeof(uint64_t)), out(count * std::size(kRows) * sizeof(uint64_t));
  std::copy(words.begin(), words.end(), in.host<uint64_t>());
  Grid grid;
  grid.block = dim3(128);
  grid.grid = dim3(static_cast<unsigned>((count + 127) / 128));
  grid.body = [&] { opcodes(in.device<uint64_t>(), out.device<uint64_t>(), static_cast<uint32_t>(count)); };
  Grid* const grids[] = {&grid};
  const RunResult result = run(grids, World::Alone, OnTrap::Return);
  ASSERT_TRUE(result.ok()) << result.text;
  for (size_t r = 0; r < std::size(kRows); ++r) {
    const Row& row = kRows[r];
    const uint64_t* found = out.host<uint64_t>() + r * count;
    for (size_t i = 0; i < count; ++i) {
      const uint64_t expected = row.expected(words[3 * i], words[3 * i + 1], words[3 * i + 2]);
      if (found[i] != expected && !(row.isFloat && std::isnan(F(found[i])) && std::isnan(F(expected)))) {
        ADD_FAILURE() << row.text << std::hex << " of " << words[3 * i] << ", " << words[3 * i + 1] << ", "
                      << words[3 * i + 2] << " gives " << found[i] << ", not " << expected;
        break;
      }
    }
  }
}

}  // namespace
}  // namespace peal::cudasim
