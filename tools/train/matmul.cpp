#include "tools/train/matmul.h"

#include "tools/train/blas.h"

namespace peal::train {
namespace {

void gemm(CBLAS_TRANSPOSE transposeA, CBLAS_TRANSPOSE transposeB, ConstMatrix a, ConstMatrix b, Matrix c,
          size_t inner, Target target) {
  blas().sgemm(CblasRowMajor, transposeA, transposeB, static_cast<blasint>(c.rows),
               static_cast<blasint>(c.columns), static_cast<blasint>(inner), 1.0f, a.data,
               static_cast<blasint>(a.stride), b.data, static_cast<blasint>(b.stride),
               target == Target::Accumulate ? 1.0f : 0.0f, c.data, static_cast<blasint>(c.stride));
}

}  // namespace

void multiply(ConstMatrix a, ConstMatrix b, Matrix c, Target target) {
  gemm(CblasNoTrans, CblasNoTrans, a, b, c, a.columns, target);
}

void multiplyByTransposed(ConstMatrix a, ConstMatrix b, Matrix c, Target target) {
  gemm(CblasNoTrans, CblasTrans, a, b, c, a.columns, target);
}

void multiplyTransposed(ConstMatrix a, ConstMatrix b, Matrix c, Target target) {
  gemm(CblasTrans, CblasNoTrans, a, b, c, a.rows, target);
}

}  // namespace peal::train
