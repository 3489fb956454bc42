// Chooses among the three builds of the loops, once.
#include "tools/train/kernels.h"

namespace peal::train {

bool processorRuns(const Kernels& set) {
  if (&set == &kAvx512Kernels) {
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  }
  if (&set == &kAvx2Kernels)
    return __builtin_cpu_supports("avx2");
  return true;
}

const Kernels& kernels() {
  static const Kernels& best = processorRuns(kAvx512Kernels) ? kAvx512Kernels
                               : processorRuns(kAvx2Kernels) ? kAvx2Kernels
                                                             : kBaselineKernels;
  return best;
}

}  // namespace peal::train
