// Finds the kernels of passes.cu. They are declared here only: there nvcc would take them for host functions.
#include "lib/zero/cuda/kernels.h"

namespace peal::cuda {

void zeroPass(ZeroPassArgs);
void zeroSquares(ZeroSquaresArgs);

ZeroPassKernel zeroPassKernel() { return zeroPass; }
ZeroSquaresKernel zeroSquaresKernel() { return zeroSquares; }

}  // namespace peal::cuda
