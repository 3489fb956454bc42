// Kernels of collectives that reduce float.
#include "lib/executor/cuda/collective.cuh"

PEAL_COLLECTIVE_KERNELS(reduceFloat32, Float32)
