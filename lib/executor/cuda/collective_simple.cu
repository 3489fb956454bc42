// Kernels of collectives by Simple.
#include "lib/executor/cuda/collective.cuh"

PEAL_COLLECTIVE_KERNELS(Simple)
