// Matrix products by OpenBLAS on the calling thread. Called by what computes on the host only.
#pragma once
#include "tools/train/matrix.h"

namespace peal::train {

// c = a · b
void multiply(ConstMatrix a, ConstMatrix b, Matrix c, Target target);
// c = a · bᵀ
void multiplyByTransposed(ConstMatrix a, ConstMatrix b, Matrix c, Target target);
// c = aᵀ · b
void multiplyTransposed(ConstMatrix a, ConstMatrix b, Matrix c, Target target);

}  // namespace peal::train
