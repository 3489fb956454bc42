// The interfaces of this network namespace and their addresses. See nics.h.
#include <arpa/inet.h>
#include <fmt/format.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <cstring>
#include <memory>
#include <optional>
#include <span>

#include "lib/base/subnet.h"
#include "lib/topology/nics.h"

namespace peal {
namespace {

// The bytes of an IPv4 or IPv6 address; empty for other families.
std::span<const unsigned char> bytesOf(const sockaddr* address) {
  if (address != nullptr && address->sa_family == AF_INET) {
    return {reinterpret_cast<const unsigned char*>(&reinterpret_cast<const sockaddr_in*>(address)->sin_addr),
            4};
  }
  if (address != nullptr && address->sa_family == AF_INET6) {
    return {
        reinterpret_cast<const unsigned char*>(&reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr),
        16};
  }
  return {};
}

std::string addressText(const ifaddrs& entry) {
  const std::span<const unsigned char> bytes = bytesOf(entry.ifa_addr);
  std::array<char, INET6_ADDRSTRLEN> text{};
  if (bytes.empty() ||
      inet_ntop(entry.ifa_addr->sa_family, bytes.data(), text.data(), text.size()) == nullptr) {
    return "";
  }
  int bits = 0;
  for (const unsigned char part : bytesOf(entry.ifa_netmask)) {
    bits += std::popcount(part);
  }
  return fmt::format("{}/{}", text.data(), bits);
}

}  // namespace

Result<std::vector<LiveInterface>> liveInterfaces() {
  ifaddrs* raw = nullptr;
  if (getifaddrs(&raw) != 0) {
    return Error{pealSystemError,
                 fmt::format("getifaddrs: {}. This machine's network interfaces cannot be listed.",
                             std::strerror(errno))};
  }
  const std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> list(raw, &freeifaddrs);
  std::vector<LiveInterface> found;
  for (const ifaddrs* entry = list.get(); entry != nullptr; entry = entry->ifa_next) {
    auto known = std::find_if(found.begin(), found.end(),
                              [&](const LiveInterface& one) { return one.name == entry->ifa_name; });
    if (known == found.end()) {
      known = found.insert(found.end(), {entry->ifa_name,
                                         static_cast<int>(if_nametoindex(entry->ifa_name)),
                                         (entry->ifa_flags & IFF_UP) != 0,
                                         (entry->ifa_flags & IFF_LOOPBACK) != 0,
                                         {}});
    }
    if (const std::string address = addressText(*entry); !address.empty()) {
      known->addresses.push_back(address);
    }
  }
  return found;
}

bool inSubnet(const std::string& address, const std::string& subnet) {
  const std::optional<Subnet> whole = parseSubnet(subnet);
  const std::optional<Subnet> one = parseSubnet(address);
  return whole && one && whole->holds(one->address());
}

}  // namespace peal
