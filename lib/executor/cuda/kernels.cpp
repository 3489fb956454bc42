#include "lib/executor/cuda/kernels.h"

namespace peal::cuda {

// Kernels as host code sees them: functions of the same names and types, which nvcc (or the simulator)
// defines in the .cu files. They are declared here only, because there nvcc would take them for host
// functions.
#define PEAL_DECLARE(name)           \
  void name##Simple(CollectiveArgs); \
  void name##LL(CollectiveArgs);     \
  void name##LL128(CollectiveArgs);
#define PEAL_ENTRY(name) {name##Simple, name##LL, name##LL128},
// In the order of pealDataType_t.
#define PEAL_FOR_ALL_TYPES(X) \
  X(reduceInt8)               \
  X(reduceUint8)              \
  X(reduceInt32)              \
  X(reduceUint32)             \
  X(reduceInt64)              \
  X(reduceUint64)             \
  X(reduceFloat16)            \
  X(reduceFloat32)            \
  X(reduceFloat64)            \
  X(reduceBfloat16)           \
  X(reduceFloat8e4m3)         \
  X(reduceFloat8e5m2)

PEAL_FOR_ALL_TYPES(PEAL_DECLARE)
PEAL_DECLARE(copy)
void pointToPoint(PointToPointArgs);
void adamwStep(AdamwStepArgs);
void reduceAdamwGather(ReduceAdamwGatherArgs);

namespace {

// In the order of Protocol.
constexpr CollectiveKernel kReduce[pealNumTypes][kProtocols] = {PEAL_FOR_ALL_TYPES(PEAL_ENTRY)};
constexpr CollectiveKernel kCopy[][kProtocols] = {PEAL_ENTRY(copy)};

}  // namespace

CollectiveKernel collectiveKernelFor(pealDataType_t type, int kind, Protocol protocol) {
  const bool reduces = kind == pealStatAllReduce || kind == pealStatReduceScatter || kind == pealStatReduce;
  return (reduces ? kReduce[type] : kCopy[0])[static_cast<int>(protocol)];
}

PointToPointKernel pointToPointKernel() { return pointToPoint; }
AdamwKernel adamwKernel() { return adamwStep; }
ReduceAdamwGatherKernel reduceAdamwGatherKernel() { return reduceAdamwGather; }

}  // namespace peal::cuda
