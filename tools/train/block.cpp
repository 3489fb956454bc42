#include "tools/train/block.h"

namespace peal::train {
namespace {

struct Linear {
  size_t rows, inputs, outputs;
};

// y = x · weightᵀ + bias (+ base)
void linearForward(Compute& compute, Linear shape, const float* x, const float* weight, const float* bias,
                   const float* base, float* y) {
  compute.addBias(base, bias, y, shape.rows, shape.outputs);
  compute.multiplyByTransposed({x, shape.rows, shape.inputs, shape.inputs},
                               {weight, shape.outputs, shape.inputs, shape.inputs},
                               {y, shape.rows, shape.outputs, shape.outputs}, Target::Accumulate);
}

void linearWeightGradient(Compute& compute, Linear shape, const float* x, const float* dy, float* gradient) {
  compute.multiplyTransposed({dy, shape.rows, shape.outputs, shape.outputs},
                             {x, shape.rows, shape.inputs, shape.inputs},
                             {gradient, shape.outputs, shape.inputs, shape.inputs}, Target::Overwrite);
}

void linearInputGradient(Compute& compute, Linear shape, const float* dy, const float* weight, float* dx) {
  compute.multiply({dy, shape.rows, shape.outputs, shape.outputs},
                   {weight, shape.outputs, shape.inputs, shape.inputs},
                   {dx, shape.rows, shape.inputs, shape.inputs}, Target::Overwrite);
}

}  // namespace

BlockScratch::BlockScratch(Compute& compute, const AttentionShape& shape)
    : hidden(compute, shape.rows() * 4 * shape.width),
      qkv(compute, shape.rows() * 3 * shape.width),
      narrow(compute, shape.rows() * shape.width),
      scores(compute, attentionScratchCount(compute.device(), shape)),
      gradient(compute, 4 * shape.width * shape.width),
      second(compute, shape.width) {}

size_t BlockScratch::floats() const {
  return hidden.size() + qkv.size() + narrow.size() + scores.size() + gradient.size() + second.size();
}

Block::Block(Compute& compute, const AttentionShape& shape) : compute_(compute) {
  const size_t rows = shape.rows(), width = shape.width;
  for (auto* wide : {&input_, &norm1_, &attended_, &middle_, &norm2_})
    *wide = Floats(compute, rows * width);
  for (auto* perRow : {&mean1_, &inverse1_, &mean2_, &inverse2_})
    *perRow = Floats(compute, rows);
  qkv_ = Floats(compute, rows * 3 * width);
  probabilities_ = Floats(compute, shape.probabilityCount());
  expanded_ = Floats(compute, rows * 4 * width);
  activated_ = Floats(compute, rows * 4 * width);
}

size_t Block::floats() const {
  size_t sum = 0;
  for (const auto* part : {&input_, &mean1_, &inverse1_, &norm1_, &qkv_, &probabilities_, &attended_,
                           &middle_, &mean2_, &inverse2_, &norm2_, &expanded_, &activated_}) {
    sum += part->size();
  }
  return sum;
}

void Block::forward(const AttentionShape& shape, const float* const* weights, const float* x, float* out) {
  const size_t rows = shape.rows(), width = shape.width;
  compute_.copy(x, input_.data(), rows * width);
  compute_.layerNorm(x, weights[Norm1Gain], weights[Norm1Bias], norm1_.data(), mean1_.data(),
                     inverse1_.data(), rows, width);
  linearForward(compute_, {rows, width, 3 * width}, norm1_.data(), weights[QkvWeight], weights[QkvBias],
                nullptr, qkv_.data());
  compute_.attentionForward(shape, qkv_.data(), probabilities_.data(), attended_.data());
  linearForward(compute_, {rows, width, width}, attended_.data(), weights[ProjectWeight],
                weights[ProjectBias], input_.data(), middle_.data());
  compute_.layerNorm(middle_.data(), weights[Norm2Gain], weights[Norm2Bias], norm2_.data(), mean2_.data(),
                     inverse2_.data(), rows, width);
  linearForward(compute_, {rows, width, 4 * width}, norm2_.data(), weights[ExpandWeight], weights[ExpandBias],
                nullptr, expanded_.data());
  compute_.gelu(expanded_.data(), activated_.data(), rows * 4 * width);
  linearForward(compute_, {rows, 4 * width, width}, activated_.data(), weights[ContractWeight],
                weights[ContractBias], middle_.data(), out);
}

void Block::backwardMlp(size_t rows, size_t width, const float* const* weights, float* dx,
                        BlockScratch& scratch, const BlockGradient& ready) {
  const Linear contract{rows, 4 * width, width}, expand{rows, width, 4 * width};
  float* gradient = scratch.gradient.data();
  compute_.sumRows(dx, gradient, rows, width);
  ready(ContractBias, gradient);
  linearWeightGradient(compute_, contract, activated_.data(), dx, gradient);
  ready(ContractWeight, gradient);
  linearInputGradient(compute_, contract, dx, weights[ContractWeight], scratch.hidden.data());
  compute_.geluBackward(expanded_.data(), scratch.hidden.data(), rows * 4 * width);
  compute_.sumRows(scratch.hidden.data(), gradient, rows, 4 * width);
  ready(ExpandBias, gradient);
  linearWeightGradient(compute_, expand, norm2_.data(), scratch.hidden.data(), gradient);
  ready(ExpandWeight, gradient);
  linearInputGradient(compute_, expand, scratch.hidden.data(), weights[ExpandWeight], scratch.narrow.data());
  compute_.layerNormBackward(scratch.narrow.data(), middle_.data(), weights[Norm2Gain], mean2_.data(),
                             inverse2_.data(), dx, gradient, scratch.second.data(), rows, width);
  ready(Norm2Bias, scratch.second.data());
  ready(Norm2Gain, gradient);
}

void Block::backward(const AttentionShape& shape, const float* const* weights, float* dx,
                     BlockScratch& scratch, const BlockGradient& ready) {
  const size_t rows = shape.rows(), width = shape.width;
  const Linear project{rows, width, width}, qkv{rows, width, 3 * width};
  float* gradient = scratch.gradient.data();
  backwardMlp(rows, width, weights, dx, scratch, ready);
  compute_.sumRows(dx, gradient, rows, width);
  ready(ProjectBias, gradient);
  linearWeightGradient(compute_, project, attended_.data(), dx, gradient);
  ready(ProjectWeight, gradient);
  linearInputGradient(compute_, project, dx, weights[ProjectWeight], scratch.narrow.data());
  compute_.attentionBackward(shape, qkv_.data(), probabilities_.data(), scratch.narrow.data(),
                             scratch.qkv.data(), scratch.scores.data());
  compute_.sumRows(scratch.qkv.data(), gradient, rows, 3 * width);
  ready(QkvBias, gradient);
  linearWeightGradient(compute_, qkv, norm1_.data(), scratch.qkv.data(), gradient);
  ready(QkvWeight, gradient);
  linearInputGradient(compute_, qkv, scratch.qkv.data(), weights[QkvWeight], scratch.narrow.data());
  compute_.layerNormBackward(scratch.narrow.data(), input_.data(), weights[Norm1Gain], mean1_.data(),
                             inverse1_.data(), dx, gradient, scratch.second.data(), rows, width);
  ready(Norm1Bias, scratch.second.data());
  ready(Norm1Gain, gradient);
}

}  // namespace peal::train
