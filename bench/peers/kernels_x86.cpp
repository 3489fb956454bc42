// Compiled with -mavx2 and only called where whyNoKernels() has agreed.
#include <immintrin.h>

#include <cstdint>
#include <cstring>

#include "bench/peers/kernels.h"

namespace peers {
namespace {

constexpr size_t kLanes = 8;
constexpr size_t kBlock = 4 * kLanes;  // two cache lines: enough loads in flight

template <Stores stores>
void put(float* out, __m256 value) {
  if constexpr (stores == Stores::NonTemporal) {
    _mm256_stream_ps(out, value);
  } else {
    _mm256_storeu_ps(out, value);
  }
}

// Fixed counts, so that the compiler unrolls them; 0: what the arguments say.
template <Stores stores, int kOutputs, int kInputs>
void sumBlocks(float* const* outs, int outputs, const float* const* in, int inputs, size_t from, size_t to) {
  const int outputCount = kOutputs == 0 ? outputs : kOutputs, inputCount = kInputs == 0 ? inputs : kInputs;
  for (size_t i = from; i < to; i += kBlock) {
    __m256 sums[4];
    for (size_t lane = 0; lane < 4; ++lane) {
      sums[lane] = _mm256_loadu_ps(in[0] + i + lane * kLanes);
    }
    for (int input = 1; input < inputCount; ++input) {
      for (size_t lane = 0; lane < 4; ++lane) {
        sums[lane] = _mm256_add_ps(sums[lane], _mm256_loadu_ps(in[input] + i + lane * kLanes));
      }
    }
    for (int output = 0; output < outputCount; ++output) {
      for (size_t lane = 0; lane < 4; ++lane) {
        put<stores>(outs[output] + i + lane * kLanes, sums[lane]);
      }
    }
  }
}

void sumOneByOne(float* const* outs, int outputs, const float* const* in, int inputs, size_t from,
                 size_t to) {
  for (size_t i = from; i < to; ++i) {
    float sum = in[0][i];
    for (int input = 1; input < inputs; ++input) {
      sum += in[input][i];
    }
    for (int output = 0; output < outputs; ++output) {
      outs[output][i] = sum;
    }
  }
}

template <Stores stores>
void sumAll(float* const* outs, int outputs, const float* const* in, int inputs, size_t from, size_t to) {
  if (inputs == 2 && outputs == 1) {
    sumBlocks<stores, 1, 2>(outs, outputs, in, inputs, from, to);
  } else if (inputs == 2 && outputs == 2) {
    sumBlocks<stores, 2, 2>(outs, outputs, in, inputs, from, to);
  } else {
    sumBlocks<stores, 0, 0>(outs, outputs, in, inputs, from, to);
  }
}

// Elements until `out` is on a vector's boundary, which non-temporal stores need.
size_t headOf(const float* out) {
  return (kLanes - reinterpret_cast<uintptr_t>(out) / sizeof(float) % kLanes) % kLanes;
}

}  // namespace

const char* whyNoKernels() { return __builtin_cpu_supports("avx2") != 0 ? nullptr : "the floors need AVX2"; }

void sumToAll(float* const* outs, int outputs, const float* const* in, int inputs, size_t count,
              Stores stores) {
  bool isAligned = stores == Stores::NonTemporal;
  const size_t wanted = isAligned ? headOf(outs[0]) : 0, head = wanted < count ? wanted : count;
  for (int output = 0; output < outputs; ++output) {
    isAligned = isAligned && headOf(outs[output]) == wanted;
  }
  const size_t end = head + (count - head) / kBlock * kBlock;
  sumOneByOne(outs, outputs, in, inputs, 0, head);
  if (isAligned) {
    sumAll<Stores::NonTemporal>(outs, outputs, in, inputs, head, end);
    _mm_sfence();
  } else {
    sumAll<Stores::Cached>(outs, outputs, in, inputs, head, end);
  }
  sumOneByOne(outs, outputs, in, inputs, end, count);
}

void copyBytes(void* out, const void* in, size_t bytes, Stores stores) {
  const bool isWhole =
      (reinterpret_cast<uintptr_t>(out) | reinterpret_cast<uintptr_t>(in) | bytes) % sizeof(float) == 0;
  if (stores == Stores::Cached || !isWhole) {
    std::memcpy(out, in, bytes);
    return;
  }
  // A sum of one input.
  auto* target = static_cast<float*>(out);
  const auto* source = static_cast<const float*>(in);
  sumToAll(&target, 1, &source, 1, bytes / sizeof(float), stores);
}

float readAll(const float* in, size_t count) {
  __m256 sums[8] = {};
  size_t i = 0;
  for (; i + 8 * kLanes <= count; i += 8 * kLanes) {
    for (size_t lane = 0; lane < 8; ++lane) {
      sums[lane] = _mm256_add_ps(sums[lane], _mm256_loadu_ps(in + i + lane * kLanes));
    }
  }
  float total = 0;
  for (const __m256& sum : sums) {
    float parts[kLanes];
    _mm256_storeu_ps(parts, sum);
    for (const float part : parts) {
      total += part;
    }
  }
  for (; i < count; ++i) {
    total += in[i];
  }
  return total;
}

}  // namespace peers
