// The loops of the floors and the limits, as quick as this processor's vectors make them. One file per kind
// of processor: kernels_x86.cpp needs AVX2, kernels_portable.cpp has no non-temporal stores of its own.
#pragma once
#include <cstddef>

namespace peers {

// Null, or why the kernels of this build cannot run here.
const char* whyNoKernels();

enum class Stores { Cached, NonTemporal };

// Every outs[k][i] = sum over the inputs of in[j][i]. Finishes non-temporal stores.
void sumToAll(float* const* outs, int outputs, const float* const* in, int inputs, size_t count,
              Stores stores);
void copyBytes(void* out, const void* in, size_t bytes, Stores stores);
// Reads all; what it returns depends on all of it.
float readAll(const float* in, size_t count);

}  // namespace peers
