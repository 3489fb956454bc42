// Block-wide loops over global memory: copies and reductions, for the device port and for the kernels that
// test and time them. Each is called by all threads of a block with the same arguments and divides the work
// among them. None waits for anything or has a barrier: what a thread reads must have been made visible to it
// before, and what it wrote is made visible by the caller's barrier and release.
//
// Any address and any count will do, and nothing outside the extents is read or written. Where all addresses
// are the same modulo 16 (and the next multiple of 16 is whole elements away), all but the ends moves in
// vectors of 16 bytes, several in flight per thread; else by element, and where an address is not even
// aligned to that, by byte.
#pragma once
#include <cstddef>
#include <cstdint>

#include "lib/executor/cuda/elements.cuh"

namespace peal::cuda {

// lib/reduce/reduce.h's ReduceArgs for the device: destinations[k][i] = sources[0][i] op sources[1][i] op
// ..., in this order, for every k.
struct MoveArgs {
  // Arrays of addresses, in shared or local memory. A destination may equal a source exactly; nothing else
  // may overlap.
  const void* const* sources;
  void* const* destinations;
  int sourceCount;  // at least 1
  int destinationCount;
  size_t count;         // elements
  int rawSource;        // index of the source that is multiplied by the scalar and rounded first; -1: none
  int divideBy;         // the average's last step: the number of ranks; 0: no division
  uint64_t scalarBits;  // one element, in the low bytes
};

// ---- how an extent is divided ----
PEAL_DEVICE const std::byte* bytesAt(const void* at, size_t offset) {
  return static_cast<const std::byte*>(at) + offset;
}
PEAL_DEVICE std::byte* bytesAt(void* at, size_t offset) { return static_cast<std::byte*>(at) + offset; }

// Addresses of one operation modulo 16: the first one's, and the bits in which any other differs from it.
struct Alignment {
  uint32_t first, spread = 0;
  PEAL_DEVICE explicit Alignment(const void* at) : first(modulo(at)) {}
  PEAL_DEVICE void add(const void* at) { spread |= modulo(at) ^ first; }
  PEAL_DEVICE bool isMultipleOf(uint32_t bytes) const { return (first | spread) % bytes == 0; }
  // Bytes until all are multiples of 16, or an extent's length.
  PEAL_DEVICE size_t head(size_t bytes) const {
    const size_t head = (sizeof(Vec16) - first) % sizeof(Vec16);
    return head < bytes ? head : bytes;
  }

