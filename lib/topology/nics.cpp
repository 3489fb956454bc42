#include "lib/topology/nics.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <iterator>

#include "lib/base/rdma_port.h"
#include "lib/topology/files.h"
#include "lib/topology/pci.h"

namespace peal {
namespace {

constexpr int kInfiniBandType = 32;  // ARPHRD_INFINIBAND

int64_t numberIn(const std::string& text, int64_t fallback) {
  int64_t value = 0;
  const auto [end, fault] = std::from_chars(text.data(), text.data() + text.size(), value);
  return fault == std::errc() ? value : fallback;
}

std::string driverOf(const std::string& device) {
  const std::string driver = resolved(device + "/driver");
  return driver.empty() ? "" : driver.substr(driver.rfind('/') + 1);
}

std::string interfaceState(const LiveInterface& live, const std::string& folder) {
  if (!live.switchedOn) {
    return fmt::format("down: switched off (ip link set {} up)", live.name);
  }
  if (folder.empty()) {
    return "up";
  }
  // "unknown" is what drivers say that do not report their state: lo, tun, some virtual cards.
  const std::string state = readLine(folder + "/operstate");
  if (state.empty() || state == "up" || state == "unknown") {
    return "up";
  }
  return readLine(folder + "/carrier") == "0" ? fmt::format("{}: no carrier (cable, switch or peer)", state)
                                              : state;
}

Nic nicOf(const LiveInterface& live, const SystemRoots& roots) {
  Nic nic;
  nic.interface = live.name;
  nic.addresses = live.addresses;
  std::string folder = roots.sys + "/class/net/" + live.name;
  if (numberIn(readLine(folder + "/ifindex"), -1) != live.index) {
    folder.clear();  // /sys shows another network namespace
  }
  nic.state = interfaceState(live, folder);
  if (live.loopback) {
    nic.kind = NicKind::Loopback;
    return nic;
  }
  const std::string device = folder.empty() ? "" : resolved(folder + "/device");
  if (device.empty()) {
    nic.kind = NicKind::Virtual;
  } else {
    nic.place = pciPlaceOfPath(device);
    nic.driver = driverOf(device);
    nic.kind =
        numberIn(readLine(folder + "/type"), 0) == kInfiniBandType ? NicKind::InfiniBand : NicKind::Ethernet;
  }
  const int64_t speed = folder.empty() ? -1 : numberIn(readLine(folder + "/speed"), -1);
  nic.speedMbps = speed > 0 ? speed : -1;
  return nic;
}

// "4: ACTIVE"
std::string rdmaState(const std::string& port) {
  const auto word = [](const std::string& text) {
    const size_t colon = text.find(": ");
    return colon == std::string::npos ? text : text.substr(colon + 2);
  };
  const std::string state = word(readLine(port + "/state"));
  if (state == "ACTIVE") {
    return "up";
  }
  const std::string physical = word(readLine(port + "/phys_state"));
  if (state == "INIT") {
    return "down: the port waits for a subnet manager (INIT)";
  }
  return fmt::format("down: port {}{}", state.empty() ? "of unknown state" : state,
                     physical.empty() ? "" : fmt::format(", physically {}", physical));
}

// "200 Gb/sec (4X HDR)", "2.5 Gb/sec (1X SDR)"
int64_t rdmaSpeedMbps(const std::string& rate) {
  double gigabits = 0;
  const auto [end, fault] = std::from_chars(rate.data(), rate.data() + rate.size(), gigabits);
  return fault == std::errc() && gigabits > 0 ? static_cast<int64_t>(gigabits * 1000) : -1;
}

void addPort(const std::string& rdma, int port, const SystemRoots& roots, std::vector<Nic>& nics) {
  const std::string folder = roots.sys + "/class/infiniband/" + rdma;
  const std::string portFolder = fmt::format("{}/ports/{}", folder, port);
  const std::vector<std::string> interfaces =
      interfacesOfRdmaPort(roots.sys + "/class/infiniband", rdma, port);
  const std::string interface = interfaces.empty() ? "" : interfaces.front();
  auto nic = std::find_if(nics.begin(), nics.end(), [&](const Nic& one) {
    return !interface.empty() && one.interface == interface && one.rdma.empty();
  });
  const std::string state = rdmaState(portFolder);
  if (nic == nics.end()) {
    nic = nics.insert(nics.end(), Nic{});
    const std::string device = resolved(folder + "/device");
    nic->place = pciPlaceOfPath(device);
    nic->driver = driverOf(device);
    nic->state = state;
    nic->kind =
        readLine(portFolder + "/link_layer") == "InfiniBand" ? NicKind::InfiniBand : NicKind::Ethernet;
  } else if (nic->state == "up") {
    nic->state = state;
  }
  nic->rdma = rdma;
  nic->port = port;
  if (const int64_t speed = rdmaSpeedMbps(readLine(portFolder + "/rate")); speed > 0) {
    nic->speedMbps = speed;
  }
}

}  // namespace

std::vector<Nic> discoverNics(const std::vector<LiveInterface>& interfaces, const SystemRoots& roots) {
  std::vector<Nic> nics;
  std::transform(interfaces.begin(), interfaces.end(), std::back_inserter(nics),
                 [&](const LiveInterface& live) { return nicOf(live, roots); });
  const std::string devices = roots.sys + "/class/infiniband";
  for (const std::string& rdma : namesIn(devices)) {
    for (const std::string& port : namesIn(fmt::format("{}/{}/ports", devices, rdma))) {
      addPort(rdma, static_cast<int>(numberIn(port, 0)), roots, nics);
    }
  }
  return nics;
}

}  // namespace peal
