// Finds the kernels of loops_kernels.cu. The host sees a kernel as a function of its name.
#include "lib/executor/cuda/loops_kernels.h"

namespace peal::cuda {

void reduceInt8(LoopArgs);
void reduceUint8(LoopArgs);
void reduceInt32(LoopArgs);
void reduceUint32(LoopArgs);
void reduceInt64(LoopArgs);
void reduceUint64(LoopArgs);
void reduceFloat16(LoopArgs);
void reduceFloat32(LoopArgs);
void reduceFloat64(LoopArgs);
void reduceBfloat16(LoopArgs);
void reduceFloat8e4m3(LoopArgs);
void reduceFloat8e5m2(LoopArgs);
void copyBytes(LoopArgs);

LoopKernel reduceKernelFor(int type) {
  // In the order of pealDataType_t.
  constexpr LoopKernel kKernels[pealNumTypes] = {
      reduceInt8,    reduceUint8,   reduceInt32,   reduceUint32,   reduceInt64,      reduceUint64,
      reduceFloat16, reduceFloat32, reduceFloat64, reduceBfloat16, reduceFloat8e4m3, reduceFloat8e5m2};
  return type >= 0 && type < pealNumTypes ? kKernels[type] : nullptr;
}

LoopKernel copyKernel() { return copyBytes; }

}  // namespace peal::cuda
