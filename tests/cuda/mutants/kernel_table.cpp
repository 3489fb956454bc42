// lib/executor/cuda/kernels.cpp without the optimizer's kernels, and what lib/reduce/ asks about the
// processor: so the mutants' program links no more of the library.
#include "lib/base/cpu.h"
#include "lib/executor/cuda/kernels.h"

namespace peal {

Isa bestIsa() { return Isa::Baseline; }

namespace cuda {

void reduceSimple(CollectiveArgs);
void reduceLL(CollectiveArgs);
void reduceLL128(CollectiveArgs);
void copySimple(CollectiveArgs);
void copyLL(CollectiveArgs);
void copyLL128(CollectiveArgs);
void levels(CollectiveArgs);
void pointToPoint(PointToPointArgs);

CollectiveKernel collectiveKernelFor(int kind, Protocol protocol) {
  static constexpr CollectiveKernel kReduce[] = {reduceSimple, reduceLL, reduceLL128};
  static constexpr CollectiveKernel kCopy[] = {copySimple, copyLL, copyLL128};
  const bool reduces = kind == pealStatAllReduce || kind == pealStatReduceScatter || kind == pealStatReduce;
  return (reduces ? kReduce : kCopy)[static_cast<int>(protocol)];
}

CollectiveKernel levelsKernel() { return levels; }
PointToPointKernel pointToPointKernel() { return pointToPoint; }

}  // namespace cuda
}  // namespace peal
