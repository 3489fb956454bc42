#include "lib/zero/loops.h"

#include "lib/zero/loops_variants.h"

namespace peal::zero {

const Loops& loops(Isa isa) {
#if defined(__x86_64__)
  if (isa == Isa::Avx512) {
    return loopsAvx512();
  }
  if (isa == Isa::Avx2) {
    return loopsAvx2();
  }
#endif
  return isa == Isa::Baseline ? loopsBaseline() : loops(Isa::Baseline);
}

const Loops& loops() {
  static const Loops& best = loops(bestIsa());
  return best;
}

}  // namespace peal::zero
