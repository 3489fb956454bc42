// Reduction loops on host memory: one pass over several sources, for every data type and operation, with
// the instruction set chosen at run time.
//
// The order is the order of `sources`: ((s0 op s1) op s2) ... Results are the same bits on every instruction
// set and at every alignment, for any rounding mode or flushing of subnormals of the calling thread:
//  - bf16, fp16 and fp8 are widened to fp32, reduced there and rounded once, to nearest even. bf16 and fp16
//    overflow to infinity, fp8 saturates (infinity too) as NVIDIA's conversions do by default: 448 in E4M3,
//    57344 in E5M2.
//  - integers wrap; their average truncates toward zero.
//  - max and min: NaN if any source is NaN, and -0 is below +0. So they are the same in any order. They keep
//    E5M2's infinity.
//  - a NaN result is the type's one NaN, whatever NaNs the sources had: 0x7ff8000000000000, 0x7fc00000,
//    0x7e00 (fp16), 0x7fc0 (bf16), 0x7f (fp8).
// Knows nothing of ranks, links or threads.
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

// By the values of pealDataType_t. Here, because every call asks several times.
inline constexpr std::array<uint8_t, pealNumTypes> kElementBytes{1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};
inline size_t elementBytes(pealDataType_t type) { return kElementBytes[type]; }
const char* typeName(pealDataType_t type);  // nccl-tests' names: "float", "bfloat16", "f8e4m3", ...
const char* opName(pealRedOp_t kind);       // "sum", "prod", "max", "min", "avg"

enum class Finish { No, Yes };  // Yes: divide by op.ranks if the operation is pealAvg
// Streaming: non-temporal stores, for results that are not read again soon. They are visible to other
// processors before whatever the calling thread stores after the call.
enum class Store { Cached, Streaming };

struct ReduceArgs {
  std::span<const void* const> sources;  // at least 1; count elements each, at any address
  // Index of the source that is this rank's raw input: multiplied by op.scalar and rounded to the type
  // before it is reduced (only if op.preMultiply). -1: none.
  int rawSource = -1;
  // 1 or 2 results, both written in the one pass, at any address; a second that is null is none. With
  // Streaming the first decides where blocks begin: the second is streamed only if it is aligned as the
  // first is (modulo 64 bytes). A destination may equal a source exactly, nothing else may overlap.
  std::array<void*, 2> destinations{nullptr, nullptr};
  size_t count = 0;
  Finish finish = Finish::No;
  Store store = Store::Cached;
  bool secondCached = false;  // with Streaming: the second result is read again soon
};

// destinations[k][i] = finish(sources[0][i] op sources[1][i] op ...). With one source that is neither
// multiplied nor divided it copies the bytes. The average divides in the type it sums in (fp32, fp64 or the
// integer), before the rounding.
void reduce(pealDataType_t type, const ReduceOp& op, const ReduceArgs& args);

// Copies bytes; Streaming uses non-temporal stores where the instruction set has them. Below
// kStringMoveLeastBytes memcpy does a cached copy as well as it can be done, whatever the addresses.
inline constexpr size_t kStringMoveLeastBytes = 2049;
void copyBytes(void* to, const void* from, size_t bytes, Store store);

// One element, converted as the loops do it: to nearest even, overflow and NaN as above. Used by tests and
// by the bench of these loops.
float toFloat(pealDataType_t type, const void* element);  // low-precision and fp32 types
void fromFloat(pealDataType_t type, float value, void* element);

}  // namespace peal
