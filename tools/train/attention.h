// Causal multi-head attention between its two linear layers. Called by the block; knows no parameters.
#pragma once
#include <cstddef>

namespace peal::train {

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

// qkv: rows × 3 width (queries, keys, values); probabilities: probabilityCount(); out: rows × width.
void attentionForward(const AttentionShape& shape, const float* qkv, float* probabilities, float* out);

// dqkv is overwritten. scratch: length × length floats.
void attentionBackward(const AttentionShape& shape, const float* qkv, const float* probabilities,
                       const float* dout, float* dqkv, float* scratch);

}  // namespace peal::train
