// What peal-train calls of cuBLAS, as kernels of the simulator: a thread for each element of the result,
// which adds its terms up in their order. A library of its own, opened as the real one is (--cublas FILE).
// Its symbols of the simulated runtime are the program's that opens it.
#include <cuda_runtime.h>

#include "lib/executor/cuda/device.h"

namespace {

using namespace peal::cuda;  // NOLINT(google-build-using-namespace): device.h, a kernel's only vocabulary

// Column-major.
struct Operand {
  const float* data;
  int64_t stride;
  int64_t toNext;  // matrix
  int isTransposed;
  float at(int64_t matrix, int64_t row, int64_t column) const {
    const int64_t i = isTransposed != 0 ? column + row * stride : row + column * stride;
    return loadGlobal(data + matrix * toNext + i);
  }
};

struct ProductArgs {
  Operand a, b;
  float* c;
  int64_t stride, toNext;
  int64_t rows, columns, inner, count;
  float alpha, beta;
};

void fakeProduct(ProductArgs args) {
  const int64_t elements = args.rows * args.columns;
  const int64_t threads = int64_t{gridBlocks()} * blockThreads();
  for (int64_t i = int64_t{blockIndex()} * blockThreads() + threadIndex(); i < elements * args.count;
       i += threads) {
    const int64_t matrix = i / elements, row = i % elements % args.rows, column = i % elements / args.rows;
    float sum = 0;
    for (int64_t k = 0; k < args.inner; ++k) {
      sum = sum + args.a.at(matrix, row, k) * args.b.at(matrix, k, column);
    }
    float* const target = args.c + matrix * args.toNext + row + column * args.stride;
    // What it overwrites it does not read: that may be NaN.
    storeGlobal(target,
                args.beta == 0 ? args.alpha * sum : args.alpha * sum + args.beta * loadGlobal(target));
  }
}

struct Handle {
  cudaStream_t stream = nullptr;
};

constexpr int kSuccess = 0, kNotInitialized = 1, kInvalidValue = 7, kExecutionFailed = 13;

int launch(void* handle, ProductArgs args) {
  if (handle == nullptr) {
    return kNotInitialized;
  }
  if (args.rows <= 0 || args.columns <= 0 || args.inner <= 0 || args.count <= 0 || args.stride < args.rows) {
    return kInvalidValue;
  }
  const int64_t threads = 64, elements = args.rows * args.columns * args.count;
  void* pointers[] = {&args};
  const cudaError_t launched = cudaLaunchKernel(
      fakeProduct, dim3(static_cast<unsigned>((elements + threads - 1) / threads)),
      dim3(static_cast<unsigned>(threads)), pointers, 0, static_cast<Handle*>(handle)->stream);
  return launched == cudaSuccess ? kSuccess : kExecutionFailed;
}

}  // namespace

extern "C" {

int cublasCreate_v2(void** handle) {
  *handle = new Handle;
  return kSuccess;
}
int cublasDestroy_v2(void* handle) {
  delete static_cast<Handle*>(handle);
  return kSuccess;
}
int cublasGetVersion_v2(void*, int* version) {
  *version = 130002;
  return kSuccess;
}
int cublasSetStream_v2(void* handle, cudaStream_t stream) {
  static_cast<Handle*>(handle)->stream = stream;
  return kSuccess;
}
int cublasSetWorkspace_v2(void*, void* workspace, size_t bytes) {
  return workspace != nullptr && bytes > 0 ? kSuccess : kInvalidValue;
}
const char* cublasGetStatusString(int status) {
  switch (status) {
    case kInvalidValue:
      return "an invalid value was passed";
    case kExecutionFailed:
      return "the kernel was not launched";
    default:
      return "not initialized";
  }
}
int cublasSgemv_v2(void* handle, int transposed, int m, int n, const float* alpha, const float* a, int lda,
                   const float* x, int incx, const float* beta, float* y, int incy) {
  if (incx != 1 || incy != 1) {
    return kInvalidValue;
  }
  const int64_t rows = transposed != 0 ? n : m, inner = transposed != 0 ? m : n;
  return launch(handle,
                {{a, lda, 0, transposed}, {x, inner, 0, 0}, y, rows, 0, rows, 1, inner, 1, *alpha, *beta});
}
int cublasSgemmStridedBatched(void* handle, int transposedA, int transposedB, int m, int n, int k,
                              const float* alpha, const float* a, int lda, long long strideA, const float* b,
                              int ldb, long long strideB, const float* beta, float* c, int ldc,
                              long long strideC, int count) {
  if (lda < (transposedA != 0 ? k : m) || ldb < (transposedB != 0 ? n : k)) {
    return kInvalidValue;
  }
  return launch(handle, {{a, lda, strideA, transposedA},
                         {b, ldb, strideB, transposedB},
                         c,
                         ldc,
                         strideC,
                         m,
                         n,
                         k,
                         count,
                         *alpha,
                         *beta});
}
int cublasSgemm_v2(void* handle, int transposedA, int transposedB, int m, int n, int k, const float* alpha,
                   const float* a, int lda, const float* b, int ldb, const float* beta, float* c, int ldc) {
  return cublasSgemmStridedBatched(handle, transposedA, transposedB, m, n, k, alpha, a, lda, 0, b, ldb, 0,
                                   beta, c, ldc, 0, 1);
}

}  // extern "C"
