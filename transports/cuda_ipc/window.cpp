#include "transports/cuda_ipc/window.h"

#include <sys/mman.h>

#include <cerrno>
#include <map>
#include <mutex>

namespace peal::cuda {
namespace {

struct LocalWindows {
  std::mutex mutex;  // guards byToken
  std::map<Nonce, std::weak_ptr<Window>> byToken;
};

// Never destroyed: windows may be released while the process ends.
LocalWindows& localWindows() {
  static LocalWindows* const windows = new LocalWindows;
  return *windows;
}

}  // namespace

// ---- mappings ----

Result<IpcMapping> IpcMapping::open(int device, const cudaIpcMemHandle_t& handle) {
  const RelaxedCapture relaxed;
  const CurrentDevice current(device);
  PEAL_TRY(current.status());
  void* base = nullptr;
  PEAL_TRY(cudaResult(cudaIpcOpenMemHandle(&base, handle, cudaIpcMemLazyEnablePeerAccess),
                      "cudaIpcOpenMemHandle"));
  IpcMapping mapping;
  mapping.base_ = static_cast<std::byte*>(base);
  mapping.device_ = device;
  return mapping;
}

IpcMapping::~IpcMapping() {
  if (base_ != nullptr) {
    const RelaxedCapture relaxed;
    const CurrentDevice current(device_);
    cudaIgnored(cudaIpcCloseMemHandle(base_), "cudaIpcCloseMemHandle");
  }
}

Result<PinnedMapping> PinnedMapping::make(int device, int fd, size_t bytes) {
  const RelaxedCapture relaxed;
  const CurrentDevice current(device);
  PEAL_TRY(current.status());
  PinnedMapping mapping;
  void* host = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (host == MAP_FAILED) {
    return systemError(fmt::format("mmap of a window of {} bytes in host memory", bytes), errno);
  }
  mapping.host_ = host;
  mapping.bytes_ = bytes;
  PEAL_TRY(cudaResult(cudaHostRegister(host, bytes, cudaHostRegisterPortable | cudaHostRegisterMapped),
                      "cudaHostRegister of a window of {} bytes", bytes));
  mapping.pinned_ = true;
  void* onDevice = nullptr;
  PEAL_TRY(cudaResult(cudaHostGetDevicePointer(&onDevice, host, 0), "cudaHostGetDevicePointer of a window"));
  mapping.onDevice_ = static_cast<std::byte*>(onDevice);
  return mapping;
}

PinnedMapping::~PinnedMapping() {
  if (pinned_) {
    const RelaxedCapture relaxed;
    cudaIgnored(cudaHostUnregister(host_), "cudaHostUnregister");
  }
  if (host_ != nullptr) {
    munmap(host_, bytes_);
  }
}

// ---- windows ----

Result<std::shared_ptr<Window>> Window::onDevice(int device, size_t bytes, Deadline deadline) {
  Result<DeviceBuffer> buffer = DeviceBuffer::make(device, bytes);
  if (!buffer) {
    return buffer.error();
  }
  const RelaxedCapture relaxed;
  const CurrentDevice current(device);
  PEAL_TRY(current.status());
  Result<StreamHolder> stream = StreamHolder::make(device);
  if (!stream) {
    return stream.error();
  }
  PEAL_TRY(cudaResult(cudaMemsetAsync(buffer->data(), 0, bytes, stream->get()), "zeroing a window"));
  if (Result<void> zeroed = awaitStream(stream->get(), deadline, "zeroing a window"); !zeroed) {
    if (zeroed.error().code == pealTimeout) {
      buffer->release();  // freeing would wait for the same
    }
    return zeroed.error();
  }
  const std::shared_ptr<Window> window(new Window);
  window->device_ = std::move(*buffer);
  window->bytes_ = bytes;
  window->publish(window);
  return window;
}

Result<std::shared_ptr<Window>> Window::onHost(int device, size_t bytes) {
  bytes = wholePages(bytes);
  Result<OwnedFd> file = createMemoryFile("peal-window", bytes);
  if (!file) {
    return file.error();
  }
  Result<PinnedMapping> mapping = PinnedMapping::make(device, file->get(), bytes);
  if (!mapping) {
    return mapping.error();
  }
  const std::shared_ptr<Window> window(new Window);
  window->file_ = std::move(*file);
  window->pinned_ = std::move(*mapping);
  window->bytes_ = bytes;
  window->publish(window);
  return window;
}

void Window::publish(const std::shared_ptr<Window>& self) {
  token_ = randomNonce();
  LocalWindows& local = localWindows();
  const std::lock_guard lock(local.mutex);
  std::erase_if(local.byToken, [](const auto& entry) { return entry.second.expired(); });
  local.byToken[token_] = self;
}

std::shared_ptr<Window> Window::find(const Nonce& token) {
  LocalWindows& local = localWindows();
  const std::lock_guard lock(local.mutex);
  const auto found = local.byToken.find(token);
  return found == local.byToken.end() ? nullptr : found->second.lock();
}

}  // namespace peal::cuda
