#include "lib/memory/pieces.h"

#include <cuda.h>
#include <fmt/format.h>

#include "lib/base/log.h"
#include "lib/memory/cuda.h"

namespace peal::cuda {
namespace {

using Handle = CUmemGenericAllocationHandle;

DriverFunction<CUresult (*)(Handle*, void*)> retainHandle("cuMemRetainAllocationHandle", 11000);
DriverFunction<CUresult (*)(Handle)> releaseHandle("cuMemRelease", 10020);
DriverFunction<CUresult (*)(CUmemAllocationProp*, Handle)> propertiesOf(
    "cuMemGetAllocationPropertiesFromHandle", 10020);
DriverFunction<CUresult (*)(void*, Handle, CUmemAllocationHandleType, unsigned long long)> exportHandle(
    "cuMemExportToShareableHandle", 10020);
DriverFunction<CUresult (*)(Handle*, void*, CUmemAllocationHandleType)> importHandle(
    "cuMemImportFromShareableHandle", 10020);
DriverFunction<CUresult (*)(CUdeviceptr*, size_t, size_t, CUdeviceptr, unsigned long long)> reserveAddresses(
    "cuMemAddressReserve", 10020);
DriverFunction<CUresult (*)(CUdeviceptr, size_t)> freeAddresses("cuMemAddressFree", 10020);
DriverFunction<CUresult (*)(CUdeviceptr, size_t, size_t, Handle, unsigned long long)> mapPiece("cuMemMap",
                                                                                               10020);
DriverFunction<CUresult (*)(CUdeviceptr, size_t, const CUmemAccessDesc*, size_t)> setAccess("cuMemSetAccess",
                                                                                            10020);
DriverFunction<CUresult (*)(CUdeviceptr, size_t)> unmapPieces("cuMemUnmap", 10020);

CUdeviceptr addressOf(const void* data) { return reinterpret_cast<CUdeviceptr>(data); }

// Whose failure changes nothing, in destructors.
template <class Function, class... Args>
void ignored(Function& function, Args... args) {
  if (const Result<void> done = function.call(args...); !done) {
    log(LogLevel::Warn, done.error().message);
  }
}

Result<void> checkExportable(Handle handle) {
  CUmemAllocationProp properties{};
  PEAL_TRY(propertiesOf.call(&properties, handle));
  if ((properties.requestedHandleTypes & CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) == 0) {
    return Error{pealInvalidUsage,
                 "it was made by cuMemCreate without a handle that can be passed on. Whoever makes it must "
                 "ask for one (requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)"};
  }
  return {};
}

}  // namespace

// ---- pieces ----

Pieces::~Pieces() {
  const RelaxedCapture relaxed;
  for (const Piece& piece : all_) {
    ignored(releaseHandle, piece.handle);
  }
}

Result<Pieces> Pieces::behind(const void* data, size_t bytes, size_t most) {
  const RelaxedCapture relaxed;
  Pieces pieces;
  const auto* const begin = static_cast<const std::byte*>(data);
  for (const std::byte* at = begin; at < begin + bytes;) {
    const Result<Allocation> allocation = allocationOf(at);
    if (!allocation) {
      return allocation.error();
    }
    if (pieces.all_.size() == most) {
      return Error{pealInvalidUsage, fmt::format("it consists of more than {} pieces of cuMemCreate; the "
                                                 "newest has {} bytes. Register parts of it, or let them be "
                                                 "larger",
                                                 most, allocation->bytes)};
    }
    Piece piece{.bytes = allocation->bytes};
    PEAL_TRY(retainHandle.call(&piece.handle, static_cast<void*>(allocation->base)));
    if (pieces.all_.empty()) {
      pieces.offset_ = static_cast<size_t>(begin - allocation->base);
    }
    pieces.all_.push_back(piece);
    at = allocation->base + allocation->bytes;
  }
  return pieces;
}

Result<Pieces> Pieces::import(const std::vector<OwnedFd>& files, const std::vector<uint64_t>& bytes) {
  const RelaxedCapture relaxed;
  Pieces pieces;
  for (size_t i = 0; i < files.size(); ++i) {
    Piece piece{.bytes = bytes[i]};
    void* const file = reinterpret_cast<void*>(static_cast<intptr_t>(files[i].get()));
    PEAL_TRY(importHandle.call(&piece.handle, file, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
    pieces.all_.push_back(piece);
  }
  return pieces;
}

size_t Pieces::bytes() const {
  size_t sum = 0;
  for (const Piece& piece : all_) {
    sum += piece.bytes;
  }
  return sum;
}

Result<std::vector<OwnedFd>> Pieces::files() const {
  const RelaxedCapture relaxed;
  std::vector<OwnedFd> files;
  for (const Piece& piece : all_) {
    PEAL_TRY(checkExportable(piece.handle));
    int fd = -1;
    PEAL_TRY(exportHandle.call(static_cast<void*>(&fd), piece.handle,
                               CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0ULL));
    files.emplace_back(fd);
  }
  return files;
}

// ---- mappings ----

Result<PieceMapping> PieceMapping::make(const Pieces& pieces, const std::vector<int>& devices) {
  const RelaxedCapture relaxed;
  PieceMapping mapping;
  const size_t bytes = pieces.bytes();
  CUdeviceptr base = 0;
  PEAL_TRY(reserveAddresses.call(&base, bytes, size_t{0}, CUdeviceptr{0}, 0ULL));
  mapping.base_ = reinterpret_cast<std::byte*>(base);
  mapping.bytes_ = bytes;
  size_t offset = 0;
  for (const Pieces::Piece& piece : pieces.all()) {
    PEAL_TRY(mapPiece.call(base + offset, piece.bytes, size_t{0}, piece.handle, 0ULL));
    mapping.mapped_.push_back(piece.bytes);
    offset += piece.bytes;
  }
  std::vector<CUmemAccessDesc> access;
  for (const int device : devices) {
    access.push_back({{CU_MEM_LOCATION_TYPE_DEVICE, device}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE});
  }
  PEAL_TRY(setAccess.call(base, bytes, static_cast<const CUmemAccessDesc*>(access.data()), access.size()));
  return mapping;
}

PieceMapping::~PieceMapping() {
  if (base_ == nullptr) {
    return;
  }
  const RelaxedCapture relaxed;
  size_t offset = 0;
  for (const size_t bytes : mapped_) {
    ignored(unmapPieces, addressOf(base_ + offset), bytes);
    offset += bytes;
  }
  ignored(freeAddresses, addressOf(base_), bytes_);
}

}  // namespace peal::cuda
