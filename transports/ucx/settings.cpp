#include "transports/ucx/settings.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "lib/base/config.h"
#include "transports/ucx/wire.h"

namespace peal::ucx {
namespace {

// Only what goes over a network: ranks of one node have shared memory of their own, and UCX's would leave
// files in /dev/shm when a rank is killed.
constexpr const char* kTransports = "tcp,rc,ud,dc";

// The headers of UCX and of TCP's framing that a message carries besides peal's.
constexpr size_t kFramingBytes = 512;

std::string firstLine(const std::filesystem::path& file) {
  std::ifstream stream(file);
  std::string line;
  std::getline(stream, line);
  return line;
}

}  // namespace

std::vector<std::string> rdmaDevicesOf(const std::vector<std::string>& interfaces, const std::string& root) {
  namespace fs = std::filesystem;
  std::vector<std::string> devices;
  std::error_code none;
  for (const fs::directory_entry& device : fs::directory_iterator(root, none)) {
    for (const fs::directory_entry& port : fs::directory_iterator(device.path() / "ports", none)) {
      for (const fs::directory_entry& gid :
           fs::directory_iterator(port.path() / "gid_attrs" / "ndevs", none)) {
        const std::string name = device.path().filename().string() + ":" + port.path().filename().string();
        const bool wanted =
            std::find(interfaces.begin(), interfaces.end(), firstLine(gid.path())) != interfaces.end();
        if (wanted && std::find(devices.begin(), devices.end(), name) == devices.end()) {
          devices.push_back(name);
        }
      }
    }
  }
  std::sort(devices.begin(), devices.end());
  return devices;
}

std::vector<Setting> settingsFor(const FabricOptions& options, const UcxOptions& ucxOptions) {
  std::vector<Setting> all;
  all.push_back({"TLS", kTransports, true});
  // UCX would complain of the transports and devices of these lists that the machine does not have.
  all.push_back({"WARN_INVALID_CONFIG", "n", false});
  if (!ucxOptions.interfaces.empty()) {
    std::vector<std::string> devices = ucxOptions.interfaces;
    const std::vector<std::string> rdma = rdmaDevicesOf(ucxOptions.interfaces, "/sys/class/infiniband");
    devices.insert(devices.end(), rdma.begin(), rdma.end());
    all.push_back({"NET_DEVICES", fmt::format("{}", fmt::join(devices, ",")), true});
  }
  // A full slot travels as one piece: cut in several, it would be put together in memory of UCX first.
  const std::string segment =
      std::to_string(std::max<size_t>(65536, options.slotBytes + kHeaderBytes + kFramingBytes));
  all.push_back({"TCP_RX_SEG_SIZE", segment, false});
  std::erase_if(all, [](const Setting& setting) {
    return foreignVariable(("UCX_" + setting.name).c_str()).has_value();
  });
  return all;
}

}  // namespace peal::ucx
