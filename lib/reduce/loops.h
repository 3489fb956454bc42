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

// Where a step reads source s: in place (the first two by pointers that can stay in registers), or from a
// buffer with room for a block.
struct TwoInPlace {
  const char *first, *second;
  size_t at;  // in bytes

  const char* source(size_t s) const { return (s == 0 ? first : second) + at; }
};

struct InPlace {
  const void* const* sources;
  size_t at;

  const char* source(size_t s) const { return static_cast<const char*>(sources[s]) + at; }
};

struct ThroughBuffer {
  const void* const* sources;
  size_t at, bytes;
  char* buffer;

  const char* source(size_t s) const {
    __builtin_memcpy(buffer, static_cast<const char*>(sources[s]) + at, bytes);
    return buffer;
  }
};

// Multiplied by the scalar and rounded to the type.
template <class Type>
[[gnu::noinline]] Block<typename Type::Lane> preMultiplied(Block<typename Type::Lane> x, const void* scalar) {
  char block[Type::kBlockBytes];
  for (size_t at = 0; at < Type::kBlockBytes; at += Type::kElementBytes) {
    __builtin_memcpy(block + at, scalar, Type::kElementBytes);
  }
  store<Type::kBlockBytes>(Type::pack(Product::combine(x, Type::load(block))), block);
  return Type::load(block);
}

// What a pass must be able to do. Plain passes keep their accumulators in registers only because neither a
// pre-multiplication nor a division is in the same function.
enum class Work { TwoPlain, Plain, General };

template <class Type, class Operation, Work kWork, class Reader>
inline Packed step(const KernelArgs& args, const Reader& reader) {
  using Accumulators = Block<typename Type::Lane>;
  Accumulators sum = Type::load(reader.source(0));
  if constexpr (kWork == Work::TwoPlain) {
    return Type::pack(Operation::combine(sum, Type::load(reader.source(1))));
  } else if constexpr (kWork == Work::Plain) {
    for (size_t s = 1; s < args.sourceCount; ++s) {
      sum = Operation::combine(sum, Type::load(reader.source(s)));
    }
    return Type::pack(sum);
  } else {
    if (args.rawSource == 0) {
      sum = preMultiplied<Type>(sum, args.scalar);
    }
    for (size_t s = 1; s < args.sourceCount; ++s) {
      const Accumulators next = Type::load(reader.source(s));
      sum = Operation::combine(sum, s == args.rawSource ? preMultiplied<Type>(next, args.scalar) : next);
    }
    return Type::pack(args.divideBy == 0 ? sum : divided(sum, args.divideBy));
  }
}

// Fewer bytes than a block.
template <class Type, class Operation>
[[gnu::noinline]] void edge(const KernelArgs& args, size_t at, size_t bytes) {
  if (bytes == 0) {
    return;
  }
  char buffer[Type::kBlockBytes] = {};
  const ThroughBuffer reader{args.sources, at, bytes, buffer};
  const Packed result = step<Type, Operation, Work::General>(args, reader);
  store<Type::kBlockBytes>(result, buffer);
  for (void* destination : args.destinations) {
    if (destination != nullptr) {
      __builtin_memcpy(static_cast<char*>(destination) + at, buffer, bytes);
    }
  }
}

// How many bytes from the start until the first destination is aligned for streaming; 0 if it never is.
size_t bytesToAlignment(const KernelArgs& args, size_t elementBytes, size_t totalBytes) {
  const size_t head = -reinterpret_cast<uintptr_t>(args.destinations[0]) % kVectorBytes;
  return !args.streaming || head % elementBytes != 0 ? 0 : head < totalBytes ? head : totalBytes;
}

// A destination at a position where whole blocks begin.
struct Destination {
  char* start;
  bool streams;

  Destination(const KernelArgs& args, void* destination, size_t at)
      : start(static_cast<char*>(destination)),
        streams(args.streaming && (reinterpret_cast<uintptr_t>(destination) + at) % kVectorBytes == 0) {}

  template <size_t kBytes>
  void write(const Packed& block, size_t at) const {
    if (streams) {
      stream<kBytes>(block, start + at);
    } else {
      store<kBytes>(block, start + at);
    }
  }
};

// flatten: all that a block needs is inlined, or the accumulators would travel through memory.
template <class Type, class Operation, Work kWork>
[[gnu::flatten, gnu::noinline]] void pass(const KernelArgs& args) {
  const size_t totalBytes = args.count * Type::kElementBytes;
  size_t at = bytesToAlignment(args, Type::kElementBytes, totalBytes);
  edge<Type, Operation>(args, 0, at);
  // All in locals: the compiler must take it that a store may change what args refers to.
  const Destination first(args, args.destinations[0], at);
  const Destination second(args, args.destinations[1], at);
  const void* const* const sources = args.sources;
  const auto* const source0 = static_cast<const char*>(sources[0]);
  const auto* const source1 = static_cast<const char*>(sources[kWork == Work::TwoPlain ? 1 : 0]);
  for (; at + Type::kBlockBytes <= totalBytes; at += Type::kBlockBytes) {
    Packed result;
    if constexpr (kWork == Work::TwoPlain) {
      result = step<Type, Operation, kWork>(args, TwoInPlace{source0, source1, at});
    } else {
      result = step<Type, Operation, kWork>(args, InPlace{sources, at});
    }
    first.write<Type::kBlockBytes>(result, at);
    if (second.start != nullptr) {
      second.write<Type::kBlockBytes>(result, at);
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
  if (args.rawSource < args.sourceCount || args.divideBy != 0) {
    pass<Type, Operation, Work::General>(args);
  } else if (args.sourceCount == 2) {
    pass<Type, Operation, Work::TwoPlain>(args);
  } else {
    pass<Type, Operation, Work::Plain>(args);
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
void copyElements(const KernelArgs& args) { pass<Native<uint8_t>, Sum, Work::Plain>(args); }

}  // namespace
}  // namespace peal
