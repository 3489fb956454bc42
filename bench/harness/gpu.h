// GPU memory, streams and graphs as the benches need them. gpu_cuda.cpp with CUDA; gpu_absent.cpp without,
// where everything ends in one sentence. Failures throw tools::ToolError.
#pragma once
#include <cstddef>
#include <functional>
#include <string>

#include "peal/peal.h"

namespace peal::bench {

constexpr int kDeviceAuto = -2;  // --device auto: local rank k is on GPU k modulo their number

// Before ranks exist: refuses the command line if this build has no CUDA, once for all ranks.
void expectGpus();
// The device of a rank; asks CUDA only if `device` is kDeviceAuto. Call it in the rank's own process.
int chooseDevice(int device, int localRank);
std::string deviceName(int device);
size_t freeDeviceBytes(int device);

// For the calling thread.
void useDevice(int device);
void copyToDevice(void* to, const void* from, size_t bytes);
void copyFromDevice(void* to, const void* from, size_t bytes);
// Ordinary memory of the current device.
void* allocateOnDevice(size_t bytes);
void freeOnDevice(void* memory);

// A CUDA stream of the current device, as peal's calls take it.
class DeviceStream {
 public:
  DeviceStream();
  ~DeviceStream();
  DeviceStream(const DeviceStream&) = delete;
  DeviceStream& operator=(const DeviceStream&) = delete;
  pealStream_t handle() const { return static_cast<pealStream_t>(stream_); }
  void synchronize();

 private:
  void* stream_ = nullptr;
};

// What `calls` puts on a stream, as a CUDA graph.
class DeviceGraph {
 public:
  DeviceGraph(DeviceStream& stream, const std::function<void()>& calls);
  ~DeviceGraph();
  DeviceGraph(const DeviceGraph&) = delete;
  DeviceGraph& operator=(const DeviceGraph&) = delete;
  void launch(DeviceStream& stream);

 private:
  void* graph_ = nullptr;
  void* executable_ = nullptr;
};

}  // namespace peal::bench
