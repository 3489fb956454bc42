// Values of one of the two types that the engine keeps weights and gradients in, behind an untyped address,
// and the passes over them. A view: owns nothing, knows no ranks and no buckets.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "lib/zero/loops.h"
#include "lib/zero/precision.h"

namespace peal::zero {

struct Elements {
  void* data = nullptr;
  Precision precision = Precision::Bf16;

  Elements at(uint64_t element) const {
    return {static_cast<std::byte*>(data) + element * bytesOf(precision), precision};
  }
  bool isWide() const { return precision == Precision::Fp32; }
  uint16_t* bf16() const { return static_cast<uint16_t*>(data); }
  float* fp32() const { return static_cast<float*>(data); }
};

// sums = values; sums += values; values = sums + values, rounded once if they are bf16; values = sums.
inline void startSums(Elements values, float* sums, size_t count) {
  if (values.isWide()) {
    std::copy_n(values.fp32(), count, sums);
  } else {
    loops().widen(values.bf16(), sums, count);
  }
}
inline void addToSums(Elements values, float* sums, size_t count) {
  if (values.isWide()) {
    loops().addFp32(values.fp32(), sums, count);
  } else {
    loops().add(values.bf16(), sums, count);
  }
}
inline void finishSums(Elements values, const float* sums, size_t count) {
  if (values.isWide()) {
    loops().addFp32(sums, values.fp32(), count);
  } else {
    loops().addAndRound(values.bf16(), sums, count);
  }
}
inline void storeSums(const float* sums, Elements values, size_t count) {
  if (values.isWide()) {
    std::copy_n(sums, count, values.fp32());
  } else {
    loops().round(sums, values.bf16(), count);
  }
}

}  // namespace peal::zero
