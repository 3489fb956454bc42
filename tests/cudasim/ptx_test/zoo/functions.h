// Functions of one thread, the same text for the device and for the host: calls of every kind, numbers,
// memory of the thread. Each takes an element and gives a word that depends on everything it did.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>

#include "tests/cudasim/ptx_test/zoo/zoo.h"

namespace zoo {

ZOO_INLINE uint64_t mix(uint64_t hash, uint64_t word) {
  hash = (hash ^ word) * 0x9e3779b97f4a7c15u;
  return hash ^ hash >> 29;
}
template <class T>
ZOO_INLINE uint64_t mixBits(uint64_t hash, T value) {
  uint64_t word = 0;
  memcpy(&word, &value, sizeof value);
  return mix(hash, word);
}

// ---- calls ----
struct Small {
  int32_t a;
  int16_t b;
  uint8_t c;
};
struct Pair {
  int64_t x;
  float y;
  int32_t z;
};
struct Large {
  uint64_t words[5];
  double d;
  uint8_t tail[3];
};

ZOO_CALL Small makeSmall(uint64_t seed) {
  return {static_cast<int32_t>(seed >> 7), static_cast<int16_t>(seed >> 40), static_cast<uint8_t>(seed)};
}
ZOO_CALL Pair makePair(Small small, const Args& args) {
  return {int64_t{small.a} * small.b, static_cast<float>(small.c) * args.scale, small.a % (small.c + 1)};
}
ZOO_CALL Large makeLarge(Pair pair, Small small) {
  Large large{};
  for (int i = 0; i < 5; ++i) {
    large.words[i] = static_cast<uint64_t>(pair.x) * static_cast<uint64_t>(i + small.c);
  }
  large.d = pair.y;
  large.tail[1] = small.c;
  return large;
}
ZOO_CALL void changeLarge(Large& large, int at, bool really) {
  if (really) {
    large.words[at] ^= large.words[(at + 1) % 5];
  } else {
    large.tail[at % 3]++;
  }
}
ZOO_CALL uint64_t hashLarge(Large large) {  // by value: a copy in .param space
  uint64_t hash = 1;
  for (uint64_t word : large.words) {
    hash = mix(hash, word);
  }
  return mixBits(mixBits(hash, large.d), large.tail[1]);
}

// `this` in local memory, changed by calls.
class Walker {
 public:
  ZOO_INLINE Walker(uint64_t seed, float step) : state_(seed), step_(step) {}
  ZOO_CALL void walk(uint32_t steps) {
    for (uint32_t i = 0; i < steps; ++i) {
      state_ = mix(state_, i);
      position_ += (state_ & 1) != 0 ? step_ : -step_;
    }
  }
  ZOO_CALL float position() const { return position_; }
  ZOO_CALL Walker operator+(const Walker& other) const {
    Walker sum(state_ ^ other.state_, step_);
    sum.position_ = position_ + other.position_;
    return sum;
  }
  ZOO_INLINE uint64_t state() const { return state_; }

