// Windows: the memory of a rank that its peers write, and views of peers' windows.
//
// Who frees what, and when:
//   - A window belongs to a shared_ptr. Ranks of the same process hold the peer's window itself, so the
//     last of them frees it, whichever leaves first.
//   - A view of another process's window is an IPC mapping. It is closed when the rank that holds it is
//     destroyed, not when the peer leaves: kernels issued earlier may still store credits there.
//   - The owner frees its window only when every other process has said that it closed its view, or has ended
//     (watch.h). CUDA calls the other order undefined.
//   - A window in host memory lives as long as anybody maps it; nobody waits for anybody.
#pragma once
#include <cuda_runtime.h>

#include <cstddef>
#include <memory>
#include <utility>

#include "lib/base/clock.h"
#include "lib/base/result.h"
#include "lib/memory/cuda.h"
#include "lib/memory/descriptor.h"
#include "transports/cuda_ipc/identity.h"
#include "transports/cuda_ipc/readers.h"
#include "transports/device_memory.h"

namespace peal::cuda {

// Memory of another process, mapped for one device of this one.
class IpcMapping {
 public:
  IpcMapping() = default;
  IpcMapping(IpcMapping&& other) noexcept { swap(other); }
  IpcMapping& operator=(IpcMapping&& other) noexcept {
    swap(other);
    return *this;
  }
  IpcMapping(const IpcMapping&) = delete;
  IpcMapping& operator=(const IpcMapping&) = delete;
  ~IpcMapping();
  static Result<IpcMapping> open(int device, const cudaIpcMemHandle_t& handle);
  std::byte* base() const { return base_; }

 private:
  void swap(IpcMapping& other) noexcept {
    std::swap(base_, other.base_);
    std::swap(device_, other.device_);
  }
  std::byte* base_ = nullptr;
  int device_ = -1;
};

// A memory file, mapped here and pinned for this process's devices.
class PinnedMapping {
 public:
  PinnedMapping() = default;
  PinnedMapping(PinnedMapping&& other) noexcept { swap(other); }
  PinnedMapping& operator=(PinnedMapping&& other) noexcept {
    swap(other);
    return *this;
  }
  PinnedMapping(const PinnedMapping&) = delete;
  PinnedMapping& operator=(const PinnedMapping&) = delete;
  ~PinnedMapping();
  static Result<PinnedMapping> make(int device, int fd, size_t bytes);
  std::byte* onDevice() const { return onDevice_; }

 private:
  void swap(PinnedMapping& other) noexcept {
    std::swap(host_, other.host_);
    std::swap(bytes_, other.bytes_);
    std::swap(pinned_, other.pinned_);
    std::swap(onDevice_, other.onDevice_);
  }
  void* host_ = nullptr;
  size_t bytes_ = 0;
  bool pinned_ = false;
  std::byte* onDevice_ = nullptr;
};

// This rank's window, zeroed.
class Window {
 public:
  static Result<std::shared_ptr<Window>> onDevice(int device, size_t bytes, Deadline deadline);
  static Result<std::shared_ptr<Window>> onHost(int device, size_t bytes);

  std::byte* data() const { return file_ ? pinned_.onDevice() : device_.data(); }  // as kernels address it
  size_t bytes() const { return bytes_; }
  int device() const { return device_.device(); }  // of a window in device memory
  int file() const { return file_.get(); }         // of a window in host memory
  const Nonce& token() const { return token_; }
  // The owner's kernels; nullptr: they read nobody's buffers. Set before peers find the window.
  void setReaders(std::shared_ptr<Readers> readers) { readers_ = std::move(readers); }
  const std::shared_ptr<Readers>& readers() const { return readers_; }
  // Leaves the memory to the end of the process.
  void abandon() { device_.release(); }

  // Ranks of one process find each other's windows by token, as long as somebody holds them.
  static std::shared_ptr<Window> find(const Nonce& token);

 private:
  Window() = default;
  void publish(const std::shared_ptr<Window>& self);

  Nonce token_{};
  size_t bytes_ = 0;
  DeviceBuffer device_;
  OwnedFd file_;
  PinnedMapping pinned_;
  std::shared_ptr<Readers> readers_;
};

// A peer's window as this rank has it.
struct PeerWindow {
  Reach reach = Reach::Self;
  std::byte* address = nullptr;  // as kernels of this rank address it
  GpuPath path = GpuPath::HostMemory;
  std::shared_ptr<Window> shared;  // of this process
  IpcMapping ipc;
  PinnedMapping pinned;
};

}  // namespace peal::cuda
