// In place of all other files of this folder in a build without UCX's headers.
#include "transports/ucx/ucx.h"

namespace peal {
namespace {

constexpr const char* kAbsent =
    "this peal was built without UCX's headers (Debian: libucx-dev, 1.13 or newer)";

}  // namespace

Result<std::unique_ptr<Fabric>> openUcx(const FabricOptions&, const UcxOptions&) {
  return Error{pealSystemError, kAbsent};
}

UcxSupport probeUcx() { return {false, kAbsent}; }

}  // namespace peal
