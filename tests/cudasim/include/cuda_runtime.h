// The simulator's stand-in for the toolkit's <cuda_runtime.h>: the C functions, and the templates over types
// of kernels and pointers. Host code compiled for tests on simulated GPUs includes it; the library includes
// the real one. Launch with cudaLaunchKernel and a typed kernel, as `cudaLaunchKernel(kernel, grid, block,
// args, sharedBytes, stream)`: the type says how to copy the arguments.
#pragma once
#include <cuda_runtime_api.h>

#include <functional>
#include <memory>
#include <tuple>
#include <type_traits>
#include <utility>

namespace peal::cudasim {

// One launch of a kernel: runs its body as the current thread of the grid.
using KernelBody = std::function<void()>;
// Copies the arguments of a launch and binds the kernel to them.
using KernelBinder = std::function<KernelBody(void** args)>;

// Makes a kernel known to the untyped functions; again and again is fine.
void registerKernel(const void* func, const KernelBinder& binder, size_t argumentBytes);

template <class... Parameters, size_t... index>
KernelBody bindKernel(void (*func)(Parameters...), void** args, std::index_sequence<index...>) {
  using Values = std::tuple<std::remove_cv_t<Parameters>...>;
  (void)args;  // of a kernel without parameters
  auto values =
      std::make_shared<const Values>(*static_cast<const std::remove_cv_t<Parameters>*>(args[index])...);
  return [func, values] { std::apply(func, *values); };
}

template <class... Parameters>
const void* knownKernel(void (*func)(Parameters...)) {
  registerKernel(
      reinterpret_cast<const void*>(func),
      [func](void** args) { return bindKernel(func, args, std::index_sequence_for<Parameters...>()); },
      (size_t{0} + ... + sizeof(Parameters)));
  return reinterpret_cast<const void*>(func);
}

}  // namespace peal::cudasim

template <class... Parameters>
cudaError_t cudaLaunchKernel(void (*func)(Parameters...), dim3 gridDim, dim3 blockDim, void** args,
                             size_t sharedMem = 0, cudaStream_t stream = nullptr) {
  return ::cudaLaunchKernel(peal::cudasim::knownKernel(func), gridDim, blockDim, args, sharedMem, stream);
}

template <class... Parameters>
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attr, void (*func)(Parameters...)) {
  return ::cudaFuncGetAttributes(attr, peal::cudasim::knownKernel(func));
}

template <class... Parameters>
cudaError_t cudaFuncSetAttribute(void (*func)(Parameters...), cudaFuncAttribute attr, int value) {
  return ::cudaFuncSetAttribute(peal::cudasim::knownKernel(func), attr, value);
}

template <class... Parameters>
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* numBlocks, void (*func)(Parameters...),
                                                          int blockSize, size_t dynamicSMemSize) {
  return ::cudaOccupancyMaxActiveBlocksPerMultiprocessor(numBlocks, peal::cudasim::knownKernel(func),
                                                         blockSize, dynamicSMemSize);
}

template <class T>
cudaError_t cudaMalloc(T** devPtr, size_t size) {
  return ::cudaMalloc(reinterpret_cast<void**>(devPtr), size);
}

template <class T>
cudaError_t cudaMallocHost(T** ptr, size_t size, unsigned int flags = 0) {
  return ::cudaHostAlloc(reinterpret_cast<void**>(ptr), size, flags);
}

template <class T>
cudaError_t cudaHostAlloc(T** ptr, size_t size, unsigned int flags) {
  return ::cudaHostAlloc(reinterpret_cast<void**>(ptr), size, flags);
}

template <class T>
cudaError_t cudaHostGetDevicePointer(T** pDevice, void* pHost, unsigned int flags) {
  return ::cudaHostGetDevicePointer(reinterpret_cast<void**>(pDevice), pHost, flags);
}

inline cudaError_t cudaEventCreate(cudaEvent_t* event, unsigned int flags) {
  return ::cudaEventCreateWithFlags(event, flags);
}
