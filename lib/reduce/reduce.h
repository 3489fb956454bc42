// Reduction loops on host memory: one pass over several sources, for every data type and operation, with
// the instruction set chosen at run time.
//
// Low precision (bf16, fp16, fp8) is widened to fp32, reduced there and rounded once, to nearest even.
// The order is the order of `sources`: ((s0 op s1) op s2) ... whatever the instruction set, so results are
// the same bits on every machine. Knows nothing of ranks, links or threads.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "peal/peal.h"

namespace peal {

// An operation as the loops see it. `scalar` is used with preMultiply.
struct ReduceOp {
  pealRedOp_t kind = pealSum;  // pealSum .. pealAvg; a pre-multiplied sum is pealSum with preMultiply
  bool preMultiply = false;
  std::array<std::byte, 8> scalar{};  // one element of the data type
  int ranks = 1;                      // what pealAvg divides by, in finish
};

size_t elementBytes(pealDataType_t type);
const char* typeName(pealDataType_t type);  // nccl-tests' names: "float", "bfloat16", "f8e4m3", ...
const char* opName(pealRedOp_t kind);       // "sum", "prod", "max", "min", "avg"

enum class Finish { No, Yes };           // Yes: divide by op.ranks if the operation is pealAvg
enum class Store { Cached, Streaming };  // Streaming: non-temporal stores, for results that leave the cache

struct ReduceArgs {
  std::span<const void* const> sources;  // at least 1; count elements each
  // Index of the source that is this rank's raw input: multiplied by op.scalar and rounded to the type
  // before it is reduced (only if op.preMultiply). -1: none.
  int rawSource = -1;
  // 1 or 2 results, both written in the one pass. A destination may equal a source exactly, nothing else
  // may overlap.
  std::array<void*, 2> destinations{nullptr, nullptr};
  size_t count = 0;
  Finish finish = Finish::No;
  Store store = Store::Cached;
};

// destinations[k][i] = finish(sources[0][i] op sources[1][i] op ...). With one source it copies (after
// the pre-multiplication, if any).
void reduce(pealDataType_t type, const ReduceOp& op, const ReduceArgs& args);

// Copies bytes; Streaming uses non-temporal stores where the instruction set has them.
void copyBytes(void* to, const void* from, size_t bytes, Store store);

// Conversions, exact to the formats' definitions (round to nearest even; NaN stays NaN; fp8e4m3 saturates
// as OCP E4M3: no infinity). Used by tests, bench and zero.
float toFloat(pealDataType_t type, const void* element);  // low-precision and fp32 types
void fromFloat(pealDataType_t type, float value, void* element);

}  // namespace peal
