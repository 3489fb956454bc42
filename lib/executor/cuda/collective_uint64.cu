// Kernels of collectives that reduce uint64_t.
#include "lib/executor/cuda/collective.cuh"

PEAL_COLLECTIVE_KERNELS(reduceUint64, Integer<uint64_t>)
