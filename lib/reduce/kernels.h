// What one instruction set offers: the reduction and copy loops, compiled from the one text loops.inc.
//
// Every translation unit kernels_*.cpp defines one Kernels. Those units are built with wider instructions
// than the processor may have, so this header and all that they include must hold plain types only: an
// inline function or a template of external linkage could be emitted there and then be used everywhere.
#pragma once
#include <cstddef>

namespace peal {

// reduce.h's ReduceOp and ReduceArgs without library types.
struct KernelArgs {
  const void* const* sources;
  size_t sourceCount;
  size_t rawSource;       // sourceCount: none
  const void* scalar;     // one element; read only if rawSource < sourceCount
  void* destinations[2];  // the second may be null
  size_t count;
  int divideBy;  // 0: no division
  bool streaming;
  bool secondCached;  // though the first is streamed
};

struct Kernels {
  // type and kind are pealDataType_t and pealRedOp_t, checked; kind is pealSum, pealProd, pealMax or pealMin.
  void (*reduce)(int type, int kind, const KernelArgs& args);
  // The one source's bytes as they are; count is in bytes.
  void (*copy)(const KernelArgs& args);
};

extern const Kernels kBaselineKernels;
extern const Kernels kAvx2Kernels;    // x86-64 only
extern const Kernels kAvx512Kernels;  // x86-64 only

}  // namespace peal
