// Kernels of collectives that reduce int32_t.
#include "lib/executor/cuda/collective.cuh"

PEAL_COLLECTIVE_KERNELS(reduceInt32, Integer<int32_t>)
