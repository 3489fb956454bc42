#include "transports/verbs/interface.h"

#include <fmt/format.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>

#include <algorithm>
#include <cstddef>
#include <memory>
#include <optional>
#include <span>

#include "lib/base/patterns.h"
#include "lib/base/rdma_port.h"
#include "lib/base/subnet.h"

namespace peal::verbs {
namespace {

using Host = std::vector<std::byte>;  // of an IP address: 4 bytes or 16

template <class Bytes>
Host hostOf(const Bytes& address) {
  const auto bytes = std::as_bytes(std::span(&address, 1));
  return {bytes.begin(), bytes.end()};
}

std::vector<Host> addressesOf(const std::string& interface) {
  std::vector<Host> found;
  ifaddrs* raw = nullptr;
  if (getifaddrs(&raw) != 0) {
    return found;
  }
  const std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> list(raw, &freeifaddrs);
  for (const ifaddrs* entry = list.get(); entry != nullptr; entry = entry->ifa_next) {
    if (entry->ifa_addr == nullptr || interface != entry->ifa_name) {
      continue;
    }
    if (entry->ifa_addr->sa_family == AF_INET) {
      found.push_back(hostOf(reinterpret_cast<const sockaddr_in*>(entry->ifa_addr)->sin_addr));
    } else if (entry->ifa_addr->sa_family == AF_INET6) {
      found.push_back(hostOf(reinterpret_cast<const sockaddr_in6*>(entry->ifa_addr)->sin6_addr));
    }
  }
  return found;
}

// The GID of a RoCE port is an IP address.
Host hostOfGid(const ibv_gid& gid) {
  const Host whole = hostOf(gid.raw);
  return isIpv4(gid) ? Host(whole.end() - 4, whole.end()) : whole;
}

bool isSelected(const std::vector<NamePattern>& patterns, const std::string& interface,
                const std::optional<Host>& own) {
  std::vector<Host> all = addressesOf(interface);
  if (own) {
    all.push_back(*own);
  }
  return selects(patterns, [&](const NamePattern& pattern) {
    const std::optional<peal::Subnet> subnet = peal::parseSubnet(pattern.name);
    if (!subnet) {
      return pattern.matches(interface);
    }
    return own && !pattern.exclude
               ? subnet->holds(*own)
               : std::any_of(all.begin(), all.end(), [&](const Host& host) { return subnet->holds(host); });
  });
}

}  // namespace

std::string dropUnselected(std::vector<ibv_gid_entry>& table, const std::string& device, int port,
                           const Options& options) {
  if (options.interfaces.empty()) {
    return "";
  }
  const std::vector<NamePattern> patterns = parsePatterns(options.interfaces);
  const std::vector<std::string> ofPort = interfacesOfRdmaPort(options.rdmaRoot, device, port);
  std::vector<std::string> dropped;
  std::erase_if(table, [&](const ibv_gid_entry& entry) {
    const bool isInfiniBand = entry.gid_type == IBV_GID_TYPE_IB;
    char buffer[IF_NAMESIZE] = "";
    std::string name = entry.ndev_ifindex != 0 && if_indextoname(entry.ndev_ifindex, buffer) != nullptr
                           ? std::string(buffer)
                           : std::string();
    if (name.empty() && !ofPort.empty()) {
      name = ofPort.front();
    }
    const std::optional<Host> own = isInfiniBand ? std::nullopt : std::optional(hostOfGid(entry.gid));
    if ((isInfiniBand && name.empty()) || isSelected(patterns, name, own)) {
      return false;
    }
    name = name.empty() ? "of unknown name" : name;
    if (std::find(dropped.begin(), dropped.end(), name) == dropped.end()) {
      dropped.push_back(name);
    }
    return true;
  });
  return fmt::format("{}", fmt::join(dropped, ", "));
}

}  // namespace peal::verbs
