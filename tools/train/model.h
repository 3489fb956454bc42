// The GPT: embeddings, blocks, final norm, and the token embedding again as output head. Computes in
// fp32 on weights that it reads through ParameterAccess whenever it needs them.
#pragma once
#include <memory>
#include <vector>

#include "tools/train/block.h"
#include "tools/train/parameters.h"

namespace peal::train {

// What a block's forward pass leaves for its backward pass: everything, or its input alone, from which
// backward computes the rest again, bit for bit.
enum class Activations { Kept, Recomputed };

// What a model will allocate, and how many parameters it has, without making it. Floating point, because the
// answer for an absurd shape must not overflow.
double workspaceBytesFor(const ModelShape& shape, size_t sequences,
                         Activations activations = Activations::Kept,
                         ComputeDevice device = ComputeDevice::Host);
double parametersOf(const ModelShape& shape);

class Model {
 public:
  // Room for up to `sequences` sequences of up to shape.context tokens. compute outlives the model.
  Model(const ModelShape& shape, size_t sequences, Activations activations = Activations::Kept,
        Compute& compute = hostCompute());

  const ModelShape& shape() const { return shape_; }
  const std::vector<ParameterSpec>& specs() const { return specs_; }

  // inputs and targets: sequences × length symbols. Returns the sum over all tokens of the loss in nats.
  double loss(ParameterAccess& access, const uint32_t* inputs, const uint32_t* targets, size_t sequences,
              size_t length);

  // The gradient of the last loss(), which must have been called with the same access and tokens.
  void backward(ParameterAccess& access);

  // Logits (vocabulary floats, the host's) of the symbol that follows inputs[0 .. length - 1].
  const float* predict(ParameterAccess& access, const uint32_t* inputs, size_t length);

  // Activations, scratch and widened weights, as allocated.
  size_t workspaceBytes() const;

 private:
  void forward(ParameterAccess& access, const uint32_t* inputs, size_t sequences, size_t length);
  void forwardBlock(size_t block);
  Block& restoredBlock(size_t block);
  void readBlock(ParameterAccess& access, size_t block);
  void backwardEmbedding(ParameterAccess& access, const float* dx);
  TokenRows inputRows() const { return {inputs_.data(), current_.rows(), current_.length}; }
  std::vector<const Floats*> arrays() const;  // beside those of blocks and scratch

  ModelShape shape_;
  std::vector<ParameterSpec> specs_;
  Compute& compute_;
  Activations activations_;
  std::vector<std::unique_ptr<Block>> blocks_;  // Recomputed: one, for all in turn
  std::vector<Floats> blockInputs_;             // Recomputed: of every block
  BlockScratch scratch_;

  AttentionShape current_{};  // of the last forward pass
  std::vector<uint32_t> inputs_;
  Floats tokenEmbedding_, positionEmbedding_, finalGain_, finalBias_;
  Floats blockWeights_;  // of one block at a time
  std::vector<const float*> blockPointers_;
  Floats residual_, output_, finalNorm_, mean_, inverse_, logits_;
  Floats tokenGradient_, dx_;
  std::vector<float> predicted_;  // the host's
};

}  // namespace peal::train
