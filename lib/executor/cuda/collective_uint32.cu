// Kernels of collectives that reduce uint32_t.
#include "lib/executor/cuda/collective.cuh"

PEAL_COLLECTIVE_KERNELS(reduceUint32, Integer<uint32_t>)
