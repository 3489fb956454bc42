#include "transports/ucx/settings.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <fstream>

#include "lib/base/config.h"
#include "lib/base/rdma_port.h"
#include "transports/ucx/wire.h"

namespace peal::ucx {
namespace {

// Only what goes over a network: ranks of one node have shared memory of their own, and UCX's would leave
// files in /dev/shm when a rank is killed.
constexpr const char* kTransports = "tcp,rc,ud,dc";

// The headers of UCX and of TCP's framing that a message carries besides peal's.
constexpr size_t kFramingBytes = 512;

// The memory that UCX takes for its buffers is a multiple of this.
constexpr size_t kLargestSegmentBytes = (1 << 20) + kHeaderBytes + kFramingBytes;

// What a socket has when nothing is said (net.ipv4.tcp_wmem).
constexpr size_t kLeastSocketBytes = 16384 / 2;

// What a socket may ask for where the system does not tell (a container without /proc): the kernel's default.
constexpr size_t kUsualMostSocketBytes = 212992;

size_t wantedSocketBytes(const FabricOptions& options) {
  return static_cast<size_t>(options.slots) * (options.slotBytes + 4096);
}

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
    const std::string name = device.path().filename().string();
    for (int port = 1; fs::exists(device.path() / "ports" / std::to_string(port), none); ++port) {
      const std::vector<std::string> own = interfacesOfRdmaPort(root, name, port);
      const bool isChosen = std::any_of(own.begin(), own.end(), [&](const std::string& one) {
        return std::find(interfaces.begin(), interfaces.end(), one) != interfaces.end();
      });
      const fs::path folder = device.path() / "ports" / std::to_string(port);
      const bool isUpAlone = own.empty() && firstLine(folder / "link_layer") == "InfiniBand" &&
                             firstLine(folder / "state") == "4: ACTIVE";
      if (isChosen || isUpAlone) {
        devices.push_back(fmt::format("{}:{}", name, port));
      }
    }
  }
  std::sort(devices.begin(), devices.end());
  return devices;
}

size_t parseBytes(const std::string& text) {
  size_t value = 0;
  const auto [end, fault] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (fault != std::errc()) {
    return 0;
  }
  switch (end == text.data() + text.size() ? 'b' : *end | 0x20) {
    case 'b':
      return value;
    case 'k':
      return value << 10;
    case 'm':
      return value << 20;
    case 'g':
      return value << 30;
    default:
      return 0;
  }
}

size_t socketBytes(const FabricOptions& options, const std::string& mostText) {
  const std::optional<std::string> given = foreignVariable("UCX_TCP_SNDBUF");
  const size_t asked = given ? std::max(parseBytes(*given), kLeastSocketBytes) : wantedSocketBytes(options);
  const size_t told = parseBytes(mostText);
  // The system doubles what is asked for, for its own needs; a tenth stays for messages of credits.
  const size_t granted = 2 * std::min(asked, told > 0 ? told : kUsualMostSocketBytes);
  return granted - granted / 10;
}

size_t socketBytes(const FabricOptions& options) {
  return socketBytes(options, firstLine("/proc/sys/net/core/wmem_max"));
}

bool usesOnlyTcp() {
  std::error_code none;
  return foreignVariable("UCX_TLS") == "tcp" ||
         std::filesystem::directory_iterator(kRdmaRoot, none) == std::filesystem::directory_iterator();
}

std::vector<Setting> settingsFor(const FabricOptions& options, const UcxOptions& ucxOptions) {
  std::vector<Setting> all;
  all.push_back({"TLS", kTransports, true});
  // UCX would complain of the transports and devices of these lists that the machine does not have.
  all.push_back({"WARN_INVALID_CONFIG", "n", false});
  if (!ucxOptions.interfaces.empty()) {
    std::vector<std::string> devices = ucxOptions.interfaces;
    const std::vector<std::string> rdma = rdmaDevicesOf(ucxOptions.interfaces, kRdmaRoot);
    devices.insert(devices.end(), rdma.begin(), rdma.end());
    all.push_back({"NET_DEVICES", fmt::format("{}", fmt::join(devices, ",")), true});
  }
  // A full slot travels as one piece, straight from where it lies into the socket; what the socket does not
  // take is copied. Measured in docs/NETWORKS.md against UCX's other ways.
  const std::string segment = std::to_string(
      std::clamp<size_t>(options.slotBytes + kHeaderBytes + kFramingBytes, 65536, kLargestSegmentBytes));
  all.push_back({"TCP_RX_SEG_SIZE", segment, false});
  all.push_back({"TCP_TX_SEG_SIZE", segment, false});
  all.push_back({"TCP_SNDBUF", std::to_string(wantedSocketBytes(options)), false});
  if (usesOnlyTcp()) {
    // Over TCP UCX aborts the process if a peer dies while a send of the kind "zcopy" waits for the socket
    // (uct_tcp_ep_sendv completes it twice; met with 1.13.1).
    all.push_back({"ZCOPY_THRESH", "inf", false});
  }
  std::erase_if(all, [](const Setting& setting) {
    return foreignVariable(("UCX_" + setting.name).c_str()).has_value();
  });
  return all;
}

}  // namespace peal::ucx
