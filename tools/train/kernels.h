// The loops of the model that are not matrix products, compiled for three instruction sets. Called by
// the layers; must never depend on timing, alignment or the instruction set: every sum is taken over the
// same 16 lanes in the same order, so the three builds give the same bits.
//
// Matrices are row-major, rows × width, without padding. No pointer may overlap another unless said.
#pragma once
#include <cstddef>
#include <cstdint>

namespace peal::train {

struct Kernels {
  const char* name;
  // bf16 to fp32, exact; fp32 to bf16, to nearest even, NaN kept.
  void (*widen)(const uint16_t* source, float* target, size_t count);
  void (*narrow)(const float* source, uint16_t* target, size_t count);
  // y = each row of x to mean 0 and variance 1, times gain, plus bias. Keeps mean and 1/deviation.
  void (*layerNorm)(const float* x, const float* gain, const float* bias, float* y, float* mean,
                    float* inverse, size_t rows, size_t width);
  // dx += gradient through the norm; gainGradient and biasGradient are overwritten.
  void (*layerNormBackward)(const float* dy, const float* x, const float* gain, const float* mean,
                            const float* inverse, float* dx, float* gainGradient, float* biasGradient,
                            size_t rows, size_t width);
  // y = base + bias on each row; base null counts as zero, base == y is allowed.
  void (*addBias)(const float* base, const float* bias, float* y, size_t rows, size_t width);
  // biasGradient = sum of the rows of dy.
  void (*sumRows)(const float* dy, float* biasGradient, size_t rows, size_t width);
  // y += x.
  void (*add)(const float* x, float* y, size_t count);
  // y = gelu(x) = x * sigmoid(2u), u = sqrt(2/pi) (x + 0.044715 x^3); dy *= gelu'(x).
  void (*gelu)(const float* x, float* y, size_t count);
  void (*geluBackward)(const float* x, float* dy, size_t count);
  // Rows [firstRow, firstRow + rows) of a causal score matrix with `stride` columns in memory: row i
  // becomes softmax(scale * row) over its first i + 1 columns and zero in the other columns below
  // `columns`. `scores` points at firstRow.
  void (*causalSoftmax)(float* scores, float scale, size_t firstRow, size_t rows, size_t columns,
                        size_t stride);
  // dp becomes the gradient of the scores, given the probabilities p.
  void (*causalSoftmaxBackward)(const float* p, float* dp, float scale, size_t firstRow, size_t rows,
                                size_t columns, size_t stride);
  // Sum over rows of -log softmax(logits)[target]; the logits become the gradient of that sum.
  double (*crossEntropy)(float* logits, const uint32_t* targets, size_t rows, size_t width);
  // target = exp(source), for the tests of its accuracy.
  void (*exponential)(const float* source, float* target, size_t count);
};

extern const Kernels kBaselineKernels;
extern const Kernels kAvx2Kernels;
extern const Kernels kAvx512Kernels;

// The best set this processor runs.
const Kernels& kernels();
bool processorRuns(const Kernels& set);

}  // namespace peal::train
