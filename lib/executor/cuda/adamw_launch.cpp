// Launches the AdamW step of a flat shard.
#include <cuda_runtime.h>

#include <algorithm>

#include "lib/executor/cuda/arguments.h"
#include "lib/executor/cuda/kernels.h"
#include "lib/executor/device_executor.h"
#include "lib/memory/cuda.h"

namespace peal {
namespace {

constexpr unsigned kThreads = 256;
constexpr uint64_t kElementsPerBlock = uint64_t{kThreads} * 8;
// Enough to keep every processor busy while blocks end at different times, few enough that starting them
// costs nothing.
constexpr uint64_t kBlocksPerProcessor = 4;

}  // namespace

Result<void> launchAdamw(int device, const pealAdamw_t& state, const void* gradient, void* weight,
                         void* stream) {
  const cuda::CurrentDevice current(device);
  PEAL_TRY(current.status());
  constexpr const char* kName = "pealAdamwStep";
  const Result<cuda::StreamState> target = cuda::stateOf(kName, device, static_cast<cudaStream_t>(stream));
  if (!target) {
    return target.error();
  }
  const auto check = [&](const char* what, const void* data, size_t bytes) {
    return cuda::checkBuffer(kName, device, what, data, bytes);
  };
  PEAL_TRY(check("gradient", gradient, state.count * 2));
  PEAL_TRY(check("weight", weight, state.count * 2));
  PEAL_TRY(cuda::checkAdamw(kName, device, state));
  int processors = 0;
  PEAL_TRY(cuda::cudaResult(cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device),
                            "asking device {} for its processors", device));
  cuda::AdamwStepArgs args{state, static_cast<const uint16_t*>(gradient), static_cast<uint16_t*>(weight)};
  const uint64_t wanted = std::max<uint64_t>(1, (state.count + kElementsPerBlock - 1) / kElementsPerBlock);
  const uint64_t most = static_cast<uint64_t>(processors) * kBlocksPerProcessor;
  void* pointers[] = {&args};
  return cuda::cudaResult(
      cudaLaunchKernel(cuda::adamwKernel(), dim3(static_cast<unsigned>(std::min(wanted, most))),
                       dim3(kThreads), pointers, 0, static_cast<cudaStream_t>(stream)),
      "launching an AdamW step of {} elements on device {}", state.count, device);
}

}  // namespace peal
