#include <cuda_runtime.h>
#include <fmt/format.h>

#include "bench/harness/gpu.h"
#include "tools/common/error.h"

namespace peal::bench {
namespace {

void checkCuda(cudaError_t result, const char* call) {
  if (result != cudaSuccess) {
    throw tools::ToolError(
        fmt::format("{}: {} ({}).", call, cudaGetErrorString(result), cudaGetErrorName(result)));
  }
}

cudaStream_t cudaStream(const DeviceStream& stream) {
  return reinterpret_cast<cudaStream_t>(stream.handle());
}

}  // namespace

void expectGpus() {}  // whoever asks CUDA before it forks has broken it for its children

int chooseDevice(int device, int localRank) {
  if (device != kDeviceAuto) {
    return device;
  }
  int count = 0;
  checkCuda(cudaGetDeviceCount(&count), "cudaGetDeviceCount");
  if (count == 0) {
    throw tools::UsageError(
        "--device auto: CUDA sees no GPU here (CUDA_VISIBLE_DEVICES?). Without --device host memory is "
        "measured.");
  }
  return localRank % count;
}

std::string deviceName(int device) {
  cudaDeviceProp properties{};
  checkCuda(cudaGetDeviceProperties(&properties, device), "cudaGetDeviceProperties");
  return properties.name;
}

size_t freeDeviceBytes(int device) {
  useDevice(device);
  size_t available = 0;
  size_t total = 0;
  checkCuda(cudaMemGetInfo(&available, &total), "cudaMemGetInfo");
  return available;
}

void useDevice(int device) { checkCuda(cudaSetDevice(device), "cudaSetDevice"); }

void copyToDevice(void* to, const void* from, size_t bytes) {
  checkCuda(cudaMemcpy(to, from, bytes, cudaMemcpyHostToDevice), "cudaMemcpy to the device");
}

void copyFromDevice(void* to, const void* from, size_t bytes) {
  checkCuda(cudaMemcpy(to, from, bytes, cudaMemcpyDeviceToHost), "cudaMemcpy from the device");
}

void* allocateOnDevice(size_t bytes) {
  void* memory = nullptr;
  checkCuda(cudaMalloc(&memory, bytes), "cudaMalloc");
  return memory;
}

void freeOnDevice(void* memory) { cudaFree(memory); }

DeviceStream::DeviceStream() {
  cudaStream_t stream = nullptr;
  checkCuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
  stream_ = stream;
}

DeviceStream::~DeviceStream() { cudaStreamDestroy(cudaStream(*this)); }

void DeviceStream::synchronize() {
  checkCuda(cudaStreamSynchronize(cudaStream(*this)), "cudaStreamSynchronize");
}

DeviceGraph::DeviceGraph(DeviceStream& stream, const std::function<void()>& calls) {
  checkCuda(cudaStreamBeginCapture(cudaStream(stream), cudaStreamCaptureModeThreadLocal),
            "cudaStreamBeginCapture");
  cudaGraph_t graph = nullptr;
  try {
    calls();
  } catch (...) {  // the stream must not stay captured
    cudaStreamEndCapture(cudaStream(stream), &graph);
    cudaGraphDestroy(graph);
    throw;
  }
  checkCuda(cudaStreamEndCapture(cudaStream(stream), &graph), "cudaStreamEndCapture");
  graph_ = graph;
  cudaGraphExec_t executable = nullptr;
  const cudaError_t made = cudaGraphInstantiate(&executable, graph, 0);
  if (made != cudaSuccess) {
    cudaGraphDestroy(graph);
  }
  checkCuda(made, "cudaGraphInstantiate");
  executable_ = executable;
}

DeviceGraph::~DeviceGraph() {
  cudaGraphExecDestroy(static_cast<cudaGraphExec_t>(executable_));
  cudaGraphDestroy(static_cast<cudaGraph_t>(graph_));
}

void DeviceGraph::launch(DeviceStream& stream) {
  checkCuda(cudaGraphLaunch(static_cast<cudaGraphExec_t>(executable_), cudaStream(stream)),
            "cudaGraphLaunch");
}

}  // namespace peal::bench
