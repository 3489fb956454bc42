// What host code needs of the CUDA runtime everywhere: errors as sentences, owners of what it hands out, the
// current device put back, and what kind of memory an address is.
//
// Owns only what each object holds. Used by lib/executor/cuda/ and transports/cuda_ipc/; compiled with the
// toolkit, or against the simulator of tests/cudasim/. A library without CUDA leaves this file out. No
// function changes the caller's current device.
#pragma once
#include <cuda_runtime.h>
#include <fmt/format.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

#include "lib/base/clock.h"
#include "lib/base/result.h"
#include "lib/memory/descriptor.h"

namespace peal::cuda {

// ---- errors ----

// "what, device 1: out of memory (cudaErrorMemoryAllocation, 2). 3 of 80 GiB are free ...". Takes the error
// out of the runtime's memory too: the application must not meet it in its own cudaGetLastError(). An error
// that has ended the process's use of the device stays there in any case.
Error errorOf(cudaError_t code, const std::string& what);

// `what` says what was tried, with its values: cudaResult(cudaMalloc(&p, n), "cudaMalloc of {} bytes", n).
template <class... Args>
Result<void> cudaResult(cudaError_t code, fmt::format_string<Args...> what, Args&&... args) {
  if (code == cudaSuccess) {
    return {};
  }
  return errorOf(code, fmt::format(what, std::forward<Args>(args)...));
}

// A call whose failure changes nothing: in destructors, where it is logged (and not once the process ends).
void cudaIgnored(cudaError_t code, const char* what);

// ---- guards ----

// Makes a device current as long as it lives, and puts the former one back.
class CurrentDevice {
 public:
  explicit CurrentDevice(int device);
  CurrentDevice(const CurrentDevice&) = delete;
  CurrentDevice& operator=(const CurrentDevice&) = delete;
  ~CurrentDevice();
  // Why the device could not be made current.
  const Result<void>& status() const { return status_; }

 private:
  int before_ = -1;  // -1: nothing to put back
  Result<void> status_;
};

// Lets this thread allocate, map and query while any thread captures a graph, without breaking the capture.
class RelaxedCapture {
 public:
  RelaxedCapture() { exchange(); }
  RelaxedCapture(const RelaxedCapture&) = delete;
  RelaxedCapture& operator=(const RelaxedCapture&) = delete;
  ~RelaxedCapture() { exchange(); }

 private:
  // Where it fails, no stream is captured, and the calls that follow say what is wrong.
  void exchange() {
    if (cudaThreadExchangeStreamCaptureMode(&mode_) != cudaSuccess) {
      cudaGetLastError();
    }
  }
  cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;
};

// ---- owners ----

// Device memory, not initialised. Freeing it waits for the device, as cudaFree does.
class DeviceBuffer {
 public:
  DeviceBuffer() = default;
  DeviceBuffer(DeviceBuffer&& other) noexcept { swap(other); }
  DeviceBuffer& operator=(DeviceBuffer&& other) noexcept {
    swap(other);
    return *this;
  }
  DeviceBuffer(const DeviceBuffer&) = delete;
  DeviceBuffer& operator=(const DeviceBuffer&) = delete;
  ~DeviceBuffer();
  static Result<DeviceBuffer> make(int device, size_t bytes);

  std::byte* data() const { return data_; }
  size_t bytes() const { return bytes_; }
  int device() const { return device_; }
  // Gives up the memory without freeing it: where freeing could hang.
  std::byte* release() { return std::exchange(data_, nullptr); }

 private:
  void swap(DeviceBuffer& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    std::swap(device_, other.device_);
  }
  std::byte* data_ = nullptr;
  size_t bytes_ = 0;
  int device_ = -1;
};

// Zeroed host memory that every device of the process can read and write. Freeing it waits for the device.
class PinnedBuffer {
 public:
  PinnedBuffer() = default;
  PinnedBuffer(PinnedBuffer&& other) noexcept { swap(other); }
  PinnedBuffer& operator=(PinnedBuffer&& other) noexcept {
    swap(other);
    return *this;
  }
  PinnedBuffer(const PinnedBuffer&) = delete;
  PinnedBuffer& operator=(const PinnedBuffer&) = delete;
  ~PinnedBuffer();
  // `device`: whose kernels use it.
  static Result<PinnedBuffer> make(int device, size_t bytes);

