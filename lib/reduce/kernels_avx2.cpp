// The loops for AVX2 + FMA + F16C.
#include "lib/reduce/isa_x86.h"

namespace peal {
namespace {
constexpr unsigned kVectorBytes = 32;

inline void streamVector(void* to, const void* vector) {
  _mm256_stream_si256(static_cast<__m256i*>(to), _mm256_loadu_si256(static_cast<const __m256i*>(vector)));
}
}  // namespace
}  // namespace peal

#include "lib/reduce/vectors.inc"

namespace peal {
namespace {

inline bool anyNan(const Block<float>& x) {
  return _mm256_movemask_ps(
             _mm256_or_ps(_mm256_cmp_ps(x.a, x.b, _CMP_UNORD_Q), _mm256_cmp_ps(x.c, x.d, _CMP_UNORD_Q))) != 0;
}
inline bool anyNan(const Block<double>& x) {
  return _mm256_movemask_pd(
             _mm256_or_pd(_mm256_cmp_pd(x.a, x.b, _CMP_UNORD_Q), _mm256_cmp_pd(x.c, x.d, _CMP_UNORD_Q))) != 0;
}

struct HalfConversion {
  static constexpr bool kIsQuick = true;
  static Pair widen(Words halves) {
    const __m256i all = reinterpret_cast<__m256i>(halves);
    return {_mm256_cvtph_ps(_mm256_castsi256_si128(all)), _mm256_cvtph_ps(_mm256_extracti128_si256(all, 1))};
  }
  static Words narrow(Pair values) {
    const __m128i low = _mm256_cvtps_ph(values.first, _MM_FROUND_TO_NEAREST_INT);
    const __m128i high = _mm256_cvtps_ph(values.second, _MM_FROUND_TO_NEAREST_INT);
    return reinterpret_cast<Words>(_mm256_set_m128i(high, low));
  }
  // Cut, with an odd last place where anything was cut off.
  static Words narrowToOdd(Pair values) {
    return reinterpret_cast<Words>(_mm256_set_m128i(cut(values.second), cut(values.first)));
  }

 private:
  static __m128i cut(Floats values) {
    const __m128i halves = _mm256_cvtps_ph(values, _MM_FROUND_TO_ZERO | _MM_FROUND_NO_EXC);
    const __m256i isCut = _mm256_castps_si256(_mm256_cmp_ps(_mm256_cvtph_ps(halves), values, _CMP_NEQ_UQ));
    const __m128i odd = _mm_packs_epi32(_mm256_castsi256_si128(isCut), _mm256_extracti128_si256(isCut, 1));
    return _mm_or_si128(halves, _mm_and_si128(odd, _mm_set1_epi16(1)));
  }
};

}  // namespace
}  // namespace peal

#include "lib/reduce/loops.inc"

namespace peal {
const Kernels kAvx2Kernels{reduceElements, copyElements};
}  // namespace peal
