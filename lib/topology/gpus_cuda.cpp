// GPUs by the CUDA runtime. See gpus.h.
#include <array>

#include "lib/memory/cuda.h"
#include "lib/topology/gpus.h"
#include "lib/topology/pci.h"

namespace peal {
namespace {

Result<Gpu> describe(int device, int count, const SystemRoots& roots) {
  Gpu gpu;
  gpu.device = device;
  cudaDeviceProp properties{};
  PEAL_TRY(
      cuda::cudaResult(cudaGetDeviceProperties(&properties, device), "cudaGetDeviceProperties({})", device));
  gpu.name = properties.name;
  gpu.memoryBytes = properties.totalGlobalMem;
  std::array<char, 32> address{};
  PEAL_TRY(cuda::cudaResult(cudaDeviceGetPCIBusId(address.data(), static_cast<int>(address.size()), device),
                            "cudaDeviceGetPCIBusId({})", device));
  gpu.place = pciPlaceOfAddress(address.data(), roots);
  for (int other = 0; other < count; ++other) {
    int reaches = 0;
    if (other != device) {
      PEAL_TRY(cuda::cudaResult(cudaDeviceCanAccessPeer(&reaches, device, other),
                                "cudaDeviceCanAccessPeer({}, {})", device, other));
    }
    if (reaches != 0) {
      gpu.peers.push_back(other);
    }
  }
  return gpu;
}

}  // namespace

void discoverGpus(const SystemRoots& roots, MachineNode& node) {
  int count = 0;
  if (const Result<void> counted = cuda::cudaResult(cudaGetDeviceCount(&count), "cudaGetDeviceCount");
      !counted) {
    node.notes.push_back("no GPU: " + counted.error().message);
    return;
  }
  for (int device = 0; device < count; ++device) {
    const Result<Gpu> gpu = describe(device, count, roots);
    if (gpu) {
      node.gpus.push_back(*gpu);
    } else {
      node.notes.push_back(gpu.error().message);
    }
  }
}

}  // namespace peal
