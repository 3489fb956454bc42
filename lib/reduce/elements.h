// How a block of each data type is loaded into accumulators and packed again. Only for kernels_*.cpp, after
// vectors.h, anyNan and HalfConversion: everything has internal linkage.
//
// Every type has Lane (what it is reduced in), kElementBytes, kBlockBytes (memory behind the four
// accumulators), load and pack. pack is the one place where a result is rounded. Narrow types put
// neighbouring elements into different accumulators: all work is elementwise, so no lane crosses a vector.
#pragma once

namespace peal {
namespace {

// The NaN of every result, 0x7fc00000 or its like. Which operand's NaN survives an addition is the compiler's
// choice, so results keep none of them. NaN is rare enough for a branch per block.
inline Floats oneNan(Floats x) { return x == x ? x : asFloats(Words{} + 0x7fc00000u); }
inline Vector<double> oneNan(Vector<double> x) {
  return x == x ? x : reinterpret_cast<Vector<double>>(Vector<uint64_t>{} + 0x7ff8000000000000u);
}
template <class Lane>
inline Block<Lane> oneNan(const Block<Lane>& x) {
  if (anyNan(x)) [[unlikely]] {
    return {oneNan(x.a), oneNan(x.b), oneNan(x.c), oneNan(x.d)};
  }
  return x;
}

template <class T>
struct Native {
  using Lane = T;
  static constexpr size_t kElementBytes = sizeof(T);
  static constexpr size_t kBlockBytes = 4 * kVectorBytes;

  static Block<T> load(const char* from) {
    return {loadVector<T>(from), loadVector<T>(from + kVectorBytes), loadVector<T>(from + 2 * kVectorBytes),
            loadVector<T>(from + 3 * kVectorBytes)};
  }
  static Packed pack(const Block<T>& x) { return {word(x.a), word(x.b), word(x.c), word(x.d)}; }

 protected:
  static Words word(Vector<T> vector) { return reinterpret_cast<Words>(vector); }
};

// fp32 and fp64.
template <class T>
struct NativeFloat : Native<T> {
  static Packed pack(const Block<T>& x) { return Native<T>::pack(oneNan(x)); }
};

struct Bfloat16 {
  using Lane = float;
  static constexpr size_t kElementBytes = 2;
  static constexpr size_t kBlockBytes = 2 * kVectorBytes;

  static Block<float> load(const char* from) {
    const Words low = loadVector<uint32_t>(from);
    const Words high = loadVector<uint32_t>(from + kVectorBytes);
    return {asFloats(low << 16), asFloats(low & kOdd), asFloats(high << 16), asFloats(high & kOdd)};
  }
  static Packed pack(const Block<float>& values) {
    const Block<float> x = oneNan(values);
    return {(nearest(x.a) >> 16) | (nearest(x.b) & kOdd), (nearest(x.c) >> 16) | (nearest(x.d) & kOdd)};
  }

 private:
  static constexpr uint32_t kOdd = 0xffff0000u;

  // The result's upper half is x rounded to nearest even; the lower half is left over. x is no NaN but
  // oneNan.
  static Words nearest(Floats x) {
    const Words bits = asWords(x);
    return bits + 0x7fffu + ((bits >> 16) & 1u);
  }
};

struct Float16 {
  using Lane = float;
  static constexpr size_t kElementBytes = 2;
  static constexpr size_t kBlockBytes = 2 * kVectorBytes;

  static Block<float> load(const char* from) {
    const Pair low = HalfConversion::widen(loadVector<uint32_t>(from));
    const Pair high = HalfConversion::widen(loadVector<uint32_t>(from + kVectorBytes));
    return {low.first, low.second, high.first, high.second};
  }
  static Packed pack(const Block<float>& values) {
    const Block<float> x = oneNan(values);
    return {HalfConversion::narrow({x.a, x.b}), HalfConversion::narrow({x.c, x.d})};
  }
};

template <class Format>
struct Float8 {
  using Lane = float;
  static constexpr size_t kElementBytes = 1;
  static constexpr size_t kBlockBytes = kVectorBytes;

  static Block<float> load(const char* from) {
    const Words codes = loadVector<uint32_t>(from);
    return {Format::widen(codes & 0xffu), Format::widen((codes >> 8) & 0xffu),
            Format::widen((codes >> 16) & 0xffu), Format::widen(codes >> 24)};
  }
  static Packed pack(const Block<float>& x) {
    return {Format::narrow(x.a) | Format::narrow(x.b) << 8 | Format::narrow(x.c) << 16 |
            Format::narrow(x.d) << 24};
  }
};

// Both saturate at their largest finite value, 448 and 57344.
using Float8e4m3 = Float8<SmallFloat<4, 3, 0x43e00000u, 0x7fu, false>>;
using Float8e5m2 = Float8<SmallFloat<5, 2, 0x47600000u, 0x7fu, true>>;
// For max and min, which round nothing: infinity stays. (61440 is halfway to the power of two above 57344.)
using Float8e5m2Exact = Float8<SmallFloat<5, 2, 0x47700000u, 0x7fu, true>>;

}  // namespace
}  // namespace peal
