// The loops of kernels.h for one instruction set; CMakeLists.txt sets the compiler flags of this file.
#define PEAL_TRAIN_KERNELS kBaselineKernels
#define PEAL_TRAIN_KERNELS_NAME "baseline"
#include "tools/train/kernels_loops.inc"
