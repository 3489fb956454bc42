// cuMemCreate, cuMemMap and what belongs to them, as the driver has them.
#include <fcntl.h>
#include <unistd.h>

#include "tests/cudasim/core/memory.h"
#include "tests/cudasim/runtime/driver.h"

namespace peal::cudasim {
namespace {

using Handle = CUmemGenericAllocationHandle;

constexpr cudaError_t kBad = cudaErrorInvalidValue;

bool isWhole(size_t bytes) { return bytes > 0 && bytes % kPieceBytes == 0; }

bool isPieceDevice(const CUmemLocation& location) {
  return location.type == CU_MEM_LOCATION_TYPE_DEVICE && runtime().isDevice(location.id);
}

CUresult granularityOf(size_t* bytes, const CUmemAllocationProp*, CUmemAllocationGranularity_flags) {
  return driverCall({"cuMemGetAllocationGranularity", kBad}, [&](Lock&) {
    *bytes = kPieceBytes;
    return cudaSuccess;
  });
}

CUresult createPiece(Handle* handle, size_t bytes, const CUmemAllocationProp* prop,
                     unsigned long long flags) {
  return driverCall({"cuMemCreate", cudaErrorMemoryAllocation}, [&](Lock&) {
    if (handle == nullptr || prop == nullptr || flags != 0 || !isWhole(bytes) ||
        prop->type != CU_MEM_ALLOCATION_TYPE_PINNED || !isPieceDevice(prop->location)) {
      return kBad;
    }
    const bool exportable = (prop->requestedHandleTypes & CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) != 0;
    std::shared_ptr<Piece> piece = Piece::make(bytes, runtime().physical(prop->location.id), exportable);
    if (piece == nullptr) {
      return cudaErrorMemoryAllocation;
    }
    *handle = runtime().pieces.add(std::move(piece));
    return cudaSuccess;
  });
}

CUresult releasePiece(Handle handle) {
  return driverCall({.name = "cuMemRelease", .usualError = kBad, .releases = true},
                    [&](Lock&) { return runtime().pieces.handles.erase(handle) == 1 ? cudaSuccess : kBad; });
}

CUresult retainPiece(Handle* handle, void* address) {
  return driverCall({"cuMemRetainAllocationHandle", kBad}, [&](Lock&) {
    const Range* const range = runtime().memory.holding(address);
    if (handle == nullptr || range == nullptr || range->kind != RangeKind::Mapped) {
      return kBad;
    }
    PieceTable& pieces = runtime().pieces;
    *handle = pieces.add(pieces.mappings.at(range->base));
    return cudaSuccess;
  });
}

CUresult propertiesOf(CUmemAllocationProp* prop, Handle handle) {
  return driverCall({"cuMemGetAllocationPropertiesFromHandle", kBad}, [&](Lock&) {
    const auto found = runtime().pieces.handles.find(handle);
    if (prop == nullptr || found == runtime().pieces.handles.end()) {
      return kBad;
    }
    *prop = CUmemAllocationProp{};
    prop->type = CU_MEM_ALLOCATION_TYPE_PINNED;
    prop->requestedHandleTypes =
        found->second->exportable() ? CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR : CU_MEM_HANDLE_TYPE_NONE;
    prop->location = {CU_MEM_LOCATION_TYPE_DEVICE, runtime().visibleNumber(found->second->physicalDevice())};
    return cudaSuccess;
  });
}

CUresult exportPiece(void* shareable, Handle handle, CUmemAllocationHandleType type,
                     unsigned long long flags) {
  return driverCall({"cuMemExportToShareableHandle", kBad}, [&](Lock&) {
    const auto found = runtime().pieces.handles.find(handle);
    if (shareable == nullptr || found == runtime().pieces.handles.end() || flags != 0 ||
        type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR || !found->second->exportable()) {
      return kBad;
    }
    const int fd = fcntl(found->second->fd(), F_DUPFD_CLOEXEC, 0);
    if (fd < 0) {
      return cudaErrorOperatingSystem;
    }
    *static_cast<int*>(shareable) = fd;
    return cudaSuccess;
  });
}

CUresult importPiece(Handle* handle, void* osHandle, CUmemAllocationHandleType type) {
  return driverCall({"cuMemImportFromShareableHandle", kBad}, [&](Lock&) {
    if (handle == nullptr || type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) {
      return kBad;
    }
    std::shared_ptr<Piece> piece = Piece::fromFile(static_cast<int>(reinterpret_cast<intptr_t>(osHandle)));
    if (piece == nullptr) {
      return kBad;
    }
    *handle = runtime().pieces.add(std::move(piece));
    return cudaSuccess;
  });
}

CUresult reserveAddresses(CUdeviceptr* address, size_t bytes, size_t, CUdeviceptr wanted,
                          unsigned long long flags) {
  return driverCall({"cuMemAddressReserve", cudaErrorMemoryAllocation}, [&](Lock&) {
    if (address == nullptr || !isWhole(bytes) || wanted != 0 || flags != 0) {
      return kBad;
    }
    *address = runtime().pieces.reserve(bytes);
    return *address != 0 ? cudaSuccess : cudaErrorMemoryAllocation;
  });
}

CUresult freeAddresses(CUdeviceptr address, size_t bytes) {
  return driverCall({.name = "cuMemAddressFree", .usualError = kBad, .releases = true}, [&](Lock&) {
    auto& reserved = runtime().pieces.reserved;
    const auto found = reserved.find(address);
    if (found == reserved.end() || found->second != bytes ||
        runtime().memory.overlapping(reinterpret_cast<void*>(address), bytes) != nullptr) {
      return kBad;
    }
    reserved.erase(found);
    return cudaSuccess;
  });
}

CUresult mapPiece(CUdeviceptr address, size_t bytes, size_t offset, Handle handle, unsigned long long flags) {
  return driverCall({"cuMemMap", cudaErrorMapBufferObjectFailed}, [&](Lock& lock) {
    PieceTable& pieces = runtime().pieces;
    const auto found = pieces.handles.find(handle);
    if (found == pieces.handles.end() || !isWhole(bytes) || offset != 0 || flags != 0 ||
        bytes > found->second->bytes() || !pieces.isReserved(address, bytes) ||
        runtime().memory.overlapping(reinterpret_cast<void*>(address), bytes) != nullptr) {
      return kBad;
    }
    Range range;
    range.kind = RangeKind::Mapped;
    range.base = address;
    range.bytes = range.mappedBytes = bytes;
    const int device = runtime().visibleNumber(found->second->physicalDevice());
    range.device = device >= 0 ? device : currentDevice();
    if (runtime().memory.addMapped(lock, found->second->fd(), range) == nullptr) {
      return cudaErrorMapBufferObjectFailed;
    }
    pieces.mappings[address] = found->second;
    return cudaSuccess;
  });
}

// Calls work(range) for the mappings that make up [address, address + bytes); false: they do not.
template <class Work>
bool forMappings(CUdeviceptr address, size_t bytes, const Work& work) {
  size_t done = 0;
  while (done < bytes) {
    Range* const range = runtime().memory.startingAt(reinterpret_cast<void*>(address + done));
    if (range == nullptr || range->kind != RangeKind::Mapped || range->bytes > bytes - done) {
      return false;
    }
    done += range->bytes;
    work(*range);
  }
  return bytes > 0;
}

CUresult setPieceAccess(CUdeviceptr address, size_t bytes, const CUmemAccessDesc* descriptions,
                        size_t count) {
  return driverCall({"cuMemSetAccess", kBad}, [&](Lock& lock) {
    cudaError_t error = cudaSuccess;
    const auto allow = [&](Range& range) {
      uint64_t devices = range.accessors;
      for (size_t i = 0; i < count; ++i) {
        const CUmemAccessDesc& one = descriptions[i];
        if (!isPieceDevice(one.location)) {
          error = kBad;
        } else if (!runtime().reachesPhysical(one.location.id,
                                              runtime().pieces.mappings.at(range.base)->physicalDevice())) {
          error = cudaErrorPeerAccessUnsupported;
        } else {
          const uint64_t bit = uint64_t{1} << one.location.id;
          devices = one.flags == CU_MEM_ACCESS_FLAGS_PROT_NONE ? devices & ~bit : devices | bit;
        }
      }
      runtime().memory.setAccessors(lock, range, devices);
    };
    return forMappings(address, bytes, allow) ? error : kBad;
  });
}

// Does not wait for kernels, as on a GPU.
CUresult unmapPieces(CUdeviceptr address, size_t bytes) {
  return driverCall({.name = "cuMemUnmap", .usualError = kBad, .releases = true}, [&](Lock& lock) {
    const bool there = forMappings(address, bytes, [](Range&) {});
    if (there) {
      forMappings(address, bytes, [&](Range& range) {
        runtime().pieces.mappings.erase(range.base);
        runtime().memory.remove(lock, &range);
      });
    }
    return there ? cudaSuccess : kBad;
  });
}

}  // namespace

std::map<std::string, void*> pieceFunctions() {
  return {
      {"cuMemGetAllocationGranularity", reinterpret_cast<void*>(granularityOf)},
      {"cuMemCreate", reinterpret_cast<void*>(createPiece)},
      {"cuMemRelease", reinterpret_cast<void*>(releasePiece)},
      {"cuMemRetainAllocationHandle", reinterpret_cast<void*>(retainPiece)},
      {"cuMemGetAllocationPropertiesFromHandle", reinterpret_cast<void*>(propertiesOf)},
      {"cuMemExportToShareableHandle", reinterpret_cast<void*>(exportPiece)},
      {"cuMemImportFromShareableHandle", reinterpret_cast<void*>(importPiece)},
      {"cuMemAddressReserve", reinterpret_cast<void*>(reserveAddresses)},
      {"cuMemAddressFree", reinterpret_cast<void*>(freeAddresses)},
      {"cuMemMap", reinterpret_cast<void*>(mapPiece)},
      {"cuMemSetAccess", reinterpret_cast<void*>(setPieceAccess)},
      {"cuMemUnmap", reinterpret_cast<void*>(unmapPieces)},
  };
}

}  // namespace peal::cudasim
