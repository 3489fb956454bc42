// The last error of each thread, error texts, and the checks of handles that every entry point makes.
#include <fmt/format.h>

#include <array>

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
  return checkHandle(function, stream, "stream");
}
Result<void> checkEvent(const char* function, const pealEvent* event) {
  return checkHandle(function, event, "event");
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
