// Kernels of collectives that only copy, for all types: all-gather, broadcast, and the barrier.
#include "lib/executor/cuda/collective.cuh"

PEAL_COLLECTIVE_KERNELS(copy, CopiedElement)
