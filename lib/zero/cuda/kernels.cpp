// Finds the kernels of passes.cu, squares.cu and update.cu. They are declared here only: there nvcc would
// take them for host functions.
#include "lib/zero/cuda/kernels.h"

namespace peal::cuda {

void zeroPass(ZeroPassArgs);
void zeroSquares(ZeroSquaresArgs);
void zeroWideSquares(ZeroSquaresArgs);
void zeroUpdate(ZeroUpdateArgs);

ZeroPassKernel zeroPassKernel() { return zeroPass; }
ZeroSquaresKernel zeroSquaresKernel() { return zeroSquares; }
ZeroSquaresKernel zeroWideSquaresKernel() { return zeroWideSquares; }
ZeroUpdateKernel zeroUpdateKernel() { return zeroUpdate; }

}  // namespace peal::cuda
