// The model's kernels, as host code finds them for cudaLaunchKernel. Each gives the bits of the host's loop
// of its name (tools/train/kernels.h) whatever the number of blocks, which need not be resident together.
//
// Called by compute.cpp; defined in kernels.cu. Pointers are to memory of the device.
#pragma once
#include <cstdint>

namespace peal::train {

constexpr unsigned kTrainThreads = 128;  // of a block, at most; a multiple of 32
constexpr unsigned kTrainRowLanes = 16;  // threads that work on a row together

struct WidenArgs {
  const uint16_t* from;
  float* to;
  uint64_t count;
};
struct NarrowArgs {
  const float* from;
  uint16_t* to;
  uint64_t count;
};
// base may be null, or y.
struct AddBiasArgs {
  const float* base;
  const float* bias;
  float* y;
  uint64_t rows, width;
};
// y: what gelu gives, or the gradient that it changes.
struct GeluArgs {
  const float* x;
  float* y;
  uint64_t count;
  int isBackward;
};
struct LayerNormArgs {
  const float* x;
  const float* gain;
  const float* bias;
  float* y;
  float* mean;
  float* inverse;
  uint64_t rows, width;
};
// dy becomes the terms of the gain's gradient, whose rows are yet to be added up.
struct LayerNormBackwardArgs {
  float* dy;
  const float* x;
  const float* gain;
  const float* mean;
  const float* inverse;
  float* dx;
  uint64_t rows, width;
};
// `matrices` causal score matrices of length × length, one after the other. probabilities null: scores become
// probabilities. Else scores are the gradients of these and become those of the scores.
struct SoftmaxArgs {
  float* scores;
  const float* probabilities;
  uint64_t matrices, length;
  float scale;
};
// A row's loss is log(totals) - chosen.
struct CrossEntropyArgs {
  float* logits;
  const uint32_t* targets;
  float* totals;
  float* chosen;
  uint64_t rows, width;
};
struct EmbedArgs {
  const uint32_t* ids;
  const float* tokens;
  const float* positions;
  float* out;
  uint64_t rows, length, width;
};
struct PositionGradientArgs {
  const float* dx;
  float* gradient;
  uint64_t sequences, length, width;
};
// The rows of each token that occurs: rowOrder[first] to rowOrder[end - 1], ascending.
struct TokenRun {
  uint32_t id, first, end;
};
struct TokenGradientArgs {
  const float* dx;
  const uint32_t* rowOrder;
  const TokenRun* runs;
  float* gradient;
  uint64_t runCount, width;
};

// One thread or more an element.
void (*widenKernel())(WidenArgs);
void (*narrowKernel())(NarrowArgs);
void (*geluKernel())(GeluArgs);
void (*positionGradientKernel())(PositionGradientArgs);
// kTrainRowLanes threads a row.
void (*layerNormKernel())(LayerNormArgs);
void (*layerNormBackwardKernel())(LayerNormBackwardArgs);
void (*softmaxKernel())(SoftmaxArgs);
void (*crossEntropyKernel())(CrossEntropyArgs);
// A block a row, or a token that occurs.
void (*addBiasKernel())(AddBiasArgs);
void (*embedKernel())(EmbedArgs);
void (*tokenGradientKernel())(TokenGradientArgs);

}  // namespace peal::train
