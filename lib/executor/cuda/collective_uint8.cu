// Kernels of collectives that reduce uint8_t.
#include "lib/executor/cuda/collective.cuh"

PEAL_COLLECTIVE_KERNELS(reduceUint8, Integer<uint8_t>)
