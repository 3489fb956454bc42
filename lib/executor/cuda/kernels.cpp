#include "lib/executor/cuda/kernels.h"

namespace peal::cuda {

// Kernels as host code sees them: functions of the same names and types, which nvcc (or the simulator)
// defines in the .cu files. They are declared here only, because there nvcc would take them for host
// functions.
void reduceSimple(CollectiveArgs);
void reduceLL(CollectiveArgs);
void reduceLL128(CollectiveArgs);
void copySimple(CollectiveArgs);
void copyLL(CollectiveArgs);
void copyLL128(CollectiveArgs);
void levels(CollectiveArgs);
void pointToPoint(PointToPointArgs);
void adamwStep(AdamwStepArgs);
void reduceAdamwGather(ReduceAdamwGatherArgs);

namespace {

// In the order of Protocol.
constexpr CollectiveKernel kReduce[kProtocols] = {reduceSimple, reduceLL, reduceLL128};
constexpr CollectiveKernel kCopy[kProtocols] = {copySimple, copyLL, copyLL128};

}  // namespace

CollectiveKernel collectiveKernelFor(int kind, Protocol protocol) {
  const bool reduces = kind == pealStatAllReduce || kind == pealStatReduceScatter || kind == pealStatReduce;
  return (reduces ? kReduce : kCopy)[static_cast<int>(protocol)];
}

CollectiveKernel levelsKernel() { return levels; }
PointToPointKernel pointToPointKernel() { return pointToPoint; }
AdamwKernel adamwKernel() { return adamwStep; }
ReduceAdamwGatherKernel reduceAdamwGatherKernel() { return reduceAdamwGather; }

}  // namespace peal::cuda