  std::byte* data() const { return data_; }              // as the host addresses it
  std::byte* deviceData() const { return deviceData_; }  // as kernels address it
  size_t bytes() const { return bytes_; }
  std::byte* release() { return std::exchange(data_, nullptr); }

 private:
  void swap(PinnedBuffer& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(deviceData_, other.deviceData_);
    std::swap(bytes_, other.bytes_);
  }
  std::byte* data_ = nullptr;
  std::byte* deviceData_ = nullptr;
  size_t bytes_ = 0;
};

// A stream that does not wait for the default stream.
class StreamHolder {
 public:
  StreamHolder() = default;
  StreamHolder(StreamHolder&& other) noexcept : stream_(std::exchange(other.stream_, nullptr)) {}
  StreamHolder& operator=(StreamHolder&& other) noexcept {
    std::swap(stream_, other.stream_);
    return *this;
  }
  StreamHolder(const StreamHolder&) = delete;
  StreamHolder& operator=(const StreamHolder&) = delete;
  ~StreamHolder();
  static Result<StreamHolder> make(int device);
  cudaStream_t get() const { return stream_; }

 private:
  cudaStream_t stream_ = nullptr;
};

// Polls until the stream has done what it was given; never waits inside the runtime, where kernels of another
// communicator may hold the device and wait for what this rank does next. `what`: as in cudaResult.
Result<void> awaitStream(cudaStream_t stream, Deadline deadline, const std::string& what);

// An event without timing.
class Event {
 public:
  Event() = default;
  Event(Event&& other) noexcept : event_(std::exchange(other.event_, nullptr)) {}
  Event& operator=(Event&& other) noexcept {
    std::swap(event_, other.event_);
    return *this;
  }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  ~Event();
  static Result<Event> make(int device);
  cudaEvent_t get() const { return event_; }
  // Whether everything recorded has happened. Never waits.
  Result<bool> happened() const;

 private:
  cudaEvent_t event_ = nullptr;
};

// ---- what an address is ----

struct PointerKind {
  cudaMemoryType type = cudaMemoryTypeUnregistered;
  int device = -1;                      // of device and managed memory
  const std::byte* onDevice = nullptr;  // as kernels of the current device address it; nullptr: they cannot
  std::string text() const;             // "memory of device 1", "pinned host memory", ...
};
Result<PointerKind> kindOf(const void* data);

// The allocation that holds an address of device memory.
struct Allocation {
  std::byte* base = nullptr;
  size_t bytes = 0;
};
Result<Allocation> allocationOf(const void* deviceData);
// Bytes from `data` to the end of its allocation; over the pieces behind it, up to `wanted`, where it may be
// made of such and they are `device`'s.
Result<size_t> bytesBehind(const void* data, int device, size_t wanted);
// Whether it may be one of several pieces that make a buffer: memory of cuMemCreate is mapped piece by piece
// (PyTorch's expandable segments), and the driver knows each piece alone. False where it cannot be told.
bool mayBePiece(const void* deviceData);

// A descriptor with which other devices' drivers reach whole pages of device memory, as long as somebody has
// it.
Result<OwnedFd> dmabufOf(const void* deviceData, size_t bytes);

// A function of the driver, found at run time: the library is not linked with libcuda. nullptr: this driver
// has none of that name as of that CUDA version (12030 for 12.3).
void* driverFunction(const char* name, unsigned version);
// "cuMemMap: driver error 1 (invalid value)".
Error driverError(int code, const char* name);

// The same, looked up once: at the first call that finds it. A static object, whose name is a literal.
template <class Function>
class DriverFunction {
 public:
  constexpr DriverFunction(const char* name, unsigned version) : name_(name), version_(version) {}
  // nullptr: there is none.
  Function get() {
    void* found = found_.load(std::memory_order_relaxed);  // every thread finds the same
    if (found == nullptr) {
      found = driverFunction(name_, version_);
      found_.store(found, std::memory_order_relaxed);
    }
    return reinterpret_cast<Function>(found);
  }
  template <class... Args>
  Result<void> call(Args... args) {
    const Function function = get();
    if (function == nullptr) {
      return Error{pealUnhandledCudaError, fmt::format("this driver has no {}: it is older than CUDA {}.{}",
                                                       name_, version_ / 1000, version_ % 1000 / 10)};
    }
    const int code = static_cast<int>(function(args...));
    return code == 0 ? Result<void>() : driverError(code, name_);
  }

 private:
  const char* const name_;
  const unsigned version_;
  std::atomic<void*> found_{nullptr};
};

}  // namespace peal::cuda
