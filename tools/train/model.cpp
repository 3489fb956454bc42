#include "tools/train/model.h"

namespace peal::train {

double parametersOf(const ModelShape& shape) {
  const auto width = static_cast<double>(shape.width);
  const double block = 12 * width * width + 13 * width;
  return static_cast<double>(shape.vocabulary + shape.context + 2) * width +
         static_cast<double>(shape.layers) * block;
}

double workspaceBytesFor(const ModelShape& shape, size_t sequences, Activations activations,
                         ComputeDevice device) {
  const auto width = static_cast<double>(shape.width), context = static_cast<double>(shape.context);
  const auto vocabulary = static_cast<double>(shape.vocabulary), layers = static_cast<double>(shape.layers);
  const double rows = static_cast<double>(sequences) * context;
  const double probabilities = rows * context * static_cast<double>(shape.heads);
  const double block = rows * (16 * width + 4) + probabilities;
  const double blocks = activations == Activations::Kept ? layers * block : block + layers * rows * width;
  const double scores =
      (device == ComputeDevice::Host ? 1 : static_cast<double>(shape.heads)) * context * context;
  const double scratch = rows * 8 * width + scores + 4 * width * width + width;
  const double widened = 12 * width * width + 13 * width + (2 * vocabulary + context + 2) * width;
  const double model = rows * (4 * width + 2 + vocabulary);
  return (blocks + scratch + widened + model) * sizeof(float);
}

Model::Model(const ModelShape& shape, size_t sequences, Activations activations, Compute& compute)
    : shape_(shape),
      specs_(parameterSpecs(shape)),
      compute_(compute),
      activations_(activations),
      scratch_(compute, {sequences, shape.context, shape.heads, shape.width}),
      predicted_(shape.vocabulary) {
  const AttentionShape room{sequences, shape_.context, shape_.heads, shape_.width};
  const size_t rows = room.rows(), width = shape_.width;
  const bool isKept = activations_ == Activations::Kept;
  for (size_t i = 0; i < (isKept ? shape_.layers : 1); ++i)
    blocks_.push_back(std::make_unique<Block>(compute_, room));
  for (size_t i = 0; i < (isKept ? 0 : shape_.layers); ++i)
    blockInputs_.emplace_back(compute_, rows * width);
  tokenEmbedding_ = Floats(compute_, shape_.vocabulary * width);
  tokenGradient_ = Floats(compute_, shape_.vocabulary * width);
  positionEmbedding_ = Floats(compute_, shape_.context * width);
  finalGain_ = Floats(compute_, width);
  finalBias_ = Floats(compute_, width);
  size_t blockCount = 0;
  for (size_t i = 0; i < kBlockParameters; ++i)
    blockCount += specs_[kFirstBlock + i].count();
  blockWeights_ = Floats(compute_, blockCount);
  for (size_t i = 0, offset = 0; i < kBlockParameters; ++i) {
    blockPointers_.push_back(blockWeights_.data() + offset);
    offset += specs_[kFirstBlock + i].count();
  }
  for (auto* wide : {&residual_, &output_, &finalNorm_, &dx_})
    *wide = Floats(compute_, rows * width);
  mean_ = Floats(compute_, rows);
  inverse_ = Floats(compute_, rows);
  logits_ = Floats(compute_, rows * shape_.vocabulary);
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
  compute_.copy(residual_.data(), blockInputs_[block].data(), current_.rows() * shape_.width);
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

void Model::forward(ParameterAccess& access, const uint32_t* inputs, size_t sequences, size_t length) {
  current_ = {sequences, length, shape_.heads, shape_.width};
  const size_t rows = current_.rows(), width = shape_.width;
  inputs_.assign(inputs, inputs + rows);
  access.enter(0, Pass::Forward);
  access.read(kTokenEmbedding, tokenEmbedding_.data());
  access.read(kPositionEmbedding, positionEmbedding_.data());
  access.leave(0, Pass::Forward);
  compute_.embed(inputRows(), tokenEmbedding_.data(), positionEmbedding_.data(), residual_.data(), width);
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
  compute_.layerNorm(residual_.data(), finalGain_.data(), finalBias_.data(), finalNorm_.data(), mean_.data(),
                     inverse_.data(), rows, width);
}

double Model::loss(ParameterAccess& access, const uint32_t* inputs, const uint32_t* targets, size_t sequences,
                   size_t length) {
  forward(access, inputs, sequences, length);
  const size_t rows = current_.rows(), width = shape_.width, vocabulary = shape_.vocabulary;
  compute_.multiplyByTransposed({finalNorm_.data(), rows, width, width},
                                {tokenEmbedding_.data(), vocabulary, width, width},
                                {logits_.data(), rows, vocabulary, vocabulary}, Target::Overwrite);
  return compute_.crossEntropy(logits_.data(), targets, rows, vocabulary);
}

const float* Model::predict(ParameterAccess& access, const uint32_t* inputs, size_t length) {
  forward(access, inputs, 1, length);
  const size_t width = shape_.width, vocabulary = shape_.vocabulary;
  compute_.multiplyByTransposed({finalNorm_.data() + (length - 1) * width, 1, width, width},
                                {tokenEmbedding_.data(), vocabulary, width, width},
                                {logits_.data(), 1, vocabulary, vocabulary}, Target::Overwrite);
  compute_.download(logits_.data(), predicted_.data(), vocabulary);
  return predicted_.data();
}

void Model::backward(ParameterAccess& access) {
  const size_t rows = current_.rows(), width = shape_.width, vocabulary = shape_.vocabulary;
  const size_t last = shape_.layers + 1;
  access.enter(0, Pass::Backward);
  access.read(kTokenEmbedding, tokenEmbedding_.data());
  ConstMatrix dlogits(logits_.data(), rows, vocabulary, vocabulary);
  compute_.multiplyTransposed(dlogits, {finalNorm_.data(), rows, width, width},
                              {tokenGradient_.data(), vocabulary, width, width}, Target::Overwrite);
  compute_.multiply(dlogits, {tokenEmbedding_.data(), vocabulary, width, width},
                    {scratch_.narrow.data(), rows, width, width}, Target::Overwrite);

  access.enter(last, Pass::Backward);
  access.read(finalNormGain(shape_), finalGain_.data());
  compute_.clear(dx_.data(), dx_.size());
  compute_.layerNormBackward(scratch_.narrow.data(), residual_.data(), finalGain_.data(), mean_.data(),
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
  compute_.clear(positionEmbedding_.data(), positionEmbedding_.size());  // now its gradient
  compute_.embedBackward(inputRows(), dx, tokenGradient_.data(), positionEmbedding_.data(), width);
  access.gradientReady(kPositionEmbedding, positionEmbedding_.data());
  access.gradientReady(kTokenEmbedding, tokenGradient_.data());
}

std::vector<const Floats*> Model::arrays() const {
  std::vector<const Floats*> all = {
      &tokenEmbedding_, &tokenGradient_, &positionEmbedding_, &blockWeights_, &residual_, &output_,
      &finalNorm_,      &mean_,          &inverse_,           &logits_,       &dx_,       &finalGain_,
      &finalBias_};
  for (const Floats& input : blockInputs_)
    all.push_back(&input);
  return all;
}

size_t Model::workspaceBytes() const {
  size_t floats = scratch_.floats();
  for (const Floats* array : arrays())
    floats += array->size();
  for (const auto& block : blocks_)
    floats += block->floats();
  return floats * sizeof(float);
}

}  // namespace peal::train
