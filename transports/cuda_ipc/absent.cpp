// Device memory in a library that was built without CUDA.
#include "transports/device_memory.h"

namespace peal {

Result<std::unique_ptr<DeviceMemory>> connectDeviceMemory(Exchange&, std::unique_ptr<Endpoint>,
                                                          const DeviceMemoryOptions&) {
  return Error{pealInvalidUsage,
               "this libpeal was built without CUDA. Configure it with -DPEAL_CUDA=ON to use GPUs."};
}

}  // namespace peal
