// Kernels of collectives by LL.
#include "lib/executor/cuda/collective.cuh"

PEAL_COLLECTIVE_KERNELS(LL)
