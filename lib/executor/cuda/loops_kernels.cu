// Kernels of loops_kernels.h. loops_table.cpp lists their names.
#include "lib/executor/cuda/loops_kernels.h"
#include "lib/executor/cuda/move.cuh"

namespace peal::cuda {

// Block b of B gets the b-th of B parts of nearly equal length, cut at multiples of 16 elements.
struct Part {
  size_t begin, count;
};
PEAL_DEVICE Part partOfBlock(size_t count) {
  constexpr size_t kGrain = 16;
  const size_t grains = (count + kGrain - 1) / kGrain;
  const size_t begin = grains * blockIndex() / gridBlocks() * kGrain;
  const size_t end = grains * (blockIndex() + 1) / gridBlocks() * kGrain;
  return {begin, (end < count ? end : count) - begin};
}

struct PartAddresses {
  const void* sources[kMostLoopSources];
  void* destinations[kMostLoopDestinations];
};

// The addresses of this block's part, in shared memory, as every verb of the device port leaves them.
PEAL_DEVICE void placePart(PartAddresses& addresses, const LoopArgs& args, size_t offset) {
  for (uint32_t i = threadIndex(); i < kMostLoopSources; i += blockThreads()) {
    const bool isUsed = static_cast<int>(i) < args.sourceCount;
    addresses.sources[i] = isUsed ? bytesAt(args.sources[i], offset) : nullptr;
  }
  if (threadIndex() < kMostLoopDestinations) {
    const bool isUsed = static_cast<int>(threadIndex()) < args.destinationCount;
    addresses.destinations[threadIndex()] =
        isUsed ? bytesAt(args.destinations[threadIndex()], offset) : nullptr;
  }
  syncBlock();
}

template <class Element>
PEAL_DEVICE void reducePart(const LoopArgs& args) {
  PEAL_SHARED(PartAddresses, addresses);
  const Part part = partOfBlock(args.count);
  placePart(addresses, args, part.begin * sizeof(typename Element::Bits));
  reduceBlock<Element>(0, args.op,
                       {.sources = addresses.sources,
                        .destinations = addresses.destinations,
                        .sourceCount = args.sourceCount,
                        .destinationCount = args.destinationCount,
                        .count = part.count,
                        .rawSource = args.rawSource,
                        .divideBy = args.divideBy,
                        .scalarBits = args.scalarBits});
}

#define PEAL_REDUCE_KERNEL(name, Element)                                           \
  PEAL_KERNEL void PEAL_LAUNCH_BOUNDS(512) name(PEAL_GRID_CONSTANT LoopArgs args) { \
    reducePart<Element>(args);                                                      \
  }

PEAL_REDUCE_KERNEL(reduceInt8, Integer<int8_t>)
PEAL_REDUCE_KERNEL(reduceUint8, Integer<uint8_t>)
PEAL_REDUCE_KERNEL(reduceInt32, Integer<int32_t>)
PEAL_REDUCE_KERNEL(reduceUint32, Integer<uint32_t>)
PEAL_REDUCE_KERNEL(reduceInt64, Integer<int64_t>)
PEAL_REDUCE_KERNEL(reduceUint64, Integer<uint64_t>)
PEAL_REDUCE_KERNEL(reduceFloat16, Float16)
PEAL_REDUCE_KERNEL(reduceFloat32, Float32)
PEAL_REDUCE_KERNEL(reduceFloat64, Float64)
PEAL_REDUCE_KERNEL(reduceBfloat16, Bfloat16)
PEAL_REDUCE_KERNEL(reduceFloat8e4m3, Float8e4m3)
PEAL_REDUCE_KERNEL(reduceFloat8e5m2, Float8e5m2)

PEAL_KERNEL void PEAL_LAUNCH_BOUNDS(512) copyBytes(PEAL_GRID_CONSTANT LoopArgs args) {
  PEAL_SHARED(PartAddresses, addresses);
  const Part part = partOfBlock(args.count);
  placePart(addresses, args, part.begin);
  copyBlockTo(addresses.destinations, args.destinationCount, addresses.sources[0], part.count);
}

}  // namespace peal::cuda
