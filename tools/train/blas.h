// OpenBLAS, loaded when it is first needed instead of linked: it chooses its kernels and starts its threads
// while it is being loaded, and peal-train wants both otherwise. Called by matmul.cpp and the report.
#pragma once
#include <cblas.h>

#include <string>

namespace peal::train {

struct Blas {
  decltype(&cblas_sgemm) sgemm;
  std::string kernels;  // OpenBLAS's name for the kernels in use: "SkylakeX"
};

// Loads on the first call, which must come before this process has other threads, because it sets
// environment variables for OpenBLAS: one thread, and kernels by the instruction sets that the processor
// has where OPENBLAS_CORETYPE does not choose. (OpenBLAS 0.3.21 goes by model numbers and takes a processor
// newer than itself for a Prescott of 2004, at a fifth of the speed.) Throws ToolError with the reason.
const Blas& blas();

}  // namespace peal::train
