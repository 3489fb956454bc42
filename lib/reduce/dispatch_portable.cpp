// A build for another processor has the baseline only.
#include "lib/reduce/dispatch.h"
#include "lib/reduce/kernels.h"

namespace peal {

const Kernels& kernelsFor(Isa) { return kBaselineKernels; }

}  // namespace peal
