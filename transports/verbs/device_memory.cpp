#include "transports/verbs/device_memory.h"

#include <fmt/format.h>

#include <cerrno>
#include <cstring>
#include <string>

namespace peal::verbs {

Result<Registration> registerDeviceMemory(Device& device, void* address, size_t bytes, int dmabufFile,
                                          int access) {
  Library& library = device.library();
  std::string first = "the GPU's driver gives no dmabuf";
  if (dmabufFile >= 0) {
    errno = 0;
    ibv_mr* mr =
        library.regDmabufMr(device.pd(), 0, bytes, reinterpret_cast<uint64_t>(address), dmabufFile, access);
    if (mr != nullptr) {
      return Registration(library, mr);
    }
    first = fmt::format("ibv_reg_dmabuf_mr: {}", std::strerror(errno));
  }
  errno = 0;
  ibv_mr* mr = library.regMr(device.pd(), address, bytes, access);
  if (mr != nullptr) {
    return Registration(library, mr);
  }
  return Error{pealSystemError,
               fmt::format("{} bytes of GPU memory cannot be registered with {}: {}; ibv_reg_mr: {}. Load "
                           "nvidia_peermem, or use a kernel (5.12 or newer) and drivers with dmabuf.",
                           bytes, device.name(), first, std::strerror(errno))};
}

}  // namespace peal::verbs
