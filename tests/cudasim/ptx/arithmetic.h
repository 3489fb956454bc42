// What PTX instructions compute, as C++ functions over the bits of registers. Called by the code that
// ptx2cpp.py writes; touches neither memory nor other threads (that is memory.h).
//
// Registers are unsigned integers of their width. A function's first template argument is the type of the
// instruction (`add.s32` is add<s32>) and says how those bits are read. Results are defined for every input,
// as PTX defines them, and never undefined behaviour. formats.h has the types.
#pragma once
#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <type_traits>

#include "tests/cudasim/ptx/formats.h"

namespace peal::cudasim::ptx {

// ---- add, multiply, divide ----
template <class T>
Bits<T> add(Bits<T> a, Bits<T> b) {
  if constexpr (kIsFloat<T>) {
    return compute<T>([](auto x, auto y) { return x + y; }, a, b);
  } else {
    return static_cast<Bits<T>>(Wide<T>{a} + b);
  }
}
template <class T>
Bits<T> sub(Bits<T> a, Bits<T> b) {
  if constexpr (kIsFloat<T>) {
    return compute<T>([](auto x, auto y) { return x - y; }, a, b);
  } else {
    return static_cast<Bits<T>>(Wide<T>{a} - b);
  }
}
template <class T>
Bits<T> mul(Bits<T> a, Bits<T> b) {  // mul.lo of integers
  if constexpr (kIsFloat<T>) {
    return compute<T>([](auto x, auto y) { return x * y; }, a, b);
  } else {
    return static_cast<Bits<T>>(Wide<T>{a} * b);
  }
}
template <class T>
Bits<T> mulHi(Bits<T> a, Bits<T> b) {
  using Product = std::conditional_t<std::is_signed_v<T>, __int128, unsigned __int128>;
  return static_cast<Bits<T>>((Product{read<T>(a)} * Product{read<T>(b)}) >> kWidth<T>);
}
template <class T>
auto mulWide(Bits<T> a, Bits<T> b) {
  using Product = typename UnsignedOf<2 * sizeof(T)>::type;
  using Signed = std::conditional_t<std::is_signed_v<T>, int64_t, uint64_t>;
  return static_cast<Product>(static_cast<u64>(Signed{read<T>(a)}) * static_cast<u64>(Signed{read<T>(b)}));
}
template <class T>
Bits<T> fma(Bits<T> a, Bits<T> b, Bits<T> c) {
  return settle<T>(std::fma(read<T>(a), read<T>(b), read<T>(c)));
}
// Sums with carry: `carry` is the flag of .cc.
template <class T>
Bits<T> addCarry(Bits<T> a, Bits<T> b, bool carryIn, bool& carry) {
  const unsigned __int128 sum = static_cast<unsigned __int128>(a) + b + (carryIn ? 1 : 0);
  carry = (sum >> kWidth<T>) != 0;
  return static_cast<Bits<T>>(sum);
}
template <class T>
Bits<T> subBorrow(Bits<T> a, Bits<T> b, bool borrowIn, bool& borrow) {
  const unsigned __int128 subtrahend = static_cast<unsigned __int128>(b) + (borrowIn ? 1 : 0);
  borrow = a < subtrahend;
  return static_cast<Bits<T>>(a - subtrahend);
}
// Integer division by zero gives all ones, the remainder then the dividend: hardware does not trap.
template <class T>
Bits<T> div(Bits<T> a, Bits<T> b) {
  if constexpr (kIsFloat<T>) {
    return settle<T>(read<T>(a) / read<T>(b));
  } else {
    if (b == 0) {
      return static_cast<Bits<T>>(~Wide<T>{0});
    }
    if constexpr (std::is_signed_v<T>) {
      if (read<T>(b) == -1) {
        return static_cast<Bits<T>>(Wide<T>{0} - a);
      }
    }
    return static_cast<Bits<T>>(read<T>(a) / read<T>(b));
  }
}
template <class T>
Bits<T> rem(Bits<T> a, Bits<T> b) {
  if (b == 0) {
    return a;
  }
  if constexpr (std::is_signed_v<T>) {
    if (read<T>(b) == -1) {
      return 0;
    }
  }
  return static_cast<Bits<T>>(read<T>(a) % read<T>(b));
}
template <class T>
Bits<T> rcp(Bits<T> a) {
  return settle<T>(T{1} / read<T>(a));
}
template <class T>
Bits<T> sqrt(Bits<T> a) {
  return settle<T>(std::sqrt(read<T>(a)));
}
template <class T>
Bits<T> saturate(Bits<T> a) {  // .sat of floating point: into [0, 1], NaN to 0
  const T value = read<T>(a);
  return write<T>(value > T{0} ? std::min(value, T{1}) : T{0});
}

// ---- sign, order ----
template <class T>
Bits<T> neg(Bits<T> a) {
  if constexpr (kIsFloat<T>) {
    return static_cast<Bits<T>>(a ^ (Wide<T>{1} << (kWidth<T> - 1)));
  } else {
    return static_cast<Bits<T>>(Wide<T>{0} - a);
  }
}
template <class T>
Bits<T> abs(Bits<T> a) {
  constexpr Wide<T> kSign = Wide<T>{1} << (kWidth<T> - 1);
  if constexpr (kIsFloat<T>) {
    return static_cast<Bits<T>>(a & ~kSign);
  } else {
    return (a & kSign) != 0 ? static_cast<Bits<T>>(Wide<T>{0} - a) : a;
  }
}
template <class T>
Bits<T> copysign(Bits<T> sign, Bits<T> magnitude) {
  constexpr Bits<T> kSign = Bits<T>{1} << (kWidth<T> - 1);
  return (sign & kSign) | (magnitude & ~kSign);
}
template <class T>
bool less(Bits<T> a, Bits<T> b) {
  if constexpr (kIsFloat<T>) {
    const auto x = widen(read<T>(a)), y = widen(read<T>(b));
    return x < y || (x == y && std::signbit(x) && !std::signbit(y));  // -0 before +0
  } else {
    return read<T>(a) < read<T>(b);
  }
}
template <class T>
bool isNan(Bits<T> a) {
  return std::isnan(widen(read<T>(a)));
}
template <class T>
Bits<T> min(Bits<T> a, Bits<T> b) {
  if constexpr (kIsFloat<T>) {
    if (isNan<T>(a)) {
      return isNan<T>(b) ? static_cast<Bits<T>>(Format<T>::kNan) : b;
    }
    if (isNan<T>(b)) {
      return a;
    }
  }
  return less<T>(b, a) ? b : a;
}
template <class T>
Bits<T> max(Bits<T> a, Bits<T> b) {
  if constexpr (kIsFloat<T>) {
    if (isNan<T>(a)) {
      return isNan<T>(b) ? static_cast<Bits<T>>(Format<T>::kNan) : b;
    }
    if (isNan<T>(b)) {
      return a;
    }
  }
  return less<T>(a, b) ? b : a;
}
template <class T>
Bits<T> minNan(Bits<T> a, Bits<T> b) {
  return isNan<T>(a) || isNan<T>(b) ? static_cast<Bits<T>>(Format<T>::kNan) : min<T>(a, b);
}
template <class T>
Bits<T> maxNan(Bits<T> a, Bits<T> b) {
  return isNan<T>(a) || isNan<T>(b) ? static_cast<Bits<T>>(Format<T>::kNan) : max<T>(a, b);
}

enum class Compare { Eq, Ne, Lt, Le, Gt, Ge, Equ, Neu, Ltu, Leu, Gtu, Geu, Num, Nan };

template <class T, Compare kHow>
bool compare(Bits<T> a, Bits<T> b) {
  const auto x = [a] {
    if constexpr (kIsFloat<T>) {
      return widen(read<T>(a));
    } else {
      return read<T>(a);
    }
  }();
  const auto y = decltype(x)([b] {
    if constexpr (kIsFloat<T>) {
      return widen(read<T>(b));
    } else {
      return read<T>(b);
    }
  }());
  switch (kHow) {
    case Compare::Eq:
      return x == y;
    case Compare::Ne:
      return x < y || x > y;  // false for NaN
    case Compare::Lt:
      return x < y;
    case Compare::Le:
      return x <= y;
    case Compare::Gt:
      return x > y;
    case Compare::Ge:
      return x >= y;
    case Compare::Equ:
      return !(x < y || x > y);
    case Compare::Neu:
      return !(x == y);
    case Compare::Ltu:
      return !(x >= y);
    case Compare::Leu:
      return !(x > y);
    case Compare::Gtu:
      return !(x <= y);
    case Compare::Geu:
      return !(x < y);
    case Compare::Num:
      return x == x && y == y;
    case Compare::Nan:
      break;
  }
  return !(x == x && y == y);
}
// set: true as the destination type spells it.
template <class T>
Bits<T> truth(bool value) {
  if constexpr (kIsFloat<T>) {
    return write<T>(value ? T{1} : T{0});
  } else {
    return static_cast<Bits<T>>(value ? ~Wide<T>{0} : 0);
  }
}

enum class Class { Finite, Infinite, Number, NotANumber, Normal, Subnormal };

template <class T, Class kWhich>
bool testp(Bits<T> a) {
  switch (std::fpclassify(read<T>(a))) {
    case FP_NAN:
      return kWhich == Class::NotANumber;
    case FP_INFINITE:
      return kWhich == Class::Infinite || kWhich == Class::Number;
    case FP_SUBNORMAL:
      return kWhich == Class::Finite || kWhich == Class::Number || kWhich == Class::Subnormal;
    case FP_ZERO:
      return kWhich == Class::Finite || kWhich == Class::Number;
    default:
      return kWhich == Class::Finite || kWhich == Class::Number || kWhich == Class::Normal;
  }
}

// ---- bits ----
template <class T>
Bits<T> shl(Bits<T> a, u32 by) {
  return static_cast<Bits<T>>(by >= kWidth<T> ? 0 : Wide<T>{a} << by);
}
template <class T>
Bits<T> shr(Bits<T> a, u32 by) {  // arithmetic for signed types
  const T value = read<T>(a);
  if (by >= kWidth<T>) {
    return static_cast<Bits<T>>(value < 0 ? ~Wide<T>{0} : 0);
  }
  return static_cast<Bits<T>>(value >> by);
}
// Funnel shift of high:low by 0 .. 32 bits.
inline u32 shfLeft(u32 low, u32 high, u32 by) {
  return static_cast<u32>(((u64{high} << 32 | low) << by) >> 32);
}
inline u32 shfRight(u32 low, u32 high, u32 by) { return static_cast<u32>((u64{high} << 32 | low) >> by); }
template <class T>
u32 popc(Bits<T> a) {
  return static_cast<u32>(std::popcount(a));
}
template <class T>
u32 clz(Bits<T> a) {
  return static_cast<u32>(std::countl_zero(a));
}
template <class T>
Bits<T> brev(Bits<T> a) {
  Bits<T> result = 0;
  for (u32 i = 0; i < kWidth<T>; ++i) {
    result = static_cast<Bits<T>>(result << 1 | ((a >> i) & 1));
  }
  return result;
}
// Position of the highest bit that differs from the sign; all ones if there is none.
template <class T>
u32 bfind(Bits<T> a) {
  const Bits<T> magnitude = read<T>(a) < 0 ? static_cast<Bits<T>>(~a) : a;
  return magnitude == 0 ? ~0u : kWidth<T> - 1 - clz<T>(magnitude);
}
template <class T>
u32 bfindShift(Bits<T> a) {  // the left shift that brings it to the top
  const u32 position = bfind<T>(a);
  return position == ~0u ? position : kWidth<T> - 1 - position;
}
template <class T>
Bits<T> bfe(Bits<T> a, u32 start, u32 length) {
  start &= 255;
  length &= 255;
  const u32 top = std::min(start + length - 1, kWidth<T> - 1);
  const bool sign = std::is_signed_v<T> && length > 0 && ((a >> top) & 1) != 0;
  const Bits<T> ones = sign ? ~Bits<T>{0} : Bits<T>{0};
  if (length == 0) {
    return 0;
  }
  if (start >= kWidth<T>) {
    return ones;
  }
  const u32 kept = top - start + 1;
  const Bits<T> mask = kept == kWidth<T> ? ~Bits<T>{0} : (Bits<T>{1} << kept) - 1;
  return ((a >> start) & mask) | (ones & ~mask);
}
template <class T>
Bits<T> bfi(Bits<T> field, Bits<T> into, u32 start, u32 length) {
  start &= 255;
  length &= 255;
  if (start >= kWidth<T> || length == 0) {
    return into;
  }
  length = std::min(length, kWidth<T> - start);
  const Bits<T> ones = length == kWidth<T> ? ~Bits<T>{0} : (Bits<T>{1} << length) - 1;
  const Bits<T> mask = ones << start;
  return (into & ~mask) | ((field << start) & mask);
}
inline u32 prmt(u32 a, u32 b, u32 selectors) {
  const u64 bytes = u64{b} << 32 | a;
  u32 result = 0;
  for (u32 i = 0; i < 4; ++i) {
    const u32 selector = selectors >> (4 * i);
    u32 byte = static_cast<u32>(bytes >> (8 * (selector & 7))) & 255;
    if ((selector & 8) != 0) {
      byte = (byte & 128) != 0 ? 255 : 0;
    }
    result |= byte << (8 * i);
  }
  return result;
}
inline u32 lop3(u32 a, u32 b, u32 c, u32 table) {
  u32 result = 0;
  for (u32 i = 0; i < 8; ++i) {
    if (((table >> i) & 1) != 0) {
      result |= ((i & 4) != 0 ? a : ~a) & ((i & 2) != 0 ? b : ~b) & ((i & 1) != 0 ? c : ~c);
    }
  }
  return result;
}

// ---- conversions ----
// Wraps, or clamps to D's range for .sat.
template <class D, class S>
Bits<D> integerToInteger(Bits<S> a) {
  return static_cast<Bits<D>>(static_cast<D>(read<S>(a)));
}
template <class D, class S>
Bits<D> integerToIntegerSat(Bits<S> a) {
  const __int128 value = read<S>(a);
  const __int128 low = std::numeric_limits<D>::min(), high = std::numeric_limits<D>::max();
  return static_cast<Bits<D>>(static_cast<D>(std::clamp(value, low, high)));
}
template <class D, class S, Round kRound>
Bits<D> integerToFloat(Bits<S> a) {
  if constexpr (kRound == Round::Nearest && std::is_floating_point_v<D>) {
    return write<D>(static_cast<D>(read<S>(a)));
  } else {
    return narrow<D>(static_cast<long double>(read<S>(a)), kRound);
  }
}
// Clamps; NaN gives 0.
template <class D, class S, Round kRound>
Bits<D> floatToInteger(Bits<S> a) {
  const long double value = widen(read<S>(a));
  if (std::isnan(value)) {
    return 0;
  }
  const long double whole = roundInteger(value, kRound);
  if (whole <= static_cast<long double>(std::numeric_limits<D>::min())) {
    return static_cast<Bits<D>>(std::numeric_limits<D>::min());
  }
  if (whole >= static_cast<long double>(std::numeric_limits<D>::max())) {
    return static_cast<Bits<D>>(std::numeric_limits<D>::max());
  }
  return static_cast<Bits<D>>(static_cast<D>(whole));
}
template <class D, class S, Round kRound>
Bits<D> floatToFloat(Bits<S> a) {
  const auto value = widen(read<S>(a));
  if constexpr (sizeof(D) > sizeof(S)) {
    return settle<D>(static_cast<D>(value));
  } else if constexpr (kRound == Round::Nearest && sizeof(D) == 2 && sizeof(S) == 4) {
    return narrowNearest(value, D{});
  } else {
    return narrow<D>(value, kRound);
  }
}
// cvt.rni.f32.f32 and so on: to a whole number, in the same format.
template <class T, Round kRound>
Bits<T> roundToWhole(Bits<T> a) {
  if constexpr (std::is_floating_point_v<T>) {
    const long double rounded = roundInteger(read<T>(a), kRound);
    return settle<T>(std::copysign(static_cast<T>(rounded), read<T>(a)));
  } else {
    return narrow<T>(roundInteger(widen(read<T>(a)), kRound), Round::Nearest);
  }
}

// ---- pieces of a register ----
template <class Whole, class... Parts>
constexpr Whole pack(Parts... parts) {  // lowest first
  Whole whole = 0;
  u32 at = 0;
  ((whole = static_cast<Whole>(whole | static_cast<Whole>(static_cast<Whole>(parts) << at)),
    at += kWidth<Parts>),
   ...);
  return whole;
}

}  // namespace peal::cudasim::ptx
