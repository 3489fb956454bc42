// What an element of each data type is on the device: how it is widened into the type that sums are made in,
// combined and rounded back. The bits are those of lib/reduce/ (reduce.h lists the rules); tests/cuda/
// compares the two. Used by the loops of move.cuh and by the ports of the low-latency protocols; knows no
// memory.
//
// An Element has
//   Bits   the word that it occupies in memory: an unsigned integer of 1, 2, 4 or 8 bytes
//   Lane   what it is reduced in
//   widen(Bits) -> Lane, narrow(Lane) -> Bits: narrow is the one place where a result is rounded
//   divided(Lane, int) -> Lane: the average, before the rounding
// An Operation has kOp, its pealRedOp_t, and combine(Lane, Lane) -> Lane.
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "lib/executor/cuda/device.h"
#include "peal/peal.h"

namespace peal::cuda {

template <class To, class From>
PEAL_DEVICE To bitsAs(From from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  memcpy(&to, &from, sizeof to);
  return to;
}

// ---- elements ----
// Integers wrap. Those narrower than 32 bits are reduced in 32 bits, of which narrow keeps the lowest.
template <class T>
struct Integer {
  using Bits = std::make_unsigned_t<T>;
  using Lane =
      std::conditional_t<sizeof(T) >= 4, T, std::conditional_t<std::is_signed_v<T>, int32_t, uint32_t>>;

