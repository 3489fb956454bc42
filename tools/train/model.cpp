#include "tools/train/model.h"

#include <algorithm>

#include "tools/train/kernels.h"
#include "tools/train/matmul.h"

namespace peal::train {

double parametersOf(const ModelShape& shape) {
  const auto width = static_cast<double>(shape.width);
  const double block = 12 * width * width + 13 * width;
  return static_cast<double>(shape.vocabulary + shape.context + 2) * width +
         static_cast<double>(shape.layers) * block;
}

double workspaceBytesFor(const ModelShape& shape, size_t sequences, Activations activations) {
  const auto width = static_cast<double>(shape.width), context = static_cast<double>(shape.context);
  const auto vocabulary = static_cast<double>(shape.vocabulary), layers = static_cast<double>(shape.layers);
  const double rows = static_cast<double>(sequences) * context;
  const double probabilities = rows * context * static_cast<double>(shape.heads);
  const double block = rows * (16 * width + 4) + probabilities;
  const double blocks = activations == Activations::Kept ? layers * block : block + layers * rows * width;
  const double scratch = rows * 8 * width + context * context + 4 * width * width + width;
  const double widened = 12 * width * width + 13 * width + (2 * vocabulary + context + 2) * width;
  const double model = rows * (4 * width + 2 + vocabulary);
  return (blocks + scratch + widened + model) * sizeof(float);
}

Model::Model(const ModelShape& shape, size_t sequences, Activations activations)
    : shape_(shape),
      specs_(parameterSpecs(shape)),
      capacity_(sequences),
      activations_(activations),
      scratch_(sequences * shape.context, shape.width, shape.context) {
  const size_t rows = capacity_ * shape_.context, width = shape_.width;
  const bool isKept = activations_ == Activations::Kept;
  for (size_t i = 0; i < (isKept ? shape_.layers : 1); ++i)
    blocks_.push_back(std::make_unique<Block>(shape_, capacity_));
  if (!isKept)
    blockInputs_.assign(shape_.layers, std::vector<float>(rows * width));
  tokenEmbedding_.resize(shape_.vocabulary * width);
  tokenGradient_.resize(shape_.vocabulary * width);
  positionEmbedding_.resize(shape_.context * width);
  finalGain_.resize(width);
  finalBias_.resize(width);
  size_t blockCount = 0;
  for (size_t i = 0; i < kBlockParameters; ++i)
    blockCount += specs_[kFirstBlock + i].count();
  blockWeights_.resize(blockCount);
  for (size_t i = 0, offset = 0; i < kBlockParameters; ++i) {
    blockPointers_.push_back(blockWeights_.data() + offset);
    offset += specs_[kFirstBlock + i].count();
  }
  for (auto* wide : {&residual_, &output_, &finalNorm_, &dx_})
    wide->resize(rows * width);
  mean_.resize(rows);
  inverse_.resize(rows);
  logits_.resize(rows * shape_.vocabulary);
}

void Model::readBlock(ParameterAccess& access, size_t block) {
  for (size_t i = 0, offset = 0; i < kBlockParameters; ++i) {
    access.read(blockParameter(block, static_cast<BlockParameter>(i)), blockWeights_.data() + offset);
    offset += specs_[kFirstBlock + i].count();
  }
}

// From residual_ to output_.
void Model::forwardBlock(size_t block) {
  if (activations_ == Activations::Kept) {
    blocks_[block]->forward(current_, blockPointers_.data(), residual_.data(), output_.data());
    return;
  }
  std::copy_n(residual_.data(), current_.rows() * shape_.width, blockInputs_[block].data());
  blocks_[0]->forward(current_, blockPointers_.data(), residual_.data(), output_.data());
}

// The block with its activations, for backward; its weights have been read.
Block& Model::restoredBlock(size_t block) {
  if (activations_ == Activations::Kept) {
    return *blocks_[block];
  }
  if (block + 1 < shape_.layers) {  // the last one's are still there
    blocks_[0]->forward(current_, blockPointers_.data(), blockInputs_[block].data(), output_.data());
  }
  return *blocks_[0];
}

void Model::embed() {
  const size_t width = shape_.width;
  for (size_t row = 0; row < current_.rows(); ++row) {
    const float* token = tokenEmbedding_.data() + inputs_[row] * width;
    const float* position = positionEmbedding_.data() + row % current_.length * width;
    float* target = residual_.data() + row * width;
    for (size_t i = 0; i < width; ++i)
      target[i] = token[i] + position[i];
  }
}

void Model::forward(ParameterAccess& access, const uint32_t* inputs, size_t sequences, size_t length) {
  current_ = {sequences, length, shape_.heads, shape_.width};
  const size_t rows = current_.rows(), width = shape_.width;
  inputs_.assign(inputs, inputs + rows);
  access.enter(0, Pass::Forward);
  access.read(kTokenEmbedding, tokenEmbedding_.data());
  access.read(kPositionEmbedding, positionEmbedding_.data());
  access.leave(0, Pass::Forward);
  embed();
  for (size_t block = 0; block < shape_.layers; ++block) {
    access.enter(block + 1, Pass::Forward);
    readBlock(access, block);
    forwardBlock(block);
    access.leave(block + 1, Pass::Forward);
    residual_.swap(output_);
  }
  const size_t last = shape_.layers + 1;
  access.enter(last, Pass::Forward);
  access.read(finalNormGain(shape_), finalGain_.data());
  access.read(finalNormBias(shape_), finalBias_.data());
  access.leave(last, Pass::Forward);
  kernels().layerNorm(residual_.data(), finalGain_.data(), finalBias_.data(), finalNorm_.data(), mean_.data(),
                      inverse_.data(), rows, width);
}

double Model::loss(ParameterAccess& access, const uint32_t* inputs, const uint32_t* targets, size_t sequences,
                   size_t length) {
  forward(access, inputs, sequences, length);
  const size_t rows = current_.rows(), width = shape_.width, vocabulary = shape_.vocabulary;
  multiplyByTransposed({finalNorm_.data(), rows, width, width},
                       {tokenEmbedding_.data(), vocabulary, width, width},
                       {logits_.data(), rows, vocabulary, vocabulary}, Target::Overwrite);
  return kernels().crossEntropy(logits_.data(), targets, rows, vocabulary);
}

const float* Model::predict(ParameterAccess& access, const uint32_t* inputs, size_t length) {
  forward(access, inputs, 1, length);
  const size_t width = shape_.width, vocabulary = shape_.vocabulary;
  multiplyByTransposed({finalNorm_.data() + (length - 1) * width, 1, width, width},
                       {tokenEmbedding_.data(), vocabulary, width, width},
                       {logits_.data(), 1, vocabulary, vocabulary}, Target::Overwrite);
  return logits_.data();
}

void Model::backward(ParameterAccess& access) {
  const size_t rows = current_.rows(), width = shape_.width, vocabulary = shape_.vocabulary;
  const size_t last = shape_.layers + 1;
  access.enter(0, Pass::Backward);
  access.read(kTokenEmbedding, tokenEmbedding_.data());
  ConstMatrix dlogits(logits_.data(), rows, vocabulary, vocabulary);
  multiplyTransposed(dlogits, {finalNorm_.data(), rows, width, width},
                     {tokenGradient_.data(), vocabulary, width, width}, Target::Overwrite);
  multiply(dlogits, {tokenEmbedding_.data(), vocabulary, width, width},
           {scratch_.narrow.data(), rows, width, width}, Target::Overwrite);

  access.enter(last, Pass::Backward);
  access.read(finalNormGain(shape_), finalGain_.data());
  std::fill(dx_.begin(), dx_.end(), 0.0f);
  kernels().layerNormBackward(scratch_.narrow.data(), residual_.data(), finalGain_.data(), mean_.data(),
                              inverse_.data(), dx_.data(), scratch_.gradient.data(), scratch_.second.data(),
                              rows, width);
  access.gradientReady(finalNormBias(shape_), scratch_.second.data());
  access.gradientReady(finalNormGain(shape_), scratch_.gradient.data());
  access.leave(last, Pass::Backward);

  for (size_t block = shape_.layers; block-- > 0;) {
    access.enter(block + 1, Pass::Backward);
    readBlock(access, block);
    restoredBlock(block).backward(current_, blockPointers_.data(), dx_.data(), scratch_,
                                  [&](BlockParameter which, const float* gradient) {
                                    access.gradientReady(blockParameter(block, which), gradient);
                                  });
    access.leave(block + 1, Pass::Backward);
  }
  backwardEmbedding(access, dx_.data());
  access.leave(0, Pass::Backward);
}

// The token embedding is one parameter with two uses: the rows looked up add to the head's gradient in
// fp32, before anything is rounded.
void Model::backwardEmbedding(ParameterAccess& access, const float* dx) {
  const size_t width = shape_.width;
  std::fill(positionEmbedding_.begin(), positionEmbedding_.end(), 0.0f);  // now its gradient
  for (size_t row = 0; row < current_.rows(); ++row) {
    const float* source = dx + row * width;
    kernels().add(source, positionEmbedding_.data() + row % current_.length * width, width);
    kernels().add(source, tokenGradient_.data() + inputs_[row] * width, width);
  }
  access.gradientReady(kPositionEmbedding, positionEmbedding_.data());
  access.gradientReady(kTokenEmbedding, tokenGradient_.data());
}

size_t Model::workspaceBytes() const {
  size_t floats = tokenEmbedding_.size() + tokenGradient_.size() + positionEmbedding_.size() +
                  blockWeights_.size() + residual_.size() + output_.size() + finalNorm_.size() +
                  mean_.size() + inverse_.size() + logits_.size() + dx_.size() + finalGain_.size() +
                  finalBias_.size() + scratch_.floats();
  for (const auto& block : blocks_)
    floats += block->floats();
  for (const auto& input : blockInputs_)
    floats += input.size();
  return floats * sizeof(float);
}

}  // namespace peal::train
