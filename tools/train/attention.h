// Causal multi-head attention between its two linear layers, on the host. Called by host_compute.cpp only;
// knows no parameters.
#pragma once
#include "tools/train/compute.h"

namespace peal::train {

// As the functions of Compute.
void attentionForward(const AttentionShape& shape, const float* qkv, float* probabilities, float* out);
void attentionBackward(const AttentionShape& shape, const float* qkv, const float* probabilities,
                       const float* dout, float* dqkv, float* scratch);

}  // namespace peal::train
