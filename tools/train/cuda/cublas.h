// cuBLAS, opened when it is first needed instead of linked: peal-train then starts on machines that have
// none, and takes that of CUDA 12 or 13. Products of row-major matrices on one stream of the current device.
//
// Called by compute.cpp. Throws ToolError with the call, its operands' sizes and cuBLAS's own words.
#pragma once
#include <string>

#include "tools/train/matrix.h"

struct CUstream_st;

namespace peal::train {

struct CublasFunctions;

enum class Transposed { Neither, A, B };

// `count` products at once: from one to the next so many floats.
struct Strides {
  size_t count, a, b, c;
};

class Cublas {
 public:
  // library: a path, or a name as the dynamic linker knows it; empty: the usual ones. Throws ToolError with
  // what was tried. workspace: memory of the device, the caller's; with one of its own a handle gives the
  // same bits every time.
  Cublas(const std::string& library, CUstream_st* stream, void* workspace, size_t workspaceBytes);
  Cublas(const Cublas&) = delete;
  Cublas& operator=(const Cublas&) = delete;
  ~Cublas();

  std::string name() const;  // "cuBLAS 13.0.2 (libcublas.so.13)"

  // c = a · b, aᵀ · b or a · bᵀ. inner: what they have in common, at least 1.
  void multiply(Transposed transposed, ConstMatrix a, ConstMatrix b, Matrix c, size_t inner, Target target);
  // The same of `strides.count` matrices each, of which a, b and c are the first.
  void multiplyMany(Transposed transposed, ConstMatrix a, ConstMatrix b, Matrix c, size_t inner,
                    Target target, Strides strides);
  // sums = the rows of a, at least one, added up. ones: a.rows floats, each 1.
  void sumRows(ConstMatrix a, const float* ones, float* sums);

 private:
  void check(int status, const char* call, ConstMatrix a, Matrix c) const;

  const CublasFunctions& functions_;
  void* handle_ = nullptr;
};

}  // namespace peal::train
