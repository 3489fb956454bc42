// Kernels as the API sees them: which are known, their attributes, launches.
#include <algorithm>
#include <map>
#include <mutex>

#include "tests/cudasim/runtime/api.h"
#include "tests/cudasim/runtime/capture.h"
#include "tests/cudasim/runtime/kernels.h"

namespace peal::cudasim {
namespace {

constexpr size_t kMostArgumentBytes = 32764;
constexpr int kMostBlockThreads = 1024;
constexpr size_t kDefaultShared = 48 << 10;
constexpr size_t kReservedShared = 1 << 10;  // that the driver keeps of each block's
constexpr unsigned kMostGridYz = 65535;

struct Kernel {
  KernelBinder binder;
  size_t argumentBytes = 0;
  size_t dynamicShared = kDefaultShared;  // limit, by cudaFuncSetAttribute
  std::optional<cudaFuncAttributes> attributes;
};

// A lock of its own: templates make kernels known before the call that needs them.
std::mutex kernelsMutex;
std::map<const void*, Kernel>& kernels() {
  static auto* const table = new std::map<const void*, Kernel>;
  return *table;
}

std::optional<Kernel> find(const void* func) {
  const std::lock_guard lock(kernelsMutex);
  const auto found = kernels().find(func);
  return found == kernels().end() ? std::nullopt : std::optional(found->second);
}

size_t optInShared() { return sharedPerMultiprocessor(runtime().machine) - kReservedShared; }

bool isShape(dim3 grid, dim3 block) {
  const auto threads = uint64_t{block.x} * block.y * block.z;
  return grid.x > 0 && grid.y > 0 && grid.z > 0 && grid.x <= 0x7fffffff && grid.y <= kMostGridYz &&
         grid.z <= kMostGridYz && threads > 0 && threads <= kMostBlockThreads && block.z <= 64;
}

cudaError_t launch(Lock& lock, const void* func, dim3 grid, dim3 block, void** args, size_t sharedMem,
                   cudaStream_t handle) {
  const std::optional<Kernel> kernel = find(func);
  const StreamRef stream = runtime().engine.find(lock, handle, currentDevice());
  if (!kernel) {
    return cudaErrorInvalidDeviceFunction;
  }
  // A kernel is launched into a stream of the current device.
  if (!stream || stream->device != currentDevice()) {
    return cudaErrorInvalidResourceHandle;
  }
  if (!isShape(grid, block)) {
    return cudaErrorInvalidConfiguration;
  }
  if (sharedMem > kernel->dynamicShared || kernel->argumentBytes > kMostArgumentBytes ||
      (args == nullptr && kernel->argumentBytes > 0)) {
    return cudaErrorInvalidValue;
  }
  auto made = std::make_shared<Launch>();
  made->body = kernel->binder(args);
  made->grid = grid;
  made->block = block;
  made->sharedBytes = sharedMem;
  made->device = stream->device;
  made->name = symbolName(func);
  Work work;
  work.type = cudaGraphNodeTypeKernel;
  work.device = stream->device;
  work.launch = std::move(made);
  return issue(lock, stream, std::move(work));
}

}  // namespace

void registerKernel(const void* func, const KernelBinder& binder, size_t argumentBytes) {
  const std::lock_guard lock(kernelsMutex);
  Kernel& kernel = kernels()[func];
  if (!kernel.binder) {
    kernel.binder = binder;
    kernel.argumentBytes = argumentBytes;
  }
}

void forgetKernelAttributes() {
  const std::lock_guard lock(kernelsMutex);
  for (auto& [func, kernel] : kernels()) {
    kernel.dynamicShared = kDefaultShared;
    kernel.attributes.reset();
  }
}

void setKernelAttributes(const void* kernel, const cudaFuncAttributes& attributes) {
  const std::lock_guard lock(kernelsMutex);
  kernels()[kernel].attributes = attributes;
}

}  // namespace peal::cudasim

using namespace peal::cudasim;

cudaError_t cudaLaunchKernel(const void* func, dim3 gridDim, dim3 blockDim, void** args, size_t sharedMem,
                             cudaStream_t stream) {
  return call({"cudaLaunchKernel", cudaErrorLaunchOutOfResources},
              [&](Lock& lock) { return launch(lock, func, gridDim, blockDim, args, sharedMem, stream); });
}

cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attr, const void* func) {
  return call({"cudaFuncGetAttributes", cudaErrorInvalidDeviceFunction}, [&](Lock&) {
    const std::optional<Kernel> kernel = find(func);
    if (attr == nullptr || !kernel) {
      return kernel ? cudaErrorInvalidValue : cudaErrorInvalidDeviceFunction;
    }
    const Machine& machine = runtime().machine;
    cudaFuncAttributes usual{};
    usual.maxThreadsPerBlock = kMostBlockThreads;
    usual.numRegs = 32;
    usual.ptxVersion = usual.binaryVersion = 10 * machine.capabilityMajor + machine.capabilityMinor;
    *attr = kernel->attributes.value_or(usual);
    attr->maxDynamicSharedSizeBytes = static_cast<int>(kernel->dynamicShared);
    return cudaSuccess;
  });
}

cudaError_t cudaFuncSetAttribute(const void* func, cudaFuncAttribute attr, int value) {
  return call({"cudaFuncSetAttribute", cudaErrorInvalidDeviceFunction}, [&](Lock&) {
    if (!find(func)) {
      return cudaErrorInvalidDeviceFunction;
    }
    if (attr == cudaFuncAttributePreferredSharedMemoryCarveout) {
      return value >= -1 && value <= 100 ? cudaSuccess : cudaErrorInvalidValue;
    }
    if (attr != cudaFuncAttributeMaxDynamicSharedMemorySize || value < 0 ||
        static_cast<size_t>(value) > optInShared()) {
      return cudaErrorInvalidValue;
    }
    const std::lock_guard lock(kernelsMutex);
    kernels()[func].dynamicShared = static_cast<size_t>(value);
    return cudaSuccess;
  });
}

cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* numBlocks, const void* func, int blockSize,
                                                          size_t dynamicSMemSize) {
  return call({"cudaOccupancyMaxActiveBlocksPerMultiprocessor", cudaErrorInvalidDeviceFunction}, [&](Lock&) {
    const std::optional<Kernel> kernel = find(func);
    if (!kernel) {
      return cudaErrorInvalidDeviceFunction;
    }
    if (numBlocks == nullptr || blockSize <= 0) {
      return cudaErrorInvalidValue;
    }
    const Machine& machine = runtime().machine;
    const int warpThreads = (blockSize + 31) / 32 * 32;
    const size_t shared =
        dynamicSMemSize + (kernel->attributes ? kernel->attributes->sharedSizeBytes : 0) + kReservedShared;
    const bool fits = blockSize <= kMostBlockThreads && dynamicSMemSize <= kernel->dynamicShared;
    *numBlocks =
        fits ? std::min({machine.blocksPerMultiprocessor, machine.threadsPerMultiprocessor / warpThreads,
                         static_cast<int>(sharedPerMultiprocessor(machine) / shared)})
             : 0;
    return cudaSuccess;
  });
}
