#include "lib/memory/cuda.h"

#include <cuda.h>

#include <algorithm>
#include <chrono>
#include <thread>

#include "lib/base/log.h"

namespace peal::cuda {
namespace {

// Between two looks at a stream.
constexpr std::chrono::microseconds kBetweenLooks{50};

std::string version(int code) { return fmt::format("{}.{}", code / 1000, code % 1000 / 10); }

std::string driverRemedy() {
  int driver = 0;
  int runtime = 0;
  cudaDriverGetVersion(&driver);
  cudaRuntimeGetVersion(&runtime);
  if (driver == 0) {
    return fmt::format(
        "No NVIDIA driver was found (libcuda.so.1 cannot be loaded). Install one for CUDA {} or "
        "newer; in a container, start it with access to the GPUs.",
        version(runtime));
  }
  return fmt::format("The driver supports CUDA {}, this library needs {}. Install a newer driver.",
                     version(driver), version(runtime));
}

std::string memoryRemedy() {
  size_t freeBytes = 0;
  size_t totalBytes = 0;
  if (cudaMemGetInfo(&freeBytes, &totalBytes) != cudaSuccess) {
    return "Free memory of the device, or use smaller buffers.";
  }
  return fmt::format(
      "{} of {} MiB are free on the current device. Free memory there, or use smaller buffers.",
      freeBytes >> 20, totalBytes >> 20);
}

// What to do about it; empty where nothing general can be said.
std::string remedy(cudaError_t code) {
  switch (code) {
    case cudaErrorInsufficientDriver:
      return driverRemedy();
    case cudaErrorStubLibrary:
      return "The toolkit's stub of libcuda.so was loaded instead of the driver's. Take its folder out of "
             "LD_LIBRARY_PATH.";
    case cudaErrorNoDevice:
      return "No GPU is visible to this process. Look at nvidia-smi, at CUDA_VISIBLE_DEVICES, and whether "
             "the "
             "container was started with GPUs.";
    case cudaErrorInvalidDevice:
      return "CUDA_VISIBLE_DEVICES decides which devices this process has; they are numbered from 0.";
    case cudaErrorDevicesUnavailable:
      return "Another process has the device for itself (compute mode exclusive), or it is being reset.";
    case cudaErrorNoKernelImageForDevice:
      return "The library holds kernels for sm_80 and newer GPUs only.";
    case cudaErrorMemoryAllocation:
      return memoryRemedy();
    case cudaErrorStreamCaptureUnsupported:
    case cudaErrorStreamCaptureInvalidated:
    case cudaErrorStreamCaptureUnmatched:
    case cudaErrorStreamCaptureUnjoined:
    case cudaErrorStreamCaptureIsolation:
    case cudaErrorStreamCaptureImplicit:
    case cudaErrorStreamCaptureWrongThread:
      return "A stream is being captured into a graph, and this call is not allowed meanwhile, or ended the "
             "capture. Make communicators and register buffers outside captures.";
    case cudaErrorIllegalAddress:
    case cudaErrorMisalignedAddress:
    case cudaErrorLaunchFailure:
    case cudaErrorHardwareStackError:
    case cudaErrorIllegalInstruction:
    case cudaErrorAssert:
    case cudaErrorECCUncorrectable:
      return "A kernel of this process failed earlier, not necessarily one of peal's. The device cannot be "
             "used "
             "in this process any more: restart it. compute-sanitizer shows which kernel and which address.";
    case cudaErrorMapBufferObjectFailed:
    case cudaErrorPeerAccessUnsupported:
      return "The driver cannot map this memory for another device or process.";
    case cudaErrorCudartUnloading:
      return "The process is ending.";
    default:
      return "";
  }
}

}  // namespace

Error errorOf(cudaError_t code, const std::string& what) {
  // Read before anything else fails; it clears what is not for good.
  cudaGetLastError();
  int device = -1;
  const bool known = code != cudaErrorInsufficientDriver && code != cudaErrorNoDevice &&
                     cudaGetDevice(&device) == cudaSuccess;
  std::string text = fmt::format("{}{}: {} ({}, {})", what, known ? fmt::format(", device {}", device) : "",
                                 cudaGetErrorString(code), cudaGetErrorName(code), static_cast<int>(code));
  if (const std::string advice = remedy(code); !advice.empty()) {
    text += ". " + advice;
  }
  cudaGetLastError();
  return Error{pealUnhandledCudaError, std::move(text)};
}

void cudaIgnored(cudaError_t code, const char* what) {
  if (code != cudaSuccess && code != cudaErrorCudartUnloading) {
    log(LogLevel::Warn, errorOf(code, what).message);
  }
}

// ---- guards ----

CurrentDevice::CurrentDevice(int device) {
  int before = -1;
  status_ = cudaResult(cudaGetDevice(&before), "cudaGetDevice");
  if (status_ && before != device) {
    status_ = cudaResult(cudaSetDevice(device), "cudaSetDevice({})", device);
    before_ = status_ ? before : -1;
  }
}

CurrentDevice::~CurrentDevice() {
  if (before_ >= 0) {
    cudaIgnored(cudaSetDevice(before_), "putting the current device back");
  }
}

// ---- owners ----

Result<DeviceBuffer> DeviceBuffer::make(int device, size_t bytes) {
  const RelaxedCapture relaxed;
  const CurrentDevice current(device);
  PEAL_TRY(current.status());
  DeviceBuffer buffer;
  void* data = nullptr;
  PEAL_TRY(cudaResult(cudaMalloc(&data, bytes), "cudaMalloc of {} bytes", bytes));
  buffer.data_ = static_cast<std::byte*>(data);
  buffer.bytes_ = bytes;
  buffer.device_ = device;
  return buffer;
}

DeviceBuffer::~DeviceBuffer() {
  if (data_ != nullptr) {
    const RelaxedCapture relaxed;
    const CurrentDevice current(device_);
    cudaIgnored(cudaFree(data_), "cudaFree");
  }
}

Result<PinnedBuffer> PinnedBuffer::make(int device, size_t bytes) {
  const RelaxedCapture relaxed;
  const CurrentDevice current(device);
  PEAL_TRY(current.status());
  PinnedBuffer buffer;
  void* data = nullptr;
  PEAL_TRY(cudaResult(cudaHostAlloc(&data, bytes, cudaHostAllocPortable | cudaHostAllocMapped),
                      "cudaHostAlloc of {} bytes", bytes));
  buffer.data_ = static_cast<std::byte*>(data);
  buffer.bytes_ = bytes;
  std::fill(buffer.data_, buffer.data_ + bytes, std::byte{0});
  void* onDevice = nullptr;
  PEAL_TRY(cudaResult(cudaHostGetDevicePointer(&onDevice, data, 0), "cudaHostGetDevicePointer"));
  buffer.deviceData_ = static_cast<std::byte*>(onDevice);
  return buffer;
}

PinnedBuffer::~PinnedBuffer() {
  if (data_ != nullptr) {
    const RelaxedCapture relaxed;
    cudaIgnored(cudaFreeHost(data_), "cudaFreeHost");
  }
}

Result<void> awaitStream(cudaStream_t stream, Deadline deadline, const std::string& what) {
  for (;;) {
    const cudaError_t code = cudaStreamQuery(stream);
    if (code != cudaErrorNotReady) {
      return code == cudaSuccess ? Result<void>() : errorOf(code, what);
    }
    static_cast<void>(cudaGetLastError());  // "not ready" is no error of the application
    if (deadline.passed()) {
      return Error{pealTimeout, fmt::format("{}: the device had not done it by the deadline. Do kernels that "
                                            "wait for something hold it?",
                                            what)};
    }
    std::this_thread::sleep_for(kBetweenLooks);
  }
}

Result<StreamHolder> StreamHolder::make(int device) {
  const RelaxedCapture relaxed;
  const CurrentDevice current(device);
  PEAL_TRY(current.status());
  StreamHolder holder;
  PEAL_TRY(cudaResult(cudaStreamCreateWithFlags(&holder.stream_, cudaStreamNonBlocking),
                      "cudaStreamCreateWithFlags"));
  return holder;
}

StreamHolder::~StreamHolder() {
  if (stream_ != nullptr) {
    cudaIgnored(cudaStreamDestroy(stream_), "cudaStreamDestroy");
  }
}

Result<Event> Event::make(int device) {
  const RelaxedCapture relaxed;
  const CurrentDevice current(device);
  PEAL_TRY(current.status());
  Event event;
  PEAL_TRY(cudaResult(cudaEventCreateWithFlags(&event.event_, cudaEventDisableTiming),
                      "cudaEventCreateWithFlags"));
  return event;
}

Event::~Event() {
  if (event_ != nullptr) {
    cudaIgnored(cudaEventDestroy(event_), "cudaEventDestroy");
  }
}

Result<bool> Event::happened() const {
  const cudaError_t code = cudaEventQuery(event_);
  if (code == cudaErrorNotReady) {
    cudaGetLastError();
    return false;
  }
  PEAL_TRY(cudaResult(code, "cudaEventQuery"));
  return true;
}

// ---- what an address is ----

std::string PointerKind::text() const {
  switch (type) {
    case cudaMemoryTypeHost:
      return "pinned host memory";
    case cudaMemoryTypeDevice:
      return fmt::format("memory of device {}", device);
    case cudaMemoryTypeManaged:
      return fmt::format("managed memory (of device {})", device);
    default:
      return "host memory that CUDA does not know";
  }
}

Result<PointerKind> kindOf(const void* data) {
  const RelaxedCapture relaxed;
  cudaPointerAttributes attributes{};
  PEAL_TRY(cudaResult(cudaPointerGetAttributes(&attributes, data), "cudaPointerGetAttributes({})", data));
  PointerKind kind;
  kind.type = attributes.type;
  if (kind.type == cudaMemoryTypeDevice || kind.type == cudaMemoryTypeManaged) {
    kind.device = attributes.device;
  }
  kind.onDevice = static_cast<const std::byte*>(attributes.devicePointer);
  return kind;
}

Result<Allocation> allocationOf(const void* deviceData) {
  static DriverFunction<CUresult (*)(CUdeviceptr*, size_t*, CUdeviceptr)> getRange("cuMemGetAddressRange",
                                                                                   3020);
  const RelaxedCapture relaxed;
  CUdeviceptr base = 0;
  size_t bytes = 0;
  const Result<void> got = getRange.call(&base, &bytes, reinterpret_cast<CUdeviceptr>(deviceData));
  if (!got) {
    return Error{got.error().code,
                 fmt::format("looking for the allocation of {}: {}", deviceData, got.error().message)};
  }
  return Allocation{reinterpret_cast<std::byte*>(base), bytes};
}

bool mayBePiece(const void* deviceData) {
  static DriverFunction<CUresult (*)(void*, CUpointer_attribute, CUdeviceptr)> getAttribute(
      "cuPointerGetAttribute", 4000);
  const RelaxedCapture relaxed;
  int whole = 1;  // classic IPC takes whole allocations only
  return getAttribute.call(static_cast<void*>(&whole), CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE,
                           reinterpret_cast<CUdeviceptr>(deviceData)) &&
         whole == 0;
}

Result<OwnedFd> dmabufOf(const void* deviceData, size_t bytes) {
  static DriverFunction<CUresult (*)(void*, CUdeviceptr, size_t, CUmemRangeHandleType, unsigned long long)>
      getHandle("cuMemGetHandleForAddressRange", 11070);
  const RelaxedCapture relaxed;
  int fd = -1;
  PEAL_TRY(getHandle.call(static_cast<void*>(&fd), reinterpret_cast<CUdeviceptr>(deviceData), bytes,
                          CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0ULL));
  return OwnedFd(fd);
}

Result<size_t> bytesBehind(const void* data, int device, size_t wanted) {
  Result<Allocation> allocation = allocationOf(data);
  if (!allocation) {
    return allocation.error();
  }
  const auto* const begin = static_cast<const std::byte*>(data);
  const std::byte* end = std::max(begin, static_cast<const std::byte*>(allocation->base) + allocation->bytes);
  while (static_cast<size_t>(end - begin) < wanted && mayBePiece(data)) {
    const Result<PointerKind> kind = kindOf(end);
    if (!kind || kind->type != cudaMemoryTypeDevice || kind->device != device) {
      break;
    }
    allocation = allocationOf(end);
    if (!allocation || allocation->base + allocation->bytes <= end) {
      break;
    }
    end = allocation->base + allocation->bytes;
  }
  return static_cast<size_t>(end - begin);
}

Error driverError(int code, const char* name) {
  static DriverFunction<CUresult (*)(CUresult, const char**)> getString("cuGetErrorString", 6000);
  const char* text = nullptr;
  if (const auto function = getString.get(); function != nullptr) {
    function(static_cast<CUresult>(code), &text);
  }
  return Error{pealUnhandledCudaError, fmt::format("{}: driver error {}{}", name, code,
                                                   text == nullptr ? "" : fmt::format(" ({})", text))};
}

void* driverFunction(const char* name, unsigned version) {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
  const cudaError_t code =
      cudaGetDriverEntryPointByVersion(name, &function, version, cudaEnableDefault, &found);
  if (code != cudaSuccess || found != cudaDriverEntryPointSuccess) {
    cudaGetLastError();
    return nullptr;
  }
  return function;
}

}  // namespace peal::cuda
