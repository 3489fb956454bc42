// Kernels of collectives that reduce int64_t.
#include "lib/executor/cuda/collective.cuh"

PEAL_COLLECTIVE_KERNELS(reduceInt64, Integer<int64_t>)
