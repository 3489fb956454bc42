// Device memory by pieces, as cuMemCreate and cuMemMap make it, through functions that are found at run time:
// PyTorch's expandable segments in small. Used by tests on simulated GPUs.
#pragma once
#include <cuda.h>
#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <vector>

namespace peal::test {

template <class Function>
Function driverFunctionOf(const char* name, unsigned version = 11000) {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
  EXPECT_EQ(cudaGetDriverEntryPointByVersion(name, &function, version, cudaEnableDefault, &found),
            cudaSuccess);
  EXPECT_EQ(found, cudaDriverEntryPointSuccess) << name;
  return reinterpret_cast<Function>(function);
}

enum class Exportable { No, Yes };

class PieceBuffer {
 public:
  static constexpr size_t kPieceBytes = size_t{2} << 20;

  // `pieces` side by side; distinct 1: all of them are the same memory.
  PieceBuffer(int device, size_t pieces, Exportable exportable, size_t distinct = SIZE_MAX)
      : pieces_(pieces) {
    const auto create =
        driverFunctionOf<CUresult (*)(CUmemGenericAllocationHandle*, size_t, const CUmemAllocationProp*,
                                      unsigned long long)>("cuMemCreate");
    const auto reserve =
        driverFunctionOf<CUresult (*)(CUdeviceptr*, size_t, size_t, CUdeviceptr, unsigned long long)>(
            "cuMemAddressReserve");
    const auto map = driverFunctionOf<CUresult (*)(CUdeviceptr, size_t, size_t, CUmemGenericAllocationHandle,
                                                   unsigned long long)>("cuMemMap");
    const auto setAccess =
        driverFunctionOf<CUresult (*)(CUdeviceptr, size_t, const CUmemAccessDesc*, size_t)>("cuMemSetAccess");
    CUmemAllocationProp prop{};
    prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    prop.location = {CU_MEM_LOCATION_TYPE_DEVICE, device};
    prop.requestedHandleTypes =
        exportable == Exportable::Yes ? CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR : CU_MEM_HANDLE_TYPE_NONE;
    EXPECT_EQ(reserve(&base_, bytes(), 0, 0, 0), CUDA_SUCCESS);
    for (size_t piece = 0; piece < pieces; ++piece) {
      if (handles_.size() < distinct) {
        EXPECT_EQ(create(&handles_.emplace_back(), kPieceBytes, &prop, 0), CUDA_SUCCESS);
      }
      EXPECT_EQ(map(base_ + piece * kPieceBytes, kPieceBytes, 0, handles_.back(), 0), CUDA_SUCCESS);
    }
    const CUmemAccessDesc access{prop.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    EXPECT_EQ(setAccess(base_, bytes(), &access, 1), CUDA_SUCCESS);
  }
  PieceBuffer(const PieceBuffer&) = delete;
  PieceBuffer& operator=(const PieceBuffer&) = delete;
  ~PieceBuffer() {
    EXPECT_EQ(driverFunctionOf<CUresult (*)(CUdeviceptr, size_t)>("cuMemUnmap")(base_, bytes()),
              CUDA_SUCCESS);
    EXPECT_EQ(driverFunctionOf<CUresult (*)(CUdeviceptr, size_t)>("cuMemAddressFree")(base_, bytes()),
              CUDA_SUCCESS);
    for (const CUmemGenericAllocationHandle handle : handles_) {
      EXPECT_EQ(driverFunctionOf<CUresult (*)(CUmemGenericAllocationHandle)>("cuMemRelease")(handle),
                CUDA_SUCCESS);
    }
  }

  std::byte* data() const { return reinterpret_cast<std::byte*>(base_); }
  size_t bytes() const { return pieces_ * kPieceBytes; }

 private:
  size_t pieces_;
  CUdeviceptr base_ = 0;
  std::vector<CUmemGenericAllocationHandle> handles_;
};

}  // namespace peal::test
