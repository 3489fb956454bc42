// Kernels of collectives that reduce fp8 E5M2.
#include "lib/executor/cuda/collective.cuh"

PEAL_COLLECTIVE_KERNELS(reduceFloat8e5m2, Float8e5m2)
