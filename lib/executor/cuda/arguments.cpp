#include "lib/executor/cuda/arguments.h"

#include <fmt/format.h>

#include <algorithm>

#include "lib/memory/cuda.h"

namespace peal::cuda {
namespace {

// The handles that are no streams of their own.
bool isDefaultStream(cudaStream_t stream) {
  return stream == nullptr || stream == cudaStreamLegacy || stream == cudaStreamPerThread;
}

const char* remedyFor(cudaMemoryType type) {
  switch (type) {
    case cudaMemoryTypeHost:
      return "Kernels would reach it over PCIe at every access: copy it to memory of the device.";
    case cudaMemoryTypeManaged:
      return "The driver may move it while peers read it: use memory of cudaMalloc or pealMemAllocDevice.";
    case cudaMemoryTypeDevice:
      return "Use memory of the communicator's own device.";
    default:
      return "Use memory of the device, or a communicator on host memory (PEAL_DEVICE_HOST).";
  }
}

// The host steers steps through it, so it may lie in its memory.
Result<void> checkControl(const std::string& name, int device, const pealAdamwControl_t* control) {
  const Result<PointerKind> kind = kindOf(control);
  if (!kind) {
    return kind.error();
  }
  if (kind->type != cudaMemoryTypeHost) {
    return checkBuffer(name, device, "state->control", control, sizeof *control);
  }
  if (kind->onDevice != reinterpret_cast<const std::byte*>(control)) {
    return Error{
        pealInvalidArgument,
        fmt::format("{}: state->control ({}) is pinned host memory that device {} does not address like "
                    "that (it has {} for it). Give the address of cudaHostGetDevicePointer.",
                    name, static_cast<const void*>(control), device,
                    static_cast<const void*>(kind->onDevice))};
  }
  return {};
}

}  // namespace

Result<StreamState> stateOf(const std::string& name, int device, cudaStream_t stream) {
  if (!isDefaultStream(stream)) {
    int owner = -1;
    if (const cudaError_t code = cudaStreamGetDevice(stream, &owner); code != cudaSuccess) {
      const Error error = errorOf(code, fmt::format("{}: asking for the stream's device", name));
      const bool isNone = code == cudaErrorInvalidResourceHandle || code == cudaErrorInvalidValue;
      return isNone ? Error{pealInvalidArgument,
                            error.message + ". Is it a cudaStream_t that was not destroyed?"}
                    : error;
    }
    if (owner != device) {
      return Error{
          pealInvalidArgument,
          fmt::format("{}: the stream belongs to device {}, the communicator is on device {}. Make the "
                      "stream while device {} is current (cudaSetDevice).",
                      name, owner, device, device)};
    }
  }
  StreamState state{.stream = stream};
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  if (const cudaError_t code = cudaStreamGetCaptureInfo(stream, &status, &state.capture, &state.graph);
      code != cudaSuccess) {
    const Error error = errorOf(code, fmt::format("{}: asking whether the stream is being captured", name));
    if (code != cudaErrorStreamCaptureImplicit) {
      return error;
    }
    return Error{pealInvalidUsage,
                 error.message +
                     " The default stream cannot be used while another stream is captured in global "
                     "mode: give the call the captured stream, or another one that was made with "
                     "cudaStreamNonBlocking."};
  }
  if (status == cudaStreamCaptureStatusInvalidated) {
    return Error{
        pealInvalidUsage,
        fmt::format("{}: the capture of the stream was broken by an earlier call, so nothing can be "
                    "added to its graph. End it with cudaStreamEndCapture and look at its error; begin "
                    "the capture with cudaStreamCaptureModeThreadLocal or Relaxed if other threads use "
                    "CUDA meanwhile.",
                    name)};
  }
  if (status == cudaStreamCaptureStatusNone) {
    state.capture = 0;
    state.graph = nullptr;
  }
  return state;
}

Result<void> checkBuffer(const std::string& name, int device, const char* what, const void* data,
                         size_t bytes) {
  if (bytes == 0) {
    return {};
  }
  Result<PointerKind> kind = kindOf(data);
  if (!kind) {
    return kind.error();
  }
  if (kind->type != cudaMemoryTypeDevice || kind->device != device) {
    return Error{pealInvalidArgument,
                 fmt::format("{}: {} ({}) is {}; the communicator is on device {}. {} (Memory that was freed "
                             "looks like host memory.)",
                             name, what, data, kind->text(), device, remedyFor(kind->type))};
  }
  const Result<size_t> behind = bytesBehind(data, device, bytes);
  if (!behind) {
    return behind.error();
  }
  if (bytes > *behind) {
    return Error{
        pealInvalidArgument,
        fmt::format(
            "{}: {} ({}) needs {} bytes, and its allocation ends {} bytes after that address. Counts are "
            "in elements, not bytes.",
            name, what, data, bytes, *behind)};
  }
  return {};
}

Result<void> checkAdamw(const std::string& name, int device, const pealAdamw_t& state) {
  const size_t bytes = state.count * sizeof(float);
  PEAL_TRY(checkBuffer(name, device, "state->master", state.master, bytes));
  PEAL_TRY(checkBuffer(name, device, "state->moment1", state.moment1, bytes));
  PEAL_TRY(checkBuffer(name, device, "state->moment2", state.moment2, bytes));
  PEAL_TRY(checkBuffer(name, device, "state->segments", state.segments,
                       state.segmentCount * sizeof(pealAdamwSegment_t)));
  if (state.reduced != nullptr) {
    PEAL_TRY(checkBuffer(name, device, "state->reduced", state.reduced, state.count * sizeof(uint16_t)));
  }
  return checkControl(name, device, state.control);
}

Result<void> checkScalar(const std::string& name, int device, const void* scalar, size_t bytes) {
  constexpr const char* kWhat = "the pre-multiplied sum's scalar";
  if (reinterpret_cast<uintptr_t>(scalar) % bytes != 0) {
    return Error{pealInvalidArgument,
                 fmt::format("{}: {} ({}) is not at a multiple of its {} bytes, as kernels "
                             "have to read it.",
                             name, kWhat, scalar, bytes)};
  }
  return checkBuffer(name, device, kWhat, scalar, bytes);
}

}  // namespace peal::cuda