  PEAL_DEVICE static Lane widen(Bits bits) { return static_cast<T>(bits); }
  PEAL_DEVICE static Bits narrow(Lane lane) { return static_cast<Bits>(lane); }
  // Of the wrapped sum; truncates toward zero.
  PEAL_DEVICE static Lane divided(Lane lane, int by) { return widen(narrow(lane)) / static_cast<Lane>(by); }
};

// What the float types share. Division is IEEE's: kernels are compiled without fast division.
template <class T>
struct FloatLane {
  using Lane = T;
  PEAL_DEVICE static Lane divided(Lane lane, int by) { return lane / static_cast<Lane>(by); }
};

struct Float32 : FloatLane<float> {
  using Bits = uint32_t;
  PEAL_DEVICE static float widen(uint32_t bits) { return bitsAs<float>(bits); }
  PEAL_DEVICE static uint32_t narrow(float value) {
    return value == value ? bitsAs<uint32_t>(value) : 0x7fc00000u;
  }
};

struct Float64 : FloatLane<double> {
  using Bits = uint64_t;
  PEAL_DEVICE static double widen(uint64_t bits) { return bitsAs<double>(bits); }
  PEAL_DEVICE static uint64_t narrow(double value) {
    return value == value ? bitsAs<uint64_t>(value) : uint64_t{0x7ff8000000000000u};
  }
};

struct Bfloat16 : FloatLane<float> {
  using Bits = uint16_t;
  PEAL_DEVICE static float widen(uint16_t bits) { return bitsAs<float>(static_cast<uint32_t>(bits) << 16); }
  PEAL_DEVICE static uint16_t narrow(float value) {
    const uint32_t bits = bitsAs<uint32_t>(value);
    const uint32_t nearest = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    return static_cast<uint16_t>(value == value ? nearest : 0x7fc0u);
  }
};

struct Float16 : FloatLane<float> {
  using Bits = uint16_t;
  PEAL_DEVICE static float widen(uint16_t bits) { return widenHalf(bits); }
  PEAL_DEVICE static uint16_t narrow(float value) { return narrowHalf(value); }
};

// Rounds to a format of 8 bits, whose NaN is 0x7f: lib/reduce/vectors.inc's SmallFloat for one value.
// kCeilingBits: the fp32 bits that larger magnitudes are cut to before rounding. The largest finite value
// makes the format saturate, the halfway point above it makes larger values round to infinity.
template <int kExponentBits, int kMantissaBits, uint32_t kCeilingBits>
PEAL_DEVICE uint8_t narrowSmall(float value) {
  constexpr int kShift = 23 - kMantissaBits;  // mantissa's place in fp32
  constexpr uint32_t kBias = (1u << (kExponentBits - 1)) - 1;
  constexpr uint32_t kRebias = (127 - kBias) << 23;
  constexpr uint32_t kLeastNormal = kRebias + (1u << 23);
  // Adding 2^23 times the least subnormal leaves the value in units of it, rounded, in the low bits.
  constexpr uint32_t kMagic = (127 + 24 - kBias - kMantissaBits) << 23;
  const uint32_t bits = bitsAs<uint32_t>(value);
  const uint32_t sign = (bits >> 31) << 7;
  const uint32_t magnitude = (bits & 0x7fffffffu) < kCeilingBits ? bits & 0x7fffffffu : kCeilingBits;
  const uint32_t subnormal = bitsAs<uint32_t>(bitsAs<float>(magnitude) + bitsAs<float>(kMagic)) - kMagic;
  const uint32_t odd = (magnitude >> kShift) & 1u;
  const uint32_t normal = (magnitude - kRebias + ((1u << (kShift - 1)) - 1) + odd) >> kShift;
  const uint32_t code = (magnitude < kLeastNormal ? subnormal : normal) | sign;
  return static_cast<uint8_t>(value == value ? code : 0x7fu);
}

// OCP E4M3: no infinity, 0x7f and 0xff are NaN. Saturates at 448. Its bits, moved into those of fp16, are the
// value divided by 256.
struct Float8e4m3 : FloatLane<float> {
  using Bits = uint8_t;
  PEAL_DEVICE static float widen(uint8_t bits) {
    const uint32_t magnitude = bits & 0x7fu;
    const uint32_t half = (bits & 0x80u) << 8 | magnitude << 7;
    const float value = widenHalf(static_cast<uint16_t>(half)) * 256.0F;
    return magnitude != 0x7fu ? value : bitsAs<float>(0x7fc00000u);
  }
  PEAL_DEVICE static uint8_t narrow(float value) { return narrowSmall<4, 3, 0x43e00000u>(value); }
};

// E5M2 is the upper half of fp16. Sums saturate at 57344. max and min choose one of the values, so they keep
// infinity: 61440 is halfway to the power of two above 57344.
template <uint32_t kCeilingBits>
struct Float8e5m2Cut : FloatLane<float> {
  using Bits = uint8_t;
  PEAL_DEVICE static float widen(uint8_t bits) {
    return widenHalf(static_cast<uint16_t>(static_cast<uint32_t>(bits) << 8));
  }
  PEAL_DEVICE static uint8_t narrow(float value) { return narrowSmall<5, 2, kCeilingBits>(value); }
};
using Float8e5m2 = Float8e5m2Cut<0x47600000u>;
using Float8e5m2Exact = Float8e5m2Cut<0x47700000u>;

// An element whose type is known when the kernel runs.
struct AnyElement {};

// Calls `work` with the element of this type: with Element, unless that is AnyElement.
template <class Element, class Work>
PEAL_DEVICE void withElement(int type, const Work& work) {
  if constexpr (!std::is_same_v<Element, AnyElement>) {
    work(Element{});
  } else {
    switch (type) {
      case pealInt8:
        return work(Integer<int8_t>{});
      case pealUint8:
        return work(Integer<uint8_t>{});
      case pealInt32:
        return work(Integer<int32_t>{});
      case pealUint32:
        return work(Integer<uint32_t>{});
      case pealInt64:
        return work(Integer<int64_t>{});
      case pealUint64:
        return work(Integer<uint64_t>{});
      case pealFloat16:
        return work(Float16{});
      case pealFloat32:
        return work(Float32{});
      case pealFloat64:
        return work(Float64{});
      case pealBfloat16:
        return work(Bfloat16{});
      case pealFloat8e4m3:
        return work(Float8e4m3{});
      case pealFloat8e5m2:
        return work(Float8e5m2{});
      default:
        halt();
    }
  }
}

// ---- operations ----
template <class Lane>
constexpr bool kWraps = std::is_integral_v<Lane>;

struct Sum {
  static constexpr int kOp = pealSum;
  template <class Lane>
  PEAL_DEVICE static Lane combine(Lane x, Lane y) {
    if constexpr (kWraps<Lane>) {
      using Unsigned = std::make_unsigned_t<Lane>;
      return static_cast<Lane>(static_cast<Unsigned>(x) + static_cast<Unsigned>(y));
    } else {
      return x + y;
    }
  }
};

struct Product {
  static constexpr int kOp = pealProd;
  template <class Lane>
  PEAL_DEVICE static Lane combine(Lane x, Lane y) {
    if constexpr (kWraps<Lane>) {
      using Unsigned = std::make_unsigned_t<Lane>;
      return static_cast<Lane>(static_cast<Unsigned>(x) * static_cast<Unsigned>(y));
    } else {
      return x * y;
    }
  }
};

// Floats: NaN if either is NaN, and -0 is below +0, so that the order of the sources makes no difference. The
// two selections differ only for zeros (where "or" gives -0) and for NaN, where one of them is the NaN and
// "or" keeps it one.
template <class Lane>
PEAL_DEVICE Lane least(Lane x, Lane y) {
  if constexpr (kWraps<Lane>) {
    return x < y ? x : y;
  } else {
    using Word = std::conditional_t<sizeof(Lane) == 8, uint64_t, uint32_t>;
    return bitsAs<Lane>(bitsAs<Word>(x < y ? x : y) | bitsAs<Word>(y < x ? y : x));
  }
}

struct Max {
  static constexpr int kOp = pealMax;
  template <class Lane>
  PEAL_DEVICE static Lane combine(Lane x, Lane y) {
    if constexpr (kWraps<Lane>) {
      return x > y ? x : y;
    } else {
      return -least(-x, -y);
    }
  }
};

struct Min {
  static constexpr int kOp = pealMin;
  template <class Lane>
  PEAL_DEVICE static Lane combine(Lane x, Lane y) {
    return least(x, y);
  }
};

// Calls `work` with the operation that reduces this pealRedOp_t (the average is a sum that is divided later),
// so that no loop asks which one it is.
template <class Work>
PEAL_DEVICE void withOperation(int op, const Work& work) {
  switch (op) {
    case pealProd:
      work(Product{});
      break;
    case pealMax:
      work(Max{});
      break;
    case pealMin:
      work(Min{});
      break;
    default:
      work(Sum{});
      break;
  }
}

// max and min choose among the values, so what they leave is narrowed by an element that cannot round.
template <class Element>
using Choosing = std::conditional_t<std::is_same_v<Element, Float8e5m2>, Float8e5m2Exact, Element>;

template <class Element>
PEAL_DEVICE bool mustNotRound(int op) {
  return !std::is_same_v<Choosing<Element>, Element> && (op == pealMax || op == pealMin);
}
template <class Element>
PEAL_DEVICE typename Element::Bits narrowFor(int op, typename Element::Lane lane) {
  return mustNotRound<Element>(op) ? Choosing<Element>::narrow(lane) : Element::narrow(lane);
}

// ---- groups of elements in registers: kWords words of 32 bits, at least one element ----
template <int kWords>
struct Group {
  uint32_t word[kWords];
};
PEAL_DEVICE Group<4> groupOf(Vec16 v) { return {{v.word[0], v.word[1], v.word[2], v.word[3]}}; }
PEAL_DEVICE Vec16 vecOf(const Group<4>& g) { return {{g.word[0], g.word[1], g.word[2], g.word[3]}}; }

template <class Element>
constexpr int kBitsBytes = static_cast<int>(sizeof(typename Element::Bits));

template <class Element, int kLanes>
struct Lanes {
  typename Element::Lane lane[kLanes];
};

template <class Element, int kWords>
PEAL_DEVICE Lanes<Element, kWords * 4 / kBitsBytes<Element>> unpack(const Group<kWords>& group) {
  using Bits = typename Element::Bits;
  constexpr int kLanes = kWords * 4 / kBitsBytes<Element>;
  Lanes<Element, kLanes> lanes;
  PEAL_UNROLL
  for (int i = 0; i < kLanes; ++i) {
    if constexpr (sizeof(Bits) == 8) {
      lanes.lane[i] = Element::widen(group.word[2 * i] | static_cast<uint64_t>(group.word[2 * i + 1]) << 32);
    } else {
      constexpr int kPerWord = 4 / kBitsBytes<Element>;
      lanes.lane[i] = Element::widen(
          static_cast<Bits>(group.word[i / kPerWord] >> (i % kPerWord * 8 * kBitsBytes<Element>)));
    }
  }
  return lanes;
}

// op: pealRedOp_t, what made the lanes.
template <class Element, int kLanes>
PEAL_DEVICE Group<kLanes * kBitsBytes<Element> / 4> packFor(int op, const Lanes<Element, kLanes>& lanes) {
  Group<kLanes * kBitsBytes<Element> / 4> group{};
  PEAL_UNROLL
  for (int i = 0; i < kLanes; ++i) {
    const typename Element::Bits bits = narrowFor<Element>(op, lanes.lane[i]);
    if constexpr (sizeof bits == 8) {
      group.word[2 * i] = static_cast<uint32_t>(bits);
      group.word[2 * i + 1] = static_cast<uint32_t>(bits >> 32);
    } else {
      constexpr int kPerWord = 4 / kBitsBytes<Element>;
      group.word[i / kPerWord] |= static_cast<uint32_t>(bits) << (i % kPerWord * 8 * kBitsBytes<Element>);
    }
  }
  return group;
}

template <class Operation, class Element, int kLanes>
PEAL_DEVICE void combineInto(Lanes<Element, kLanes>& sum, const Lanes<Element, kLanes>& next) {
  PEAL_UNROLL
  for (int i = 0; i < kLanes; ++i) {
    sum.lane[i] = Operation::combine(sum.lane[i], next.lane[i]);
  }
}

// The own input times the scalar, rounded to the type.
template <class Element, int kLanes>
PEAL_DEVICE void preMultiply(Lanes<Element, kLanes>& lanes, uint64_t scalarBits) {
  const auto scalar = Element::widen(static_cast<typename Element::Bits>(scalarBits));
  PEAL_UNROLL
  for (int i = 0; i < kLanes; ++i) {
    lanes.lane[i] = Element::widen(Element::narrow(Product::combine(lanes.lane[i], scalar)));
  }
}

template <class Element, int kLanes>
PEAL_DEVICE void divide(Lanes<Element, kLanes>& lanes, int by) {
  PEAL_UNROLL
  for (int i = 0; i < kLanes; ++i) {
    lanes.lane[i] = Element::divided(lanes.lane[i], by);
  }
}

}  // namespace peal::cuda
