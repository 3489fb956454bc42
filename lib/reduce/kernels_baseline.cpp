// The loops for any x86-64 processor: SSE2.
#include "lib/reduce/isa_x86.h"

namespace peal {
namespace {
constexpr unsigned kVectorBytes = 16;

inline void streamVector(void* to, const void* vector) {
  _mm_stream_si128(static_cast<__m128i*>(to), _mm_loadu_si128(static_cast<const __m128i*>(vector)));
}
}  // namespace
}  // namespace peal

#include "lib/reduce/vectors.inc"

namespace peal {
namespace {

inline bool anyNan(const Block<float>& x) {
  return _mm_movemask_ps(_mm_or_ps(_mm_cmpunord_ps(x.a, x.b), _mm_cmpunord_ps(x.c, x.d))) != 0;
}
inline bool anyNan(const Block<double>& x) {
  return _mm_movemask_pd(_mm_or_pd(_mm_cmpunord_pd(x.a, x.b), _mm_cmpunord_pd(x.c, x.d))) != 0;
}

}  // namespace
}  // namespace peal

#include "lib/reduce/half_by_bits.inc"
//
#include "lib/reduce/loops.inc"

namespace peal {
const Kernels kBaselineKernels{reduceElements, copyElements};
}  // namespace peal
