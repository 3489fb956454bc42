// GPUs as the rest of the library asks for them: which there are, and memory on them.
#include <cuda_runtime.h>
#include <fmt/format.h>

#include <map>
#include <mutex>

#include "lib/executor/device_executor.h"
#include "lib/memory/cuda.h"

namespace peal {
namespace {

using cuda::cudaResult;

// Kernels use what compute capability 8.0 has.
constexpr int kLeastMajor = 8;

// Memory given out by allocateDevice. Never destroyed: other static objects may end later.
struct Allocations {
  std::mutex mutex;  // guards devices
  std::map<const void*, int> devices;
};
Allocations& allocations() {
  static auto* const all = new Allocations;
  return *all;
}

Result<int> deviceCount() {
  int count = 0;  // left as it is by a failure
  PEAL_TRY(cudaResult(cudaGetDeviceCount(&count), "asking CUDA for devices"));
  return count;
}

}  // namespace

DeviceSupport probeDevices() {
  DeviceSupport support{.built = true, .architectures = PEAL_CUDA_ARCHITECTURES, .count = 0, .reason = ""};
  const cuda::RelaxedCapture relaxed;
  Result<int> count = deviceCount();
  if (!count) {
    support.reason = count.error().message;
    return support;
  }
  for (int device = 0; device < *count; ++device) {
    cudaDeviceProp properties{};
    const Result<void> asked =
        cudaResult(cudaGetDeviceProperties(&properties, device), "asking for device {}", device);
    support.reason += fmt::format("{}{}: {}", device == 0 ? "" : "; ", device,
                                  asked ? fmt::format("{} ({}.{}, {} MiB)", properties.name, properties.major,
                                                      properties.minor, properties.totalGlobalMem >> 20)
                                        : asked.error().message);
    support.count += asked ? 1 : 0;
  }
  return support;
}

Result<void> checkDevice(int device) {
  const cuda::RelaxedCapture relaxed;
  Result<int> count = deviceCount();
  if (!count) {
    return count.error();
  }
  if (device < 0 || device >= *count) {
    return Error{pealInvalidArgument,
                 fmt::format("device {} does not exist: this process sees {} device{}, numbered from 0 "
                             "(CUDA_VISIBLE_DEVICES decides which).",
                             device, *count, *count == 1 ? "" : "s")};
  }
  int major = 0;
  PEAL_TRY(cudaResult(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device),
                      "asking for the compute capability of device {}", device));
  if (major < kLeastMajor) {
    return Error{pealInvalidArgument,
                 fmt::format("device {} has compute capability {}.x; peal's kernels need {}.0 or newer.",
                             device, major, kLeastMajor)};
  }
  return {};
}

Result<int> currentDevice() {
  const cuda::RelaxedCapture relaxed;
  int device = 0;
  PEAL_TRY(cudaResult(cudaGetDevice(&device), "asking CUDA for the current device"));
  return device;
}

Result<int> countDevices() {
  const cuda::RelaxedCapture relaxed;
  Result<int> count = deviceCount();
  if (count && *count < 1) {
    return Error{pealInvalidArgument,
                 "this process sees no GPU (CUDA_VISIBLE_DEVICES decides which). Use host memory."};
  }
  return count;
}

Result<void*> allocateDevice(int device, size_t bytes) {
  PEAL_TRY(checkDevice(device));
  const cuda::RelaxedCapture relaxed;
  const cuda::CurrentDevice current(device);
  PEAL_TRY(current.status());
  void* data = nullptr;
  PEAL_TRY(cudaResult(cudaMalloc(&data, bytes), "allocating {} bytes", bytes));
  Allocations& all = allocations();
  const std::lock_guard lock(all.mutex);
  all.devices[data] = device;
  return data;
}

Result<void> freeDevice(void* data) {
  Allocations& all = allocations();
  int device = 0;
  {
    const std::lock_guard lock(all.mutex);
    const auto found = all.devices.find(data);
    if (found == all.devices.end()) {
      return Error{pealInvalidArgument,
                   fmt::format("{} was not given by pealMemAllocDevice, or was freed already.", data)};
    }
    device = found->second;
    all.devices.erase(found);  // before the address can be given out again
  }
  const auto release = [&]() -> Result<void> {
    const cuda::RelaxedCapture relaxed;
    const cuda::CurrentDevice current(device);
    PEAL_TRY(current.status());
    return cudaResult(cudaFree(data), "freeing {}", data);
  };
  Result<void> released = release();
  if (!released) {
    const std::lock_guard lock(all.mutex);
    all.devices[data] = device;  // still allocated
  }
  return released;
}

bool isDeviceAllocation(const void* data) {
  Allocations& all = allocations();
  const std::lock_guard lock(all.mutex);
  return all.devices.contains(data);
}

}  // namespace peal
