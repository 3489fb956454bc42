// The operations on vectors and blocks. Only for kernels_*.cpp, after vectors.h: everything has internal
// linkage.
#pragma once
#include <type_traits>

namespace peal {
namespace {

// Integers wrap: signed ones are added and multiplied as unsigned.
template <class Lane, bool kIsInteger = std::is_integral_v<Lane>>
struct Arithmetic {
  using Type = Lane;
};
template <class Lane>
struct Arithmetic<Lane, true> {
  using Type = std::make_unsigned_t<Lane>;
};

template <class Lane>
struct Of {
  using Value = Vector<Lane>;
  using Wrapping = Vector<typename Arithmetic<Lane>::Type>;
  // A word of the lane's size, for the sign and the bits of a float.
  using Bits = Vector<std::conditional_t<sizeof(Lane) == 8, uint64_t, uint32_t>>;

  static Value sum(Value x, Value y) {
    return reinterpret_cast<Value>(reinterpret_cast<Wrapping>(x) + reinterpret_cast<Wrapping>(y));
  }
  static Value product(Value x, Value y) {
    return reinterpret_cast<Value>(reinterpret_cast<Wrapping>(x) * reinterpret_cast<Wrapping>(y));
  }
  // Floats: NaN if either is NaN, and -0 is below +0, so that the order of the sources makes no difference.
  // The two selections differ only for zeros (where "or" gives -0) and for NaN, where one of them is the NaN
  // and "or" keeps it one.
  static Value least(Value x, Value y) {
    const Value xIfLess = x < y ? x : y;
    if constexpr (std::is_integral_v<Lane>) {
      return xIfLess;
    } else {
      const Value yIfLess = y < x ? y : x;
      return reinterpret_cast<Value>(reinterpret_cast<Bits>(xIfLess) | reinterpret_cast<Bits>(yIfLess));
    }
  }
  static Value most(Value x, Value y) {
    if constexpr (std::is_integral_v<Lane>) {
      return x > y ? x : y;
    } else {
      return -least(-x, -y);
    }
  }
};

struct Sum {
  template <class Lane>
  static Block<Lane> combine(const Block<Lane>& x, const Block<Lane>& y) {
    return {Of<Lane>::sum(x.a, y.a), Of<Lane>::sum(x.b, y.b), Of<Lane>::sum(x.c, y.c),
            Of<Lane>::sum(x.d, y.d)};
  }
};

struct Product {
  template <class Lane>
  static Block<Lane> combine(const Block<Lane>& x, const Block<Lane>& y) {
    return {Of<Lane>::product(x.a, y.a), Of<Lane>::product(x.b, y.b), Of<Lane>::product(x.c, y.c),
            Of<Lane>::product(x.d, y.d)};
  }
};

struct Max {
  template <class Lane>
  static Block<Lane> combine(const Block<Lane>& x, const Block<Lane>& y) {
    return {Of<Lane>::most(x.a, y.a), Of<Lane>::most(x.b, y.b), Of<Lane>::most(x.c, y.c),
            Of<Lane>::most(x.d, y.d)};
  }
};

struct Min {
  template <class Lane>
  static Block<Lane> combine(const Block<Lane>& x, const Block<Lane>& y) {
    return {Of<Lane>::least(x.a, y.a), Of<Lane>::least(x.b, y.b), Of<Lane>::least(x.c, y.c),
            Of<Lane>::least(x.d, y.d)};
  }
};

// Integers truncate toward zero. Those below 64 bits are divided as floats, for which there are vector
// instructions: the quotient of integers of 8 (32) bits is at least 1/divisor away from the next integer,
// which is more than half a unit in the last place of fp32 (fp64).
template <class Lane>
inline Block<Lane> divided(Block<Lane> x, int divisor) {
  if constexpr (!std::is_integral_v<Lane>) {
    const Lane by = static_cast<Lane>(divisor);
    return {x.a / by, x.b / by, x.c / by, x.d / by};
  } else {
    using Exact =
        std::conditional_t<sizeof(Lane) == 8, Lane, std::conditional_t<sizeof(Lane) == 4, double, float>>;
    constexpr size_t kLanes = sizeof(Block<Lane>) / sizeof(Lane);
    Lane lanes[kLanes];
    __builtin_memcpy(lanes, &x, sizeof x);
    for (Lane& lane : lanes) {
      lane = static_cast<Lane>(static_cast<Exact>(lane) / static_cast<Exact>(divisor));
    }
    Block<Lane> result;
    __builtin_memcpy(&result, lanes, sizeof result);
    return result;
  }
}

}  // namespace
}  // namespace peal
