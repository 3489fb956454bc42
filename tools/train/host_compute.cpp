// The model on the host: OpenBLAS on the calling thread, and the loops of kernels.h.
#include <algorithm>

#include "tools/train/attention.h"
#include "tools/train/blas.h"
#include "tools/train/compute.h"
#include "tools/train/kernels.h"
#include "tools/train/matmul.h"

namespace peal::train {
namespace {

class HostCompute final : public Compute {
 public:
  ComputeDevice device() const override { return ComputeDevice::Host; }
  ComputeNames names() const override {
    return {"one core per rank, OpenBLAS kernels " + blas().kernels + ", own loops " + kernels().name,
            blas().kernels, kernels().name};
  }
  pealStream_t stream() const override { return nullptr; }

  float* allocate(size_t count) override { return new float[count](); }
  void release(float* values) noexcept override { delete[] values; }
  void clear(float* values, size_t count) override { std::fill_n(values, count, 0.0f); }
  void copy(const float* from, float* to, size_t count) override { std::copy_n(from, count, to); }
  void download(const float* from, float* to, size_t count) override { std::copy_n(from, count, to); }

  void widen(const uint16_t* from, float* to, size_t count) override { kernels().widen(from, to, count); }
  void narrow(const float* from, uint16_t* to, size_t count) override { kernels().narrow(from, to, count); }

  void multiply(ConstMatrix a, ConstMatrix b, Matrix c, Target target) override {
    train::multiply(a, b, c, target);
  }
  void multiplyByTransposed(ConstMatrix a, ConstMatrix b, Matrix c, Target target) override {
    train::multiplyByTransposed(a, b, c, target);
  }
  void multiplyTransposed(ConstMatrix a, ConstMatrix b, Matrix c, Target target) override {
    train::multiplyTransposed(a, b, c, target);
  }

  void addBias(const float* base, const float* bias, float* y, size_t rows, size_t width) override {
    kernels().addBias(base, bias, y, rows, width);
  }
  void sumRows(const float* dy, float* biasGradient, size_t rows, size_t width) override {
    kernels().sumRows(dy, biasGradient, rows, width);
  }
  void layerNorm(const float* x, const float* gain, const float* bias, float* y, float* mean, float* inverse,
                 size_t rows, size_t width) override {
    kernels().layerNorm(x, gain, bias, y, mean, inverse, rows, width);
  }
  void layerNormBackward(float* dy, const float* x, const float* gain, const float* mean,
                         const float* inverse, float* dx, float* gainGradient, float* biasGradient,
                         size_t rows, size_t width) override {
    kernels().layerNormBackward(dy, x, gain, mean, inverse, dx, gainGradient, biasGradient, rows, width);
  }
  void gelu(const float* x, float* y, size_t count) override { kernels().gelu(x, y, count); }
  void geluBackward(const float* x, float* dy, size_t count) override {
    kernels().geluBackward(x, dy, count);
  }

  void attentionForward(const AttentionShape& shape, const float* qkv, float* probabilities,
                        float* out) override {
    train::attentionForward(shape, qkv, probabilities, out);
  }
  void attentionBackward(const AttentionShape& shape, const float* qkv, const float* probabilities,
                         const float* dout, float* dqkv, float* scratch) override {
    train::attentionBackward(shape, qkv, probabilities, dout, dqkv, scratch);
  }

  void embed(TokenRows rows, const float* tokens, const float* positions, float* out, size_t width) override {
    for (size_t row = 0; row < rows.count; ++row) {
      const float* token = tokens + rows.ids[row] * width;
      const float* position = positions + row % rows.length * width;
      float* target = out + row * width;
      for (size_t i = 0; i < width; ++i)
        target[i] = token[i] + position[i];
    }
  }
  void embedBackward(TokenRows rows, const float* dx, float* tokenGradient, float* positionGradient,
                     size_t width) override {
    for (size_t row = 0; row < rows.count; ++row) {
      const float* source = dx + row * width;
      kernels().add(source, positionGradient + row % rows.length * width, width);
      kernels().add(source, tokenGradient + rows.ids[row] * width, width);
    }
  }
  double crossEntropy(float* logits, const uint32_t* targets, size_t rows, size_t width) override {
    return kernels().crossEntropy(logits, targets, rows, width);
  }
};

}  // namespace

Compute& hostCompute() {
  static HostCompute compute;
  return compute;
}

}  // namespace peal::train