 private:
  PEAL_DEVICE static uint32_t modulo(const void* at) {
    return static_cast<uint32_t>(reinterpret_cast<uintptr_t>(at) % sizeof(Vec16));
  }
};

// A mover has a function template: steps<Access, kSteps>(at, stride) moves kSteps words, the first at byte
// `at` of the extents, the next ones `stride` bytes further each. The words are Access::Word.
//
// What of [begin, end) makes whole rounds of all threads, kSteps words of each at once.
// Returns where the last round ended.
template <class Access, int kSteps, class Mover>
PEAL_DEVICE size_t moveRounds(size_t begin, size_t end, const Mover& mover) {
  const size_t stride = size_t{blockThreads()} * Access::kBytes;
  const size_t last = end - (end - begin) % (kSteps * stride);
  PEAL_KEEP_LOOP
  for (size_t at = begin + size_t{threadIndex()} * Access::kBytes; at < last; at += kSteps * stride) {
    mover.template steps<Access, kSteps>(at, stride);
  }
  return last;
}

// What rounds have left of [begin, end).
template <class Access, class Mover>
PEAL_DEVICE void moveSingly(size_t begin, size_t end, const Mover& mover) {
  const size_t stride = size_t{blockThreads()} * Access::kBytes;
  PEAL_KEEP_LOOP
  for (size_t at = begin + size_t{threadIndex()} * Access::kBytes; at < end; at += stride) {
    mover.template steps<Access, 1>(at, stride);
  }
}

// All elements of [0, bytes) outside [begin, end).
template <class Access, class Mover>
PEAL_DEVICE void moveEnds(size_t begin, size_t end, size_t bytes, const Mover& mover) {
  const size_t inner = end - begin;
  const size_t stride = size_t{blockThreads()} * Access::kBytes;
  PEAL_KEEP_LOOP
  for (size_t at = size_t{threadIndex()} * Access::kBytes; at < bytes - inner; at += stride) {
    mover.template steps<Access, 1>(at < begin ? at : at + inner, stride);
  }
}

// ---- words: how a step reads and writes ----
template <class Element>
struct Vectors {
  using Word = Vec16;
  static constexpr uint32_t kBytes = sizeof(Word);
  using Accumulators = Lanes<Element, 16 / kBitsBytes<Element>>;
  PEAL_DEVICE static Word load(const std::byte* from) { return load16(from); }
  PEAL_DEVICE static void store(std::byte* to, Word word) { store16(to, word); }
  PEAL_DEVICE static Accumulators unpacked(Word word) { return unpack<Element>(groupOf(word)); }
  PEAL_DEVICE static Word packed(int op, const Accumulators& lanes) { return vecOf(packFor(op, lanes)); }
};

template <class Element>
struct AlignedElements {
  using Word = typename Element::Bits;
  static constexpr uint32_t kBytes = sizeof(Word);
  using Accumulators = Lanes<Element, 1>;
  PEAL_DEVICE static Word load(const std::byte* from) {
    return loadGlobal(reinterpret_cast<const Word*>(from));
  }
  PEAL_DEVICE static void store(std::byte* to, Word word) { storeGlobal(reinterpret_cast<Word*>(to), word); }
  PEAL_DEVICE static Accumulators unpacked(Word word) { return {{Element::widen(word)}}; }
  PEAL_DEVICE static Word packed(int op, const Accumulators& lanes) {
    return narrowFor<Element>(op, lanes.lane[0]);
  }
};

// At any address: bytes where it is not aligned. All threads of a step take the same way.
template <class Element>
struct Elements : AlignedElements<Element> {
  using Word = typename Element::Bits;
  using Aligned = AlignedElements<Element>;
  PEAL_DEVICE static Word load(const std::byte* from) {
    if (reinterpret_cast<uintptr_t>(from) % sizeof(Word) == 0) {
      return Aligned::load(from);
    }
    uint64_t word = 0;
    PEAL_KEEP_LOOP
    for (unsigned i = 0; i < sizeof(Word); ++i) {
      word |= uint64_t{loadGlobal(reinterpret_cast<const uint8_t*>(from + i))} << (8 * i);
    }
    return static_cast<Word>(word);
  }
  PEAL_DEVICE static void store(std::byte* to, Word word) {
    if (reinterpret_cast<uintptr_t>(to) % sizeof(Word) == 0) {
      Aligned::store(to, word);
      return;
    }
    PEAL_KEEP_LOOP
    for (unsigned i = 0; i < sizeof(Word); ++i) {
      storeGlobal(reinterpret_cast<uint8_t*>(to + i), static_cast<uint8_t>(uint64_t{word} >> (8 * i)));
    }
  }
};

template <class Access, int kSteps>
PEAL_DEVICE void loadSteps(typename Access::Word (&words)[kSteps], const std::byte* from, size_t stride) {
  PEAL_UNROLL
  for (int k = 0; k < kSteps; ++k) {
    words[k] = Access::load(from + static_cast<size_t>(k) * stride);
  }
}
template <class Access, int kSteps>
PEAL_DEVICE void storeSteps(std::byte* to, const typename Access::Word (&words)[kSteps], size_t stride) {
  PEAL_UNROLL
  for (int k = 0; k < kSteps; ++k) {
    Access::store(to + static_cast<size_t>(k) * stride, words[k]);
  }
}

// ---- copies ----
struct Copy {
  void* const* destinations;
  int destinationCount;
  const void* from;

