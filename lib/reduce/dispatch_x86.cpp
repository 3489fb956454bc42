// The instruction sets of an x86-64 build.
#include "lib/reduce/dispatch.h"
#include "lib/reduce/kernels.h"

namespace peal {

const Kernels& kernelsFor(Isa isa) {
  switch (isa) {
    case Isa::Avx2:
      return kAvx2Kernels;
    case Isa::Avx512:
      return kAvx512Kernels;
    case Isa::Baseline:
      break;
  }
  return kBaselineKernels;
}

}  // namespace peal
