// Kernels of collectives that reduce double.
#include "lib/executor/cuda/collective.cuh"

PEAL_COLLECTIVE_KERNELS(reduceFloat64, Float64)
