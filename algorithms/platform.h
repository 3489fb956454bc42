// The one place in algorithms/ with a conditional: marks functions for host and device under nvcc.
#pragma once
#ifdef __CUDACC__
#define PEAL_HD __host__ __device__
#else
#define PEAL_HD
#endif
