// Which loops run. reduce.h chooses the processor's best; tests and benches choose through here.
#pragma once
#include "lib/base/cpu.h"
#include "lib/reduce/reduce.h"

namespace peal {

struct Kernels;

// The loops for an instruction set. On a processor without it they end in an illegal instruction: ask only
// for sets up to bestIsa(). Where this build has no such loops (not x86-64): the baseline.
const Kernels& kernelsFor(Isa isa);

// reduce.h's functions with the instruction set given.
void reduceWith(Isa isa, pealDataType_t type, const ReduceOp& op, const ReduceArgs& args);
void copyBytesWith(Isa isa, void* to, const void* from, size_t bytes, Store store);

}  // namespace peal
