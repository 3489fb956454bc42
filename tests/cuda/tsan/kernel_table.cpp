// The optimizer's kernels of lib/executor/cuda/kernels.cpp, and the plain loops that they are compared with:
// so the thread sanitizer's program compiles no more of the library.
#include "lib/base/cpu.h"
#include "lib/executor/cuda/kernels.h"
#include "lib/zero/loops_variants.h"

namespace peal {

Isa bestIsa() { return Isa::Baseline; }

namespace zero {

const Loops& loops() { return loopsBaseline(); }

}  // namespace zero

namespace cuda {

void adamwStep(AdamwStepArgs);
void reduceAdamwGather(ReduceAdamwGatherArgs);

AdamwKernel adamwKernel() { return adamwStep; }
ReduceAdamwGatherKernel reduceAdamwGatherKernel() { return reduceAdamwGather; }

}  // namespace cuda
}  // namespace peal
