// Kernels of collectives that reduce fp8 E4M3.
#include "lib/executor/cuda/collective.cuh"

PEAL_COLLECTIVE_KERNELS(reduceFloat8e4m3, Float8e4m3)
