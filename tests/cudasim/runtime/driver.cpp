// Functions of the driver that host code finds by name, as peal does: it never links libcuda.
#include "tests/cudasim/runtime/driver.h"

#include <cuda.h>
#include <fcntl.h>

#include <map>
#include <string>

#include "tests/cudasim/core/memory.h"
#include "tests/cudasim/runtime/api.h"

namespace peal::cudasim {
namespace {

CUresult getAddressRange(CUdeviceptr* base, size_t* bytes, CUdeviceptr data) {
  return driverCall({"cuMemGetAddressRange", cudaErrorSymbolNotFound}, [&](Lock&) {
    const Range* range = runtime().memory.holding(reinterpret_cast<void*>(data));
    if (range == nullptr || !range->isOnDevice()) {
      return cudaErrorSymbolNotFound;  // "not found", as CUDA_ERROR_NOT_FOUND
    }
    if (base != nullptr) {
      *base = range->base;
    }
    if (bytes != nullptr) {
      *bytes = range->bytes;
    }
    return cudaSuccess;
  });
}

// A dmabuf: the memory file itself, so only of a range that begins where its allocation does.
CUresult getRangeHandle(void* handle, CUdeviceptr data, size_t bytes, CUmemRangeHandleType type,
                        unsigned long long flags) {
  return driverCall({"cuMemGetHandleForAddressRange", cudaErrorNotSupported}, [&](Lock&) {
    if (!runtime().machine.dmabuf) {
      return cudaErrorNotSupported;
    }
    const Range* range = runtime().memory.startingAt(reinterpret_cast<void*>(data));
    if (handle == nullptr || range == nullptr || range->kind != RangeKind::Device || flags != 0 ||
        type != CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD || bytes > range->mappedBytes || bytes % 4096 != 0) {
      return cudaErrorInvalidValue;
    }
    const int fd = fcntl(range->fd, F_DUPFD_CLOEXEC, 0);
    if (fd < 0) {
      return cudaErrorOperatingSystem;
    }
    setExported(range->base);
    *static_cast<int*>(handle) = fd;
    return cudaSuccess;
  });
}

// Writes what the attribute's type is in the driver.
cudaError_t writeAttribute(void* data, CUpointer_attribute attribute, const Range& range, void* address) {
  const auto write = [data](auto value) {
    *static_cast<decltype(value)*>(data) = value;
    return cudaSuccess;
  };
  switch (attribute) {
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
      return write(range.isOnDevice() ? CU_MEMORYTYPE_DEVICE : CU_MEMORYTYPE_HOST);
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
      return write(reinterpret_cast<CUdeviceptr>(address));
    case CU_POINTER_ATTRIBUTE_HOST_POINTER:
      return range.isOnDevice() ? cudaErrorInvalidValue : write(address);
    case CU_POINTER_ATTRIBUTE_BUFFER_ID:
      return write(static_cast<unsigned long long>(range.id));
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
      return write(0);
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
      return write(range.device);
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
      return write(range.kind == RangeKind::Device && runtime().machine.ipc ? 1 : 0);
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
      return write(CUdeviceptr{range.base});
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
      return write(range.bytes);
    case CU_POINTER_ATTRIBUTE_MAPPED:
      return write(1);
    default:
      return cudaErrorNotSupported;
  }
}

CUresult getPointerAttribute(void* data, CUpointer_attribute attribute, CUdeviceptr address) {
  return driverCall({"cuPointerGetAttribute", cudaErrorInvalidValue}, [&](Lock&) {
    void* const pointer = reinterpret_cast<void*>(address);
    const Range* range = runtime().memory.holding(pointer);
    return data != nullptr && range != nullptr ? writeAttribute(data, attribute, *range, pointer)
                                               : cudaErrorInvalidValue;
  });
}

CUresult getErrorText(const char* (*text)(cudaError_t), CUresult code, const char** result) {
  *result = text(static_cast<cudaError_t>(code));
  return CUDA_SUCCESS;
}
CUresult getErrorName(CUresult code, const char** result) {
  return getErrorText(cudaGetErrorName, code, result);
}
CUresult getErrorString(CUresult code, const char** result) {
  return getErrorText(cudaGetErrorString, code, result);
}

// Guarded by the runtime's mutex.
std::map<std::string, void*>& functions() {
  static auto* const table = [] {
    auto* const all = new std::map<std::string, void*>{
        {"cuMemGetAddressRange", reinterpret_cast<void*>(getAddressRange)},
        {"cuMemGetHandleForAddressRange", reinterpret_cast<void*>(getRangeHandle)},
        {"cuPointerGetAttribute", reinterpret_cast<void*>(getPointerAttribute)},
        {"cuGetErrorName", reinterpret_cast<void*>(getErrorName)},
        {"cuGetErrorString", reinterpret_cast<void*>(getErrorString)},
    };
    for (const auto& [name, function] : pieceFunctions()) {
      (*all)[name] = function;
    }
    return all;
  }();
  return *table;
}

}  // namespace

void setDriverFunction(const std::string& name, void* function) {
  const Lock lock(runtime().mutex);
  functions()[name] = function;
}

}  // namespace peal::cudasim

using namespace peal::cudasim;

cudaError_t cudaGetDriverEntryPointByVersion(const char* symbol, void** funcPtr, unsigned int cudaVersion,
                                             unsigned long long,
                                             cudaDriverEntryPointQueryResult* driverStatus) {
  return call({"cudaGetDriverEntryPointByVersion", cudaErrorSymbolNotFound}, [&](Lock&) {
    if (symbol == nullptr || funcPtr == nullptr) {
      return cudaErrorInvalidValue;
    }
    const auto found = functions().find(symbol);
    *funcPtr = found != functions().end() ? found->second : nullptr;
    const bool tooNew = static_cast<int>(cudaVersion) > runtime().machine.driverVersion;
    if (tooNew) {
      *funcPtr = nullptr;
    }
    if (driverStatus != nullptr) {
      *driverStatus = *funcPtr != nullptr ? cudaDriverEntryPointSuccess
                      : tooNew            ? cudaDriverEntryPointVersionNotSufficent
                                          : cudaDriverEntryPointSymbolNotFound;
      return cudaSuccess;  // the status says it
    }
    return *funcPtr != nullptr ? cudaSuccess : cudaErrorSymbolNotFound;
  });
}
