// The engine's GPU memory in a library that was built without CUDA: says so.
#include <fmt/format.h>

#include "lib/zero/device.h"

namespace peal::zero {

Result<std::shared_ptr<Device>> makeCudaDevice(int device) {
  return Error{pealInvalidArgument,
               fmt::format("no engine on device {}: this peal was built without CUDA. Use a communicator on "
                           "host memory, or build peal with -DPEAL_CUDA=ON",
                           device)};
}

}  // namespace peal::zero
