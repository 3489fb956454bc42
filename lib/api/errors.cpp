// The last error of each thread, error texts, and the checks of handles that every entry point makes.
#include <fmt/format.h>

#include <array>
#include <mutex>
#include <unordered_set>

#include "lib/api/api.h"
#include "lib/base/log.h"

namespace peal::api {
namespace {

std::string& lastError() {
  thread_local std::string text;
  return text;
}

template <class Handle>
Result<void> checkHandle(const char* function, const Handle* handle, const char* what) {
  if (handle == nullptr) {
    return Error{pealInvalidArgument, fmt::format("{}: the {} is NULL.", function, what)};
  }
  if (handle->magic != Handle::kMagic) {
    return Error{pealInvalidArgument, fmt::format("{}: {} is not a {}; was it destroyed already?", function,
                                                  static_cast<const void*>(handle), what)};
  }
  return {};
}

// The live host streams. Never destroyed: other static objects may end later.
struct Streams {
  std::mutex mutex;  // guards live
  std::unordered_set<const pealStream*> live;
};
Streams& streams() {
  static auto* const all = new Streams;
  return *all;
}
bool isHostStream(const pealStream* stream) {
  const std::lock_guard lock(streams().mutex);
  return streams().live.contains(stream);
}

}  // namespace

pealResult_t report(const Error& error) {
  lastError() = error.message;
  log(LogLevel::Info, error.message);
  return error.code;
}

Error nullArgument(const char* function, const char* argument) {
  return {pealInvalidArgument, fmt::format("{}: {} is NULL.", function, argument)};
}

Result<void> checkComm(const char* function, const pealComm* comm) {
  return checkHandle(function, comm, "communicator");
}
Result<void> checkStream(const char* function, const pealStream* stream) {
  if (stream == nullptr) {
    return Error{pealInvalidArgument, fmt::format("{}: the stream is NULL.", function)};
  }
  if (!isHostStream(stream)) {
    return Error{
        pealInvalidArgument,
        fmt::format("{}: {} is not a stream made by pealStreamCreate; was it destroyed already, or is "
                    "it a CUDA stream?",
                    function, static_cast<const void*>(stream))};
  }
  return {};
}
Result<void> checkEvent(const char* function, const pealEvent* event) {
  return checkHandle(function, event, "event");
}

void noteStream(const pealStream* stream) {
  const std::lock_guard lock(streams().mutex);
  streams().live.insert(stream);
}
void forgetStream(const pealStream* stream) {
  const std::lock_guard lock(streams().mutex);
  streams().live.erase(stream);
}

Result<StreamRef> streamOn(const std::string& where, int device, pealStream* stream) {
  if (stream == nullptr) {
    return StreamRef{};
  }
  const bool host = isHostStream(stream);
  if (device != PEAL_DEVICE_HOST) {
    if (host) {
      return Error{pealInvalidArgument,
                   fmt::format("{}: the stream was made by pealStreamCreate and runs host work. This call is "
                               "for device {}: pass a cudaStream_t, cast to pealStream_t.",
                               where, device)};
    }
    return StreamRef{.host = nullptr, .cuda = stream};
  }
  if (!host) {
    return Error{
        pealInvalidArgument,
        fmt::format("{}: {} is not a stream made by pealStreamCreate; was it destroyed already? This "
                    "call is for host memory and takes no CUDA stream.",
                    where, static_cast<const void*>(stream))};
  }
  return StreamRef{.host = stream->stream, .cuda = nullptr};
}

Result<StreamRef> streamFor(const char* function, const pealComm& comm, pealStream* stream) {
  if (stream == nullptr) {
    return StreamRef{};
  }
  const Communicator& communicator = *comm.comm;
  return streamOn(fmt::format("{} on {}", function, communicator.name()),
                  communicator.onDevice() ? communicator.device() : PEAL_DEVICE_HOST, stream);
}

}  // namespace peal::api

using namespace peal;
using namespace peal::api;

pealResult_t pealGetVersion(int* version) {
  return guarded([&]() -> Result<void> {
    if (version == nullptr) {
      return nullArgument("pealGetVersion", "version");
    }
    *version = PEAL_VERSION_CODE;
    return {};
  });
}

const char* pealGetErrorString(pealResult_t result) {
  constexpr std::array<const char*, pealNumResults> kTexts{
      "no error",      "unhandled CUDA error", "system error",          "internal error", "invalid argument",
      "invalid usage", "remote error",         "operation in progress", "timeout"};
  return result >= 0 && result < pealNumResults ? kTexts[static_cast<size_t>(result)] : "unknown result code";
}

const char* pealGetLastError(pealComm_t comm) {
  if (comm == nullptr || comm->magic != pealComm::kMagic) {
    return lastError().c_str();
  }
  thread_local std::string text;
  text = comm->comm->lastMessage();
  return text.c_str();
}
