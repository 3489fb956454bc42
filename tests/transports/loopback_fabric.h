// A fabric for tests: plain frames over TCP on 127.0.0.1. Simple rather than fast, and correct enough to show
// that whatever fails above it is not the wire's fault.
#pragma once
#include <memory>

#include "transports/fabric.h"

namespace peal::test {

Result<std::unique_ptr<Fabric>> openLoopback(const FabricOptions& options);

}  // namespace peal::test
