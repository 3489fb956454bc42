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
                         Activations activations = Activations::Kept);
double parametersOf(const ModelShape& shape);

class Model {
 public:
  // Room for up to `sequences` sequences of up to shape.context tokens.
  Model(const ModelShape& shape, size_t sequences, Activations activations = Activations::Kept);

  const ModelShape& shape() const { return shape_; }
  const std::vector<ParameterSpec>& specs() const { return specs_; }

  // inputs and targets: sequences × length symbols. Returns the sum over all tokens of the loss in nats.
  double loss(ParameterAccess& access, const uint32_t* inputs, const uint32_t* targets, size_t sequences,
              size_t length);

  // The gradient of the last loss(), which must have been called with the same access and tokens.
  void backward(ParameterAccess& access);

  // Logits (vocabulary floats) of the symbol that follows inputs[0 .. length - 1].
  const float* predict(ParameterAccess& access, const uint32_t* inputs, size_t length);

  // Activations, scratch and widened weights, as allocated.
  size_t workspaceBytes() const;

 private:
  void forward(ParameterAccess& access, const uint32_t* inputs, size_t sequences, size_t length);
  void embed();
  void forwardBlock(size_t block);
  Block& restoredBlock(size_t block);
  void readBlock(ParameterAccess& access, size_t block);
  void backwardEmbedding(ParameterAccess& access, const float* dx);

  ModelShape shape_;
  std::vector<ParameterSpec> specs_;
  size_t capacity_;  // sequences
  Activations activations_;
  std::vector<std::unique_ptr<Block>> blocks_;   // Recomputed: one, for all in turn
  std::vector<std::vector<float>> blockInputs_;  // Recomputed: of every block
  BlockScratch scratch_;

  AttentionShape current_{};  // of the last forward pass
  std::vector<uint32_t> inputs_;
  std::vector<float> tokenEmbedding_, positionEmbedding_, finalGain_, finalBias_;
  std::vector<float> blockWeights_;  // of one block at a time
  std::vector<const float*> blockPointers_;
  std::vector<float> residual_, output_, finalNorm_, mean_, inverse_, logits_;
  std::vector<float> tokenGradient_, dx_;
};

}  // namespace peal::train
