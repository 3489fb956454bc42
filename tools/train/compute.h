// Where the model computes: memory, and what its layers do with it. The layers' text is the same for the host
// (host_compute.cpp: OpenBLAS and the loops of kernels.h) and for a GPU (cuda/compute.cpp: cuBLAS and kernels
// of its own); this is all they know of either.
//
// Pointers are to this object's memory, or the engine's beside it, unless a comment says "the host's".
// Operations happen in the order of calls, by one thread; on a GPU they are queued in stream(), and only
// download and crossEntropy wait. No sum depends on timing. Matrices are row-major, without padding where no
// stride is given; rows may be 0. No pointer may overlap another unless said.
#pragma once
#include <cstdint>
#include <memory>
#include <string>

#include "peal/peal.h"
#include "tools/train/matrix.h"

namespace peal::train {

enum class ComputeDevice { Host, Cuda };

struct AttentionShape {
  size_t sequences;
  size_t length;  // rows per sequence
  size_t heads;
  size_t width;  // a multiple of heads
  size_t rows() const { return sequences * length; }
  size_t headWidth() const { return width / heads; }
  // Floats of the probabilities kept for the backward pass.
  size_t probabilityCount() const { return sequences * heads * length * length; }
};

// Floats that the backward pass of attention needs beside them: of one head, or of all heads of a sequence.
constexpr size_t attentionScratchCount(ComputeDevice device, const AttentionShape& shape) {
  return (device == ComputeDevice::Host ? 1 : shape.heads) * shape.length * shape.length;
}

// Token ids in rows: the host's.
struct TokenRows {
  const uint32_t* ids;
  size_t count;   // rows
  size_t length;  // of a sequence: row i is at position i modulo length
};

// What computes, for the report.
struct ComputeNames {
  std::string sentence;  // all of it
  std::string products;  // "SkylakeX": of OpenBLAS's kernels
  std::string loops;     // "avx512"
};

class Compute {
 public:
  Compute() = default;
  Compute(const Compute&) = delete;
  Compute& operator=(const Compute&) = delete;
  virtual ~Compute() = default;

  virtual ComputeDevice device() const = 0;
  virtual ComputeNames names() const = 0;
  // What the engine is to wait for, and lets wait: the CUDA stream; nullptr on the host.
  virtual pealStream_t stream() const = 0;

  // ---- memory ----
  virtual float* allocate(size_t count) = 0;  // zeros
  virtual void release(float* values) noexcept = 0;
  virtual void clear(float* values, size_t count) = 0;
  virtual void copy(const float* from, float* to, size_t count) = 0;
  virtual void download(const float* from, float* to, size_t count) = 0;  // to: the host's

  // ---- bf16: widened exactly; rounded to nearest even, NaN kept ----
  virtual void widen(const uint16_t* from, float* to, size_t count) = 0;
  virtual void narrow(const float* from, uint16_t* to, size_t count) = 0;

  // ---- products: c = a · b, a · bᵀ, aᵀ · b ----
  virtual void multiply(ConstMatrix a, ConstMatrix b, Matrix c, Target target) = 0;
  virtual void multiplyByTransposed(ConstMatrix a, ConstMatrix b, Matrix c, Target target) = 0;
  virtual void multiplyTransposed(ConstMatrix a, ConstMatrix b, Matrix c, Target target) = 0;

  // ---- rows × width; kernels.h has the formulas ----
  // y = base + bias on each row; base null counts as zero.
  virtual void addBias(const float* base, const float* bias, float* y, size_t rows, size_t width) = 0;
  virtual void sumRows(const float* dy, float* biasGradient, size_t rows, size_t width) = 0;
  virtual void layerNorm(const float* x, const float* gain, const float* bias, float* y, float* mean,
                         float* inverse, size_t rows, size_t width) = 0;
  // dx += gradient through the norm; the other two are overwritten. dy is undefined afterwards.
  virtual void layerNormBackward(float* dy, const float* x, const float* gain, const float* mean,
                                 const float* inverse, float* dx, float* gainGradient, float* biasGradient,
                                 size_t rows, size_t width) = 0;
  virtual void gelu(const float* x, float* y, size_t count) = 0;
  virtual void geluBackward(const float* x, float* dy, size_t count) = 0;

  // ---- causal attention between its two linear layers ----
  // qkv: rows × 3 width (queries, keys, values); probabilities: probabilityCount(); out: rows × width.
  virtual void attentionForward(const AttentionShape& shape, const float* qkv, float* probabilities,
                                float* out) = 0;
  // dqkv is overwritten. scratch: attentionScratchCount() floats.
  virtual void attentionBackward(const AttentionShape& shape, const float* qkv, const float* probabilities,
                                 const float* dout, float* dqkv, float* scratch) = 0;

  // ---- the two ends ----
  // out = row of tokens for each id, plus row of positions.
  virtual void embed(TokenRows rows, const float* tokens, const float* positions, float* out,
                     size_t width) = 0;
  // Adds the rows of dx to both gradients, in ascending order.
  virtual void embedBackward(TokenRows rows, const float* dx, float* tokenGradient, float* positionGradient,
                             size_t width) = 0;
  // Sum over rows of -log softmax(logits)[target]; the logits become the gradient of that sum. targets: the
  // host's.
  virtual double crossEntropy(float* logits, const uint32_t* targets, size_t rows, size_t width) = 0;
};

// The host's. Owns nothing; any number of threads may use it.
Compute& hostCompute();

// ---- GPUs: cuda/compute.cpp, or cuda/absent.cpp in a build without CUDA ----

// Why this program cannot compute on any GPU; empty if it was built for that. Asks no driver.
std::string whyNoCuda();
// The GPU of a rank: local rank k is on GPU k modulo their number. Throws UsageError if there is none. To be
// called in the rank's own process.
int chooseCudaDevice(int localRank);
// library: a path or name of cuBLAS to load in place of those that cuda/cublas.cpp looks for; empty: none.
// Throws ToolError or UsageError with what was looked for.
std::unique_ptr<Compute> makeCudaCompute(int device, const std::string& library);
// Memory of the device that is not in use.
size_t freeCudaBytes(int device);

// ---- memory ----

// An array in the memory of what computes, which outlives it.
class Floats {
 public:
  Floats() = default;
  Floats(Compute& compute, size_t count)
      : compute_(&compute), values_(compute.allocate(count)), size_(count) {}
  Floats(Floats&& other) noexcept { swap(other); }
  Floats& operator=(Floats&& other) noexcept {
    swap(other);
    return *this;
  }
  Floats(const Floats&) = delete;
  Floats& operator=(const Floats&) = delete;
  ~Floats() {
    if (compute_ != nullptr) {
      compute_->release(values_);
    }
  }
  float* data() const { return values_; }
  size_t size() const { return size_; }
  void swap(Floats& other) noexcept {
    std::swap(compute_, other.compute_);
    std::swap(values_, other.values_);
    std::swap(size_, other.size_);
  }

 private:
  Compute* compute_ = nullptr;
  float* values_ = nullptr;
  size_t size_ = 0;
};

}  // namespace peal::train
