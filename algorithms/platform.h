// The one place in algorithms/ with a conditional: marks functions for host and device under nvcc.
// PEAL_HD_CALL: one copy for all callers in a kernel, which would else be inlined into each of an algorithm's
// verbs.
#pragma once
#ifdef __CUDACC__
#define PEAL_HD __host__ __device__
#define PEAL_HD_CALL __host__ __device__ __noinline__
#else
#define PEAL_HD
#define PEAL_HD_CALL
#endif
