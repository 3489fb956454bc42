// The device executor of a library that was built without CUDA: says so, whoever asks.
#include <fmt/format.h>

#include "lib/executor/device_executor.h"

namespace peal {
namespace {

constexpr const char* kWhy = "this peal was built without CUDA";

Error absent(const std::string& what) {
  return {pealInvalidArgument,
          fmt::format("{}: {}. Use host memory (PEAL_DEVICE_HOST), or build peal with -DPEAL_CUDA=ON.", what,
                      kWhy)};
}

}  // namespace

Result<std::unique_ptr<DeviceExecutor>> makeDeviceExecutor(Exchange&, DeviceLinks,
                                                           const DeviceOptions& options, Deadline) {
  return absent(fmt::format("{}: no communicator on device {}", options.name, options.device));
}

DeviceSupport probeDevices() { return {.built = false, .architectures = "", .count = 0, .reason = kWhy}; }

Result<void> checkDevice(int device) { return absent(fmt::format("device {} is not usable", device)); }

Result<int> currentDevice() { return absent("there is no current device"); }
Result<int> countDevices() { return absent("there is no device"); }

Result<void*> allocateDevice(int device, size_t bytes) {
  return absent(fmt::format("no {} bytes of device {}", bytes, device));
}

Result<void> freeDevice(void* data) { return absent(fmt::format("{} is not memory of a device", data)); }

bool isDeviceAllocation(const void*) { return false; }

Result<void> launchAdamw(int device, const pealAdamw_t& state, const void*, void*, void*) {
  return absent(fmt::format("no AdamW step of {} elements on device {}", state.count, device));
}

}  // namespace peal
