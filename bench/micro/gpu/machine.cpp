#include "bench/micro/gpu/machine.h"

#include <fmt/format.h>

#include <algorithm>
#include <stdexcept>
#include <vector>

namespace peal::gpubench {
void checkCuda(cudaError_t result, const char* call) {
  if (result != cudaSuccess) {
    throw std::runtime_error(
        fmt::format("{}: {} ({})", call, cudaGetErrorString(result), cudaGetErrorName(result)));
  }
}

void checkPeal(pealResult_t result, const char* call, pealComm_t comm) {
  if (result != pealSuccess) {
    throw std::runtime_error(fmt::format("{}: {}", call, pealGetLastError(comm)));
  }
}

Memory::Memory(size_t bytes) {
  checkCuda(cudaMalloc(&data_, bytes), "cudaMalloc");
  checkCuda(cudaMemset(data_, 0, bytes), "cudaMemset");
}

Memory::~Memory() { cudaFree(data_); }

Stream::Stream(int samples) : samples_(samples) {
  checkCuda(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
  checkCuda(cudaEventCreate(&begin_), "cudaEventCreate");
  checkCuda(cudaEventCreate(&end_), "cudaEventCreate");
}

Stream::~Stream() {
  cudaEventDestroy(begin_);
  cudaEventDestroy(end_);
  cudaStreamDestroy(stream_);
}

double Stream::median(int repeats, const std::function<void()>& allRepeats) const {
  std::vector<double> seconds;
  for (int sample = 0; sample < samples_; ++sample) {
    checkCuda(cudaEventRecord(begin_, stream_), "cudaEventRecord");
    allRepeats();
    checkCuda(cudaEventRecord(end_, stream_), "cudaEventRecord");
    checkCuda(cudaEventSynchronize(end_), "cudaEventSynchronize");
    float ms = 0;
    checkCuda(cudaEventElapsedTime(&ms, begin_, end_), "cudaEventElapsedTime");
    seconds.push_back(static_cast<double>(ms) * 1e-3 / repeats);
  }
  std::sort(seconds.begin(), seconds.end());
  return seconds[seconds.size() / 2];
}

double Stream::time(int repeats, const std::function<void()>& work) const {
  work();
  return median(repeats, [&] {
    for (int i = 0; i < repeats; ++i) {
      work();
    }
  });
}

double Stream::timeGraph(int repeats, const std::function<void()>& work) const {
  work();
  checkCuda(cudaStreamSynchronize(stream_), "cudaStreamSynchronize");
  checkCuda(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture");
  for (int i = 0; i < repeats; ++i) {
    work();
  }
  cudaGraph_t graph = nullptr;
  checkCuda(cudaStreamEndCapture(stream_, &graph), "cudaStreamEndCapture");
  cudaGraphExec_t executable = nullptr;
  checkCuda(cudaGraphInstantiate(&executable, graph, 0), "cudaGraphInstantiate");
  const auto launch = [&] { checkCuda(cudaGraphLaunch(executable, stream_), "cudaGraphLaunch"); };
  launch();
  const double seconds = median(repeats, launch);
  cudaGraphExecDestroy(executable);
  cudaGraphDestroy(graph);
  return seconds;
}

}  // namespace peal::gpubench
