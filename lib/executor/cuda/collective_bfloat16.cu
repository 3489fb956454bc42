// Kernels of collectives that reduce bfloat16.
#include "lib/executor/cuda/collective.cuh"

PEAL_COLLECTIVE_KERNELS(reduceBfloat16, Bfloat16)
