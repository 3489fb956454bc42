// Kernels of collectives by LL128.
#include "lib/executor/cuda/collective.cuh"

PEAL_COLLECTIVE_KERNELS(LL128)
