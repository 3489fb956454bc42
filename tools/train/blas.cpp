#include "tools/train/blas.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <cstdlib>

#include "tools/common/error.h"

namespace peal::train {
namespace {

constexpr const char* kLibrary = "libopenblas.so.0";

const char* kernelsForProcessor() {
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl")) {
    return "SkylakeX";
  }
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") ? "Haswell" : nullptr;
}

void* symbol(void* library, const char* name) {
  void* found = dlsym(library, name);
  if (found == nullptr) {
    throw tools::ToolError(fmt::format("{} has no {}: {}", kLibrary, name, dlerror()));
  }
  return found;
}

Blas load() {
  constexpr int kReplace = 1, kKeep = 0;
  setenv("OPENBLAS_NUM_THREADS", "1", kReplace);
  if (const char* kernels = kernelsForProcessor()) {
    setenv("OPENBLAS_CORETYPE", kernels, kKeep);
  }
  void* library = dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    throw tools::ToolError(
        fmt::format("cannot load OpenBLAS: {}. Install Debian's package libopenblas0", dlerror()));
  }
  const auto name =
      reinterpret_cast<decltype(&openblas_get_corename)>(symbol(library, "openblas_get_corename"));
  return {reinterpret_cast<decltype(&cblas_sgemm)>(symbol(library, "cblas_sgemm")), name()};
}

}  // namespace

const Blas& blas() {
  static const Blas loaded = load();
  return loaded;
}

}  // namespace peal::train
