// One transformer block: x + attention(norm(x)), then that + mlp(norm(that)). Called by the model, which
// hands it widened weights; keeps the activations between its forward and its backward pass.
#pragma once
#include <functional>

#include "tools/train/compute.h"
#include "tools/train/parameters.h"

namespace peal::train {

// Memory that all blocks use in turn during a backward pass.
struct BlockScratch {
  BlockScratch(Compute& compute, const AttentionShape& shape);
  Floats hidden;    // rows × 4 width
  Floats qkv;       // rows × 3 width
  Floats narrow;    // rows × width
  Floats scores;    // attentionScratchCount()
  Floats gradient;  // one parameter
  Floats second;    // a vector parameter that comes with another
  size_t floats() const;
};

// Called with each parameter's gradient as soon as it is known, in the order of the backward pass.
using BlockGradient = std::function<void(BlockParameter, const float*)>;

class Block {
 public:
  Block(Compute& compute, const AttentionShape& shape);

  // weights: kBlockParameters pointers. x and out: rows × width.
  void forward(const AttentionShape& shape, const float* const* weights, const float* x, float* out);

  // dx: on entry the gradient of out, on return that of x.
  void backward(const AttentionShape& shape, const float* const* weights, float* dx, BlockScratch& scratch,
                const BlockGradient& ready);

  // Activations kept, for the report.
  size_t floats() const;

 private:
  void backwardMlp(size_t rows, size_t width, const float* const* weights, float* dx, BlockScratch& scratch,
                   const BlockGradient& ready);

  Compute& compute_;
  Floats input_, mean1_, inverse1_, norm1_, qkv_, probabilities_, attended_;
  Floats middle_, mean2_, inverse2_, norm2_, expanded_, activated_;
};

}  // namespace peal::train
