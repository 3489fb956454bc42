#include "tools/train/cuda/cublas.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <map>
#include <vector>

#include "tools/common/error.h"

namespace peal::train {

// As cublas_api.h of CUDA 12 and 13 declares them; enums are ints, a handle is a pointer.
struct CublasFunctions {
  std::string library;
  int (*create)(void** handle);
  int (*destroy)(void* handle);
  int (*getVersion)(void* handle, int* version);
  int (*setStream)(void* handle, CUstream_st* stream);
  int (*setWorkspace)(void* handle, void* workspace, size_t bytes);
  const char* (*statusString)(int status);
  int (*sgemv)(void* handle, int transposed, int m, int n, const float* alpha, const float* a, int lda,
               const float* x, int incx, const float* beta, float* y, int incy);
  int (*sgemm)(void* handle, int transposedA, int transposedB, int m, int n, int k, const float* alpha,
               const float* a, int lda, const float* b, int ldb, const float* beta, float* c, int ldc);
  int (*sgemmMany)(void* handle, int transposedA, int transposedB, int m, int n, int k, const float* alpha,
                   const float* a, int lda, long long strideA, const float* b, int ldb, long long strideB,
                   const float* beta, float* c, int ldc, long long strideC, int count);
};

namespace {

constexpr int kSuccess = 0, kAsItIs = 0, kTransposed = 1;  // CUBLAS_STATUS_SUCCESS, CUBLAS_OP_N, CUBLAS_OP_T
constexpr float kOne = 1, kZero = 0;

// Where the toolkit and the distributions put it.
constexpr const char* kUsual[] = {"libcublas.so.13", "libcublas.so.12",
                                  "/usr/local/cuda/lib64/libcublas.so.13",
                                  "/usr/local/cuda/lib64/libcublas.so.12"};

template <class Function>
void find(void* library, const char* name, const std::string& path, Function& function) {
  function = reinterpret_cast<Function>(dlsym(library, name));
  if (function == nullptr) {
    throw tools::ToolError(
        fmt::format("{} is no cuBLAS that peal-train can use: it has no {}. Give that of CUDA 12 or 13 with "
                    "--cublas FILE",
                    path, name));
  }
}

CublasFunctions open(const std::string& wanted) {
  const std::vector<std::string> paths =
      wanted.empty() ? std::vector<std::string>(std::begin(kUsual), std::end(kUsual)) : std::vector{wanted};
  std::string tried;
  for (const std::string& path : paths) {
    void* const library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) {
      tried += fmt::format("{}{}", tried.empty() ? "" : "; ", dlerror());
      continue;
    }
    CublasFunctions found{};
    found.library = path;
    find(library, "cublasCreate_v2", path, found.create);
    find(library, "cublasDestroy_v2", path, found.destroy);
    find(library, "cublasGetVersion_v2", path, found.getVersion);
    find(library, "cublasSetStream_v2", path, found.setStream);
    find(library, "cublasSetWorkspace_v2", path, found.setWorkspace);
    find(library, "cublasGetStatusString", path, found.statusString);
    find(library, "cublasSgemv_v2", path, found.sgemv);
    find(library, "cublasSgemm_v2", path, found.sgemm);
    find(library, "cublasSgemmStridedBatched", path, found.sgemmMany);
    return found;
  }
  throw tools::ToolError(
      fmt::format("--device cuda computes its matrix products with cuBLAS, and none could be opened. Tried: "
                  "{}. Install the "
                  "CUDA toolkit's libcublas (Debian: libcublas12; NVIDIA's repository: libcublas-13-0; pip: "
                  "nvidia-cublas), "
                  "and give its path with --cublas FILE if the dynamic linker does not know it",
                  tried));
}

// Each library is opened once and stays: the driver may still hold what it registered.
const CublasFunctions& functionsOf(const std::string& library) {
  static std::map<std::string, CublasFunctions> opened;
  const auto found = opened.find(library);
  return found != opened.end() ? found->second : opened.emplace(library, open(library)).first->second;
}

}  // namespace

Cublas::Cublas(const std::string& library, CUstream_st* stream, void* workspace, size_t workspaceBytes)
    : functions_(functionsOf(library)) {
  const auto need = [&](int status, const char* call) {
    if (status != kSuccess) {
      if (handle_ != nullptr) {
        functions_.destroy(handle_);
      }
      throw tools::ToolError(
          fmt::format("{} of {}: {}", call, functions_.library, functions_.statusString(status)));
    }
  };
  need(functions_.create(&handle_), "cublasCreate");
  need(functions_.setStream(handle_, stream), "cublasSetStream");
  need(functions_.setWorkspace(handle_, workspace, workspaceBytes), "cublasSetWorkspace");
}

Cublas::~Cublas() { functions_.destroy(handle_); }

std::string Cublas::name() const {
  int version = 0;
  functions_.getVersion(handle_, &version);
  // 130002 is 13.0.2
  return fmt::format("cuBLAS {}.{}.{} ({})", version / 10000, version / 100 % 100, version % 100,
                     functions_.library);
}

void Cublas::check(int status, const char* call, ConstMatrix a, Matrix c) const {
  if (status != kSuccess) {
    throw tools::ToolError(fmt::format("{} from {} x {} floats to {} x {}: {}", call, a.rows, a.columns,
                                       c.rows, c.columns, functions_.statusString(status)));
  }
}

// cuBLAS's matrices are column-major: what it sees are the transposed ones, and cᵀ = bᵀ · aᵀ.
void Cublas::multiply(Transposed transposed, ConstMatrix a, ConstMatrix b, Matrix c, size_t inner,
                      Target target) {
  const int status =
      functions_.sgemm(handle_, transposed == Transposed::B ? kTransposed : kAsItIs,
                       transposed == Transposed::A ? kTransposed : kAsItIs, static_cast<int>(c.columns),
                       static_cast<int>(c.rows), static_cast<int>(inner), &kOne, b.data,
                       static_cast<int>(b.stride), a.data, static_cast<int>(a.stride),
                       target == Target::Accumulate ? &kOne : &kZero, c.data, static_cast<int>(c.stride));
  check(status, "cublasSgemm", a, c);
}

void Cublas::multiplyMany(Transposed transposed, ConstMatrix a, ConstMatrix b, Matrix c, size_t inner,
                          Target target, Strides strides) {
  const int status = functions_.sgemmMany(
      handle_, transposed == Transposed::B ? kTransposed : kAsItIs,
      transposed == Transposed::A ? kTransposed : kAsItIs, static_cast<int>(c.columns),
      static_cast<int>(c.rows), static_cast<int>(inner), &kOne, b.data, static_cast<int>(b.stride),
      static_cast<long long>(strides.b), a.data, static_cast<int>(a.stride),
      static_cast<long long>(strides.a), target == Target::Accumulate ? &kOne : &kZero, c.data,
      static_cast<int>(c.stride), static_cast<long long>(strides.c), static_cast<int>(strides.count));
  check(status, "cublasSgemmStridedBatched", a, c);
}

void Cublas::sumRows(ConstMatrix a, const float* ones, float* sums) {
  const int status = functions_.sgemv(handle_, kAsItIs, static_cast<int>(a.columns), static_cast<int>(a.rows),
                                      &kOne, a.data, static_cast<int>(a.stride), ones, 1, &kZero, sums, 1);
  check(status, "cublasSgemv", a, {sums, 1, a.columns, a.columns});
}

}  // namespace peal::train
