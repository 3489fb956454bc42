// Kernels of collectives that reduce IEEE half precision.
#include "lib/executor/cuda/collective.cuh"

PEAL_COLLECTIVE_KERNELS(reduceFloat16, Float16)