 private:
  uint64_t state_;
  float step_, position_ = 0;
};

// Enough cases, and different enough, for a jump table.
ZOO_CALL uint64_t choose(uint32_t what, uint64_t a, uint64_t b) {
  switch (what) {
    case 0:
      return a + b;
    case 1:
      return a * b;
    case 2:
      return a ^ b << 3;
    case 3:
      return b == 0 ? 7 : a / b;
    case 4:
      return mix(a, b);
    case 5:
      return (a << 5 | a >> 59) - b;
    case 6:
      return mix(b, a) + 1;
    case 7:
      return ~a;
    case 8:
      return a & b;
    case 9:
      return mix(a, mix(b, a));
    case 10:
      return a >> (b & 31);
    case 11:
      return b - a;
    default:
      return 99;
  }
}
// A loop whose body is a jump table: branches backward from it.
ZOO_CALL uint64_t machine(uint64_t program) {
  uint64_t value = 1;
  for (uint32_t steps = 0; steps < 40; ++steps) {
    switch (program & 7) {
      case 0:
        value += 3;
        break;
      case 1:
        value *= 5;
        break;
      case 2:
        value ^= program;
        break;
      case 3:
        value = mix(value, steps);
        continue;
      case 4:
        value -= 11;
        break;
      case 5:
        return value;
      case 6:
        value = value << 9 | value >> 55;
        break;
      case 7:
        value = ~value;
        break;
    }
    program = program >> 3 | program << 61;
  }
  return value + 1;
}

using Unary = uint64_t (*)(uint64_t);
ZOO_CALL uint64_t twice(uint64_t value) { return value * 2; }
ZOO_CALL uint64_t inverted(uint64_t value) { return ~value; }

ZOO_CALL uint64_t callsOf(const Args& args, uint32_t i) {
  const uint64_t seed = args.in[i];
  const Small small = makeSmall(seed);
  const Pair pair = makePair(small, args);
  Large large = makeLarge(pair, small);
  changeLarge(large, static_cast<int>(i % 5), args.flag);
  Walker walker(seed, args.scale), other(seed + 1, args.scale);
  walker.walk(i % 7);
  other.walk(3);
  const Walker sum = walker + other;
  uint64_t hash = hashLarge(large);
  hash = mixBits(hash, sum.position());
  hash = mix(hash, sum.state());
  hash = mix(hash, choose(i % 13, seed, hash));
  hash = mix(hash, machine(seed));
  const Unary unary = (seed & 2) != 0 ? twice : inverted;  // a call through a pointer
  return mix(hash, unary(seed));
}

// ---- numbers ----
ZOO_INLINE float boundedFloat(uint64_t seed) {
  return static_cast<float>(static_cast<int32_t>(seed)) * (1.0F / 65536);
}
ZOO_CALL uint64_t integersOf(uint64_t a, uint64_t b, int32_t shift) {
  const auto sa = static_cast<int64_t>(a), sb = static_cast<int64_t>(b | 1);
  const auto wa = static_cast<uint32_t>(a), wb = static_cast<uint32_t>(b);
  const auto ha = static_cast<int16_t>(a), hb = static_cast<int16_t>(b | 1);
  const auto ba = static_cast<int8_t>(a);
  uint64_t hash = mix(a, a / (b | 1));
  hash = mix(hash, a % (b | 1));
  hash = mix(hash, static_cast<uint64_t>(sa / (sb == -1 ? 3 : sb)));
  hash = mix(hash, static_cast<uint64_t>(sa % 1000003));
  hash = mix(hash, wa / 7 + wb % 13);
  hash = mix(hash, static_cast<uint64_t>(ha / (hb == -1 ? 2 : hb)));
  hash = mix(hash, static_cast<uint64_t>(ba >> (shift & 7)));
  hash = mix(hash, static_cast<uint64_t>(sa >> (shift & 63)));
  hash = mix(hash, uint64_t{wa} * wb);
  hash = mix(hash, static_cast<uint64_t>(int64_t{static_cast<int32_t>(wa)} * static_cast<int32_t>(wb)));
  hash = mix(hash, static_cast<uint64_t>(static_cast<unsigned __int128>(a) * b >> 64));
  hash = mix(hash, static_cast<uint64_t>(((static_cast<unsigned __int128>(a) << 64 | b) + a) >> 37));
  hash = mix(hash, static_cast<uint16_t>(static_cast<uint16_t>(wa) * static_cast<uint16_t>(wb)));
  hash = mix(hash, wa << (wb & 31) | wa >> (-wb & 31));
  hash = mix(hash, (sa < sb ? 1u : 0u) + (a < b ? 2u : 0u) + (ha <= hb ? 4u : 0u));
  return mix(hash, (wa & 0xff00u) >> 8 | (wb & 0x3f0u) << 12);
}
ZOO_CALL uint64_t floatsOf(uint64_t a, uint64_t b, const Args& args) {
  const float x = boundedFloat(a), y = boundedFloat(b);
  const double u = static_cast<double>(static_cast<int64_t>(a)) * 0x1p-40, v = args.offset + y;
  uint64_t hash = mixBits(a, x + y);
  hash = mixBits(hash, x * y - args.scale);
  hash = mixBits(hash, y != 0 ? x / y : 1.0F);
  hash = mixBits(hash, std::fma(x, y, args.scale));
  hash = mixBits(hash, std::sqrt(std::fabs(x)));
  hash = mixBits(hash, std::fmin(x, y));
  hash = mixBits(hash, std::fmax(x, -y));
  hash = mixBits(hash, std::copysign(x, y));
  hash = mixBits(hash, std::trunc(x) + std::floor(y) + std::ceil(x) + std::rint(y));
  hash = mixBits(hash, u * v + u / (v * v + 1));
  hash = mixBits(hash, std::sqrt(std::fabs(u)));
  hash = mixBits(hash, static_cast<float>(u));
  hash = mixBits(hash, static_cast<int32_t>(x));
  hash = mixBits(hash, static_cast<int64_t>(u));
  hash = mixBits(hash, static_cast<float>(a));
  hash = mixBits(hash, static_cast<double>(b));
  hash = mixBits(hash, static_cast<uint8_t>(std::fabs(y) < 200 ? std::fabs(y) : 0));
  return mix(hash, (std::isnan((x - x) / (y - y)) ? 1u : 0u) + (x < y ? 2u : 0u) + (!(x <= y) ? 4u : 0u));
}

// ---- memory of the thread ----
ZOO_CALL void fill(uint32_t* to, uint32_t count, uint32_t seed) {  // does not know where `to` is
  for (uint32_t i = 0; i < count; ++i) {
    to[i] = seed * (i + 1) ^ i << 20;
  }
}
ZOO_CALL uint32_t sum(const uint32_t* from, uint32_t count) {
  uint32_t total = 0;
  for (uint32_t i = 0; i < count; ++i) {
    total = total * 3 + from[i];
  }
  return total;
}

}  // namespace zoo