  template <class Access, int kSteps>
  PEAL_DEVICE void steps(size_t at, size_t stride) const {
    typename Access::Word words[kSteps];
    loadSteps<Access>(words, bytesAt(from, at), stride);
    PEAL_KEEP_LOOP
    for (int d = 0; d < destinationCount; ++d) {
      storeSteps<Access>(bytesAt(destinations[d], at), words, stride);
    }
  }
};

// `from` to every destination; the array of addresses is in shared or local memory. One copy of this function
// for all callers in a kernel.
PEAL_DEVICE_CALL void copyBlockTo(void* const* destinations, int destinationCount, const void* from,
                                  size_t bytes) {
  Alignment alignment(from);
  PEAL_KEEP_LOOP
  for (int d = 0; d < destinationCount; ++d) {
    alignment.add(destinations[d]);
  }
  const Copy copy{destinations, destinationCount, from};
  using Byte = Integer<uint8_t>;
  size_t begin = 0, end = 0;
  if (alignment.spread == 0) {
    begin = alignment.head(bytes);
    end = bytes - (bytes - begin) % sizeof(Vec16);
    moveSingly<Vectors<Byte>>(moveRounds<Vectors<Byte>, 8>(begin, end, copy), end, copy);
  } else if (alignment.isMultipleOf(4)) {
    end = moveRounds<AlignedElements<Integer<uint32_t>>, 4>(0, bytes, copy);
  } else if (alignment.isMultipleOf(2)) {
    end = moveRounds<AlignedElements<Integer<uint16_t>>, 4>(0, bytes, copy);
  } else {
    end = moveRounds<AlignedElements<Byte>, 4>(0, bytes, copy);
  }
  moveEnds<AlignedElements<Byte>>(begin, end, bytes, copy);
}

PEAL_DEVICE void copyBlock(void* to, const void* from, size_t bytes) { copyBlockTo(&to, 1, from, bytes); }

// ---- reductions ----
// A mover that reduces. `How` says what is done with a step's words: prepared(lanes, source) before a source
// is combined, combine(sum, lanes), finish(sum) before it is rounded.
template <class How>
struct Reduction {
  const void* const* sources;
  void* const* destinations;
  int sourceCount, destinationCount;
  How how;

  PEAL_DEVICE Reduction(const MoveArgs& args, How theHow)
      : sources(args.sources),
        destinations(args.destinations),
        sourceCount(args.sourceCount),
        destinationCount(args.destinationCount),
        how(theHow) {}

  // The next source is under way while the one before is combined.
  template <class Access, int kSteps>
  PEAL_DEVICE void steps(size_t at, size_t stride) const {
    typename Access::Word ahead[kSteps];
    typename Access::Accumulators sum[kSteps]{};
    loadSteps<Access>(ahead, bytesAt(sources[0], at), stride);
    PEAL_KEEP_LOOP
    for (int source = 0; source < sourceCount; ++source) {
      typename Access::Word words[kSteps];
      PEAL_UNROLL
      for (int k = 0; k < kSteps; ++k) {
        words[k] = ahead[k];
      }
      if (source + 1 < sourceCount) {
        loadSteps<Access>(ahead, bytesAt(sources[source + 1], at), stride);
      }
      PEAL_UNROLL
      for (int k = 0; k < kSteps; ++k) {
        const typename Access::Accumulators lanes = how.prepared(Access::unpacked(words[k]), source);
        if (source == 0) {
          sum[k] = lanes;
        } else {
          how.combine(sum[k], lanes);
        }
      }
    }
    PEAL_UNROLL
    for (int k = 0; k < kSteps; ++k) {
      how.finish(sum[k]);
      ahead[k] = Access::packed(how.op(), sum[k]);
    }
    PEAL_KEEP_LOOP
    for (int d = 0; d < destinationCount; ++d) {
      storeSteps<Access>(bytesAt(destinations[d], at), ahead, stride);
    }
  }
};

// One operation, no scalar and no division.
template <class Operation>
struct Plainly {
  template <class Sum>
  PEAL_DEVICE Sum prepared(const Sum& lanes, int) const {
    return lanes;
  }
  template <class Sum>
  PEAL_DEVICE void combine(Sum& sum, const Sum& lanes) const {
    combineInto<Operation>(sum, lanes);
  }
  template <class Sum>
  PEAL_DEVICE void finish(Sum&) const {}
  PEAL_DEVICE static constexpr int op() { return Operation::kOp; }
};

// Whatever the arguments ask for, found out at every step.
struct AsAsked {
  const MoveArgs& args;
  int kind;

