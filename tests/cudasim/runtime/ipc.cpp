#include "tests/cudasim/runtime/ipc.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <string>

#include "tests/cudasim/core/memory.h"
#include "tests/cudasim/runtime/api.h"

namespace peal::cudasim {
namespace {

cudaError_t openMemory(Lock& lock, void** devPtr, const FileName& name, unsigned flags) {
  if (!runtime().machine.ipc) {
    return cudaErrorNotSupported;
  }
  if (devPtr == nullptr || name.magic != kMemoryMagic || flags != cudaIpcMemLazyEnablePeerAccess) {
    return cudaErrorInvalidValue;
  }
  if (name.process == getpid()) {
    return cudaErrorDeviceUninitialized;  // as CUDA answers the exporting process
  }
  if (!runtime().reachesPhysical(currentDevice(), name.device)) {
    return cudaErrorPeerAccessUnsupported;
  }
  if (Range* open = runtime().memory.opened(name.process, name.id, currentDevice())) {
    open->opens++;
    *devPtr = reinterpret_cast<void*>(open->base);
    return cudaSuccess;
  }
  const int fd = openNamedFile(name);
  if (fd < 0) {
    return cudaErrorMapBufferObjectFailed;
  }
  Range range;
  range.bytes = name.bytes;
  range.mappedBytes = name.mappedBytes;
  range.id = name.id;
  range.exporter = name.process;
  range.opener = currentDevice();
  const int device = runtime().visibleNumber(name.device);
  range.device = device >= 0 ? device : currentDevice();
  const Range* mapped = runtime().memory.addOpened(lock, fd, range);
  close(fd);
  if (mapped == nullptr) {
    return cudaErrorMapBufferObjectFailed;
  }
  *devPtr = reinterpret_cast<void*>(mapped->base);
  return cudaSuccess;
}

}  // namespace

uint64_t inodeOf(int fd) {
  struct stat status {};
  return fstat(fd, &status) == 0 ? status.st_ino : 0;
}

int openNamedFile(const FileName& name) {
  const std::string path = "/proc/" + std::to_string(name.process) + "/fd/" + std::to_string(name.fd);
  const int fd = open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (fd < 0) {
    return -1;
  }
  // The number may be another file's by now.
  struct stat status {};
  if (fstat(fd, &status) != 0 || status.st_ino != name.inode ||
      static_cast<uint64_t>(status.st_size) != name.mappedBytes) {
    close(fd);
    return -1;
  }
  return fd;
}

}  // namespace peal::cudasim

using namespace peal::cudasim;

cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t* handle, void* devPtr) {
  const Function function{"cudaIpcGetMemHandle", cudaErrorMemoryAllocation, true};
  return call(function, [&](Lock&) {
    if (!runtime().machine.ipc) {
      return cudaErrorNotSupported;
    }
    const Range* range = runtime().memory.holding(devPtr);
    if (handle == nullptr || range == nullptr || range->kind != RangeKind::Device) {
      return cudaErrorInvalidValue;
    }
    setExported(range->base);
    const FileName name{kMemoryMagic,       getpid(),  range->fd,    runtime().physical(range->device),
                        inodeOf(range->fd), range->id, range->bytes, range->mappedBytes};
    *handle = packHandle<cudaIpcMemHandle_t>(name);
    return cudaSuccess;
  });
}

cudaError_t cudaIpcOpenMemHandle(void** devPtr, cudaIpcMemHandle_t handle, unsigned int flags) {
  const Function function{"cudaIpcOpenMemHandle", cudaErrorMapBufferObjectFailed, true};
  return call(function, [&](Lock& lock) { return openMemory(lock, devPtr, unpackHandle(handle), flags); });
}

cudaError_t cudaIpcCloseMemHandle(void* devPtr) {
  const Function function{.name = "cudaIpcCloseMemHandle",
                          .usualError = cudaErrorUnknown,
                          .unsafeInCapture = true,
                          .releases = true};
  return call(function, [&](Lock& lock) {
    Range* range = runtime().memory.startingAt(devPtr);
    if (range == nullptr || range->kind != RangeKind::Opened) {
      return cudaErrorInvalidValue;
    }
    if (--range->opens == 0) {
      runtime().memory.remove(lock, range);
    }
    return cudaSuccess;
  });
}
