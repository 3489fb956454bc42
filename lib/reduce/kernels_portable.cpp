// The loops for processors other than x86-64, in vectors of 16 bytes that the compiler maps to what there
// is. Streaming stores are plain ones.
#include <fenv.h>

namespace peal {
namespace {
constexpr unsigned kVectorBytes = 16;

inline void streamVector(void* to, const void* vector) { __builtin_memcpy(to, vector, kVectorBytes); }
inline void fenceStreams() {}

// As in isa_x86.h.
class DefaultFloatState {
 public:
  DefaultFloatState() {
    fegetenv(&saved_);
    fesetenv(FE_DFL_ENV);
  }
  ~DefaultFloatState() { fesetenv(&saved_); }
  DefaultFloatState(const DefaultFloatState&) = delete;
  DefaultFloatState& operator=(const DefaultFloatState&) = delete;

 private:
  fenv_t saved_;
};

}  // namespace
}  // namespace peal

#include "lib/reduce/vectors.inc"

namespace peal {
namespace {

template <class Lane>
inline bool anyNan(const Block<Lane>& x) {
  const auto lanes = (x.a != x.a) | (x.b != x.b) | (x.c != x.c) | (x.d != x.d);
  const auto halves = reinterpret_cast<Vector<uint64_t>>(lanes);
  return (halves[0] | halves[1]) != 0;
}

}  // namespace
}  // namespace peal

#include "lib/reduce/half_by_bits.inc"
//
#include "lib/reduce/loops.inc"

namespace peal {
const Kernels kBaselineKernels{reduceElements, copyElements};
}  // namespace peal
