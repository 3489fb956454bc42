// Without vectors of their own: the compiler makes what it can of these loops. Non-temporal stores are
// ordinary ones.
#include <cstring>

#include "bench/peers/kernels.h"

namespace peers {

const char* whyNoKernels() { return nullptr; }

void sumToAll(float* const* outs, int outputs, const float* const* in, int inputs, size_t count,
              Stores /*stores*/) {
  for (size_t i = 0; i < count; ++i) {
    float sum = in[0][i];
    for (int input = 1; input < inputs; ++input) {
      sum += in[input][i];
    }
    for (int output = 0; output < outputs; ++output) {
      outs[output][i] = sum;
    }
  }
}

void copyBytes(void* out, const void* in, size_t bytes, Stores /*stores*/) { std::memcpy(out, in, bytes); }

float readAll(const float* in, size_t count) {
  float sums[8] = {};
  size_t i = 0;
  for (; i + 8 <= count; i += 8) {
    for (size_t lane = 0; lane < 8; ++lane) {
      sums[lane] += in[i + lane];
    }
  }
  float total = 0;
  for (const float sum : sums) {
    total += sum;
  }
  for (; i < count; ++i) {
    total += in[i];
  }
  return total;
}

}  // namespace peers
