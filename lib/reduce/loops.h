// The reduction and copy loops. Only for kernels_*.cpp, after vectors.h and HalfConversion: everything has
// internal linkage.
//
// A step takes one block of every source, in order, into four accumulators in registers and writes it to
// every destination. The ends of an array that are no whole block go through the same step by way of a
// buffer on the stack, so an element's result does not depend on where it lies.
#pragma once
#include "lib/reduce/elements.h"
#include "lib/reduce/kernels.h"
#include "lib/reduce/operations.h"
#include "peal/peal.h"

namespace peal {
namespace {

// Where a step reads source s: in place, or from a buffer with room for a block.
struct InPlace {
  const KernelArgs& args;
  size_t at;  // in bytes

  const char* source(size_t s) const { return static_cast<const char*>(args.sources[s]) + at; }
};

struct ThroughBuffer {
  const KernelArgs& args;
  size_t at, bytes;
  char* buffer;

  const char* source(size_t s) const {
    __builtin_memcpy(buffer, static_cast<const char*>(args.sources[s]) + at, bytes);
    return buffer;
  }
};

// Multiplied by the scalar and rounded to the type.
template <class Type>
Block<typename Type::Lane> preMultiplied(const Block<typename Type::Lane>& x, const void* scalar) {
  char block[Type::kBlockBytes];
  for (size_t at = 0; at < Type::kBlockBytes; at += Type::kElementBytes) {
    __builtin_memcpy(block + at, scalar, Type::kElementBytes);
  }
  store<Type::kBlockBytes>(Type::pack(Product::combine(x, Type::load(block))), block);
  return Type::load(block);
}

enum class SourceCount { Two, Any };

template <class Type, class Operation, SourceCount kCount, class Reader>
inline Packed step(const KernelArgs& args, const Reader& reader) {
  Block<typename Type::Lane> sum = Type::load(reader.source(0));
  if constexpr (kCount == SourceCount::Two) {
    sum = Operation::combine(sum, Type::load(reader.source(1)));
  } else {
    if (args.rawSource == 0) {
      sum = preMultiplied<Type>(sum, args.scalar);
    }
    for (size_t s = 1; s < args.sourceCount; ++s) {
      const Block<typename Type::Lane> next = Type::load(reader.source(s));
      sum = Operation::combine(sum, s == args.rawSource ? preMultiplied<Type>(next, args.scalar) : next);
    }
  }
  return Type::pack(args.divideBy == 0 ? sum : divided(sum, args.divideBy));
}

// Fewer bytes than a block.
template <class Type, class Operation>
void edge(const KernelArgs& args, size_t at, size_t bytes) {
  if (bytes == 0) {
    return;
  }
  char buffer[Type::kBlockBytes] = {};
  const ThroughBuffer reader{args, at, bytes, buffer};
  const Packed result = step<Type, Operation, SourceCount::Any>(args, reader);
  store<Type::kBlockBytes>(result, buffer);
  for (size_t d = 0; d < args.destinationCount; ++d) {
    __builtin_memcpy(static_cast<char*>(args.destinations[d]) + at, buffer, bytes);
  }
}

// How many bytes from the start until the first destination is aligned for streaming; 0 if it never is.
size_t bytesToAlignment(const KernelArgs& args, size_t elementBytes, size_t totalBytes) {
  const size_t head = -reinterpret_cast<uintptr_t>(args.destinations[0]) % kVectorBytes;
  return !args.streaming || head % elementBytes != 0 ? 0 : head < totalBytes ? head : totalBytes;
}

bool canStream(const KernelArgs& args, size_t destination, size_t at) {
  return args.streaming &&
         (reinterpret_cast<uintptr_t>(args.destinations[destination]) + at) % kVectorBytes == 0;
}

template <class Type, class Operation, SourceCount kCount>
void pass(const KernelArgs& args) {
  const size_t totalBytes = args.count * Type::kElementBytes;
  size_t at = bytesToAlignment(args, Type::kElementBytes, totalBytes);
  edge<Type, Operation>(args, 0, at);
  const bool streams[2] = {canStream(args, 0, at), canStream(args, 1, at)};
  for (; at + Type::kBlockBytes <= totalBytes; at += Type::kBlockBytes) {
    const Packed result = step<Type, Operation, kCount>(args, InPlace{args, at});
    for (size_t d = 0; d < args.destinationCount; ++d) {
      char* to = static_cast<char*>(args.destinations[d]) + at;
      if (streams[d]) {
        stream<Type::kBlockBytes>(result, to);
      } else {
        store<Type::kBlockBytes>(result, to);
      }
    }
  }
  edge<Type, Operation>(args, at, totalBytes - at);
  if (args.streaming) {
    fenceStreams();
  }
}

using Pass = void (*)(const KernelArgs&);

template <class Type, class Operation>
void reduceBy(const KernelArgs& args) {
  if (args.sourceCount == 2 && args.rawSource >= 2) {
    pass<Type, Operation, SourceCount::Two>(args);
  } else {
    pass<Type, Operation, SourceCount::Any>(args);
  }
}

// In the order of pealRedOp_t. max and min choose one of the values, so their type may be one that cannot
// round.
template <class Type, class ChoosingType = Type>
constexpr Pass kByKind[] = {reduceBy<Type, Sum>, reduceBy<Type, Product>, reduceBy<ChoosingType, Max>,
                            reduceBy<ChoosingType, Min>};

// In the order of pealDataType_t.
constexpr const Pass* kByType[pealNumTypes] = {
    kByKind<Native<int8_t>>,   kByKind<Native<uint8_t>>,    kByKind<Native<int32_t>>,
    kByKind<Native<uint32_t>>, kByKind<Native<int64_t>>,    kByKind<Native<uint64_t>>,
    kByKind<Float16>,          kByKind<NativeFloat<float>>, kByKind<NativeFloat<double>>,
    kByKind<Bfloat16>,         kByKind<Float8e4m3>,         kByKind<Float8e5m2, Float8e5m2Exact>,
};

// Calls through the table, so that the compiler cannot move arithmetic out of the guard's scope.
void reduceElements(int type, int kind, const KernelArgs& args) {
  const DefaultFloatState guard;
  kByType[type][kind](args);
}

// One source, one or two destinations, the bytes as they are.
void copyElements(const KernelArgs& args) { pass<Native<uint8_t>, Sum, SourceCount::Any>(args); }

}  // namespace
}  // namespace peal
