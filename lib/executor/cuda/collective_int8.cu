// Kernels of collectives that reduce int8_t.
#include "lib/executor/cuda/collective.cuh"

PEAL_COLLECTIVE_KERNELS(reduceInt8, Integer<int8_t>)
