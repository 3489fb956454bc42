// Finds the kernels of kernels.cu. They are declared here only: there nvcc would take them for host
// functions.
#include "tools/train/cuda/kernels.h"

namespace peal::train {

void trainWiden(WidenArgs);
void trainNarrow(NarrowArgs);
void trainGelu(GeluArgs);
void trainPositionGradient(PositionGradientArgs);
void trainLayerNorm(LayerNormArgs);
void trainLayerNormBackward(LayerNormBackwardArgs);
void trainSoftmax(SoftmaxArgs);
void trainCrossEntropy(CrossEntropyArgs);
void trainAddBias(AddBiasArgs);
void trainEmbed(EmbedArgs);
void trainTokenGradient(TokenGradientArgs);

void (*widenKernel())(WidenArgs) { return trainWiden; }
void (*narrowKernel())(NarrowArgs) { return trainNarrow; }
void (*geluKernel())(GeluArgs) { return trainGelu; }
void (*positionGradientKernel())(PositionGradientArgs) { return trainPositionGradient; }
void (*layerNormKernel())(LayerNormArgs) { return trainLayerNorm; }
void (*layerNormBackwardKernel())(LayerNormBackwardArgs) { return trainLayerNormBackward; }
void (*softmaxKernel())(SoftmaxArgs) { return trainSoftmax; }
void (*crossEntropyKernel())(CrossEntropyArgs) { return trainCrossEntropy; }
void (*addBiasKernel())(AddBiasArgs) { return trainAddBias; }
void (*embedKernel())(EmbedArgs) { return trainEmbed; }
void (*tokenGradientKernel())(TokenGradientArgs) { return trainTokenGradient; }

}  // namespace peal::train
