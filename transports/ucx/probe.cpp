// What UCX offers on this machine, for peal-info.
#include <fmt/format.h>

#include <cstdio>
#include <cstdlib>
#include <memory>

#include "transports/ucx/worker.h"

namespace peal {

UcxSupport probeUcx() {
  const Result<ucx::Library>& library = ucx::library();
  if (!library) {
    return {false, library.error().message};
  }
  Result<std::unique_ptr<ucx::Worker>> worker = ucx::Worker::open(*library, {}, {});
  if (!worker) {
    return {false, worker.error().message};
  }
  return {true, (*worker)->describeLibrary() + ": " + (*worker)->resources()};
}

}  // namespace peal
