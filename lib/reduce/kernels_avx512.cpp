// The loops for AVX-512 F + BW + DQ + VL.
#include "lib/reduce/isa_x86.h"

namespace peal {
namespace {
constexpr unsigned kVectorBytes = 64;

inline void streamVector(void* to, const void* vector) {
  _mm512_stream_si512(static_cast<__m512i*>(to), _mm512_loadu_si512(vector));
}
}  // namespace
}  // namespace peal

#include "lib/reduce/vectors.inc"

namespace peal {
namespace {

inline bool anyNan(const Block<float>& x) {
  return (_mm512_cmp_ps_mask(x.a, x.b, _CMP_UNORD_Q) | _mm512_cmp_ps_mask(x.c, x.d, _CMP_UNORD_Q)) != 0;
}
inline bool anyNan(const Block<double>& x) {
  return (_mm512_cmp_pd_mask(x.a, x.b, _CMP_UNORD_Q) | _mm512_cmp_pd_mask(x.c, x.d, _CMP_UNORD_Q)) != 0;
}

struct HalfConversion {
  static constexpr bool kIsQuick = true;
  static Pair widen(Words halves) {
    const __m512i all = reinterpret_cast<__m512i>(halves);
    return {_mm512_cvtph_ps(_mm512_castsi512_si256(all)), _mm512_cvtph_ps(_mm512_extracti64x4_epi64(all, 1))};
  }
  static Words narrow(Pair values) {
    const __m256i low = _mm512_cvtps_ph(values.first, _MM_FROUND_TO_NEAREST_INT);
    const __m256i high = _mm512_cvtps_ph(values.second, _MM_FROUND_TO_NEAREST_INT);
    return reinterpret_cast<Words>(_mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1));
  }
  // Cut, with an odd last place where anything was cut off.
  static Words narrowToOdd(Pair values) {
    const __m256i low = _mm512_cvtps_ph(values.first, _MM_FROUND_TO_ZERO | _MM_FROUND_NO_EXC);
    const __m256i high = _mm512_cvtps_ph(values.second, _MM_FROUND_TO_ZERO | _MM_FROUND_NO_EXC);
    const __mmask16 isLowCut = _mm512_cmp_ps_mask(_mm512_cvtph_ps(low), values.first, _CMP_NEQ_UQ);
    const __mmask16 isHighCut = _mm512_cmp_ps_mask(_mm512_cvtph_ps(high), values.second, _CMP_NEQ_UQ);
    const __m512i halves = _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1);
    const __mmask32 isCut = _mm512_kunpackw(isHighCut, isLowCut);
    return reinterpret_cast<Words>(_mm512_or_si512(halves, _mm512_maskz_set1_epi16(isCut, 1)));
  }
};

}  // namespace
}  // namespace peal

#include "lib/reduce/loops.inc"

namespace peal {
const Kernels kAvx512Kernels{reduceElements, copyElements};
}  // namespace peal