  template <class Sum>
  PEAL_DEVICE Sum prepared(Sum lanes, int source) const {
    if (source == args.rawSource) {
      preMultiply(lanes, args.scalarBits);
    }
    return lanes;
  }
  template <class Sum>
  PEAL_DEVICE void combine(Sum& sum, const Sum& lanes) const {
    withOperation(kind, [&](auto operation) { combineInto<decltype(operation)>(sum, lanes); });
  }
  template <class Sum>
  PEAL_DEVICE void finish(Sum& sum) const {
    if (args.divideBy != 0) {
      divide(sum, args.divideBy);
    }
  }
  PEAL_DEVICE int op() const { return kind; }
};

// One copy of this function for all callers in a kernel.
//
// Only the rounds of vectors, where large arrays spend their time, have a loop for each operation: the ends,
// unaligned arrays and scaled ones share one that finds out, or there would be five times the code.
template <class Element>
PEAL_DEVICE_CALL void reduceBlockBy(int op, const MoveArgs& args) {
  constexpr uint32_t kBytes = sizeof(typename Element::Bits);
  const size_t bytes = args.count * kBytes;
  Alignment alignment(args.sources[0]);
  PEAL_KEEP_LOOP
  for (int source = 1; source < args.sourceCount; ++source) {
    alignment.add(args.sources[source]);
  }
  PEAL_KEEP_LOOP
  for (int d = 0; d < args.destinationCount; ++d) {
    alignment.add(args.destinations[d]);
  }
  const Reduction<AsAsked> asked(args, {args, op});
  size_t begin = 0, end = 0;
  if (alignment.spread == 0 && alignment.first % kBytes == 0) {
    begin = alignment.head(bytes);
    end = bytes - (bytes - begin) % sizeof(Vec16);
    size_t at = begin;
    if (args.rawSource < 0 && args.divideBy == 0) {
      // At most 16 registers of accumulators. More would leave too few to the functions that call this one:
      // those of a chain of calls add up.
      constexpr int kSteps = kBytes == 1 ? 1 : 2;
      withOperation(op, [&](auto operation) {
        const Reduction<Plainly<decltype(operation)>> plain(args, {});
        at = moveRounds<Vectors<Element>, kSteps>(begin, end, plain);
      });
    }
    moveSingly<Vectors<Element>>(at, end, asked);
  } else if (alignment.isMultipleOf(kBytes)) {
    end = moveRounds<AlignedElements<Element>, 2>(0, bytes, asked);
  }
  moveEnds<Elements<Element>>(begin, end, bytes, asked);
}

// op: pealRedOp_t; pealAvg divides only if args.divideBy says so. One source that is neither multiplied nor
// divided is copied as it is, NaN included. type: of AnyElement.
template <class Element>
PEAL_DEVICE void reduceBlock(int type, int op, const MoveArgs& args) {
  const bool copies = args.sourceCount == 1 && args.rawSource < 0 && args.divideBy == 0;
  size_t elementBytes = 0;
  withElement<Element>(type, [&](auto element) {
    elementBytes = sizeof(typename decltype(element)::Bits);
    if (!copies) {
      reduceBlockBy<decltype(element)>(op, args);
    }
  });
  if (copies) {
    copyBlockTo(args.destinations, args.destinationCount, args.sources[0], args.count * elementBytes);
  }
}

}  // namespace peal::cuda
