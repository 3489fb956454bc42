// What this machine offers to others, and what a host name stands for. See socket.h.
#include <arpa/inet.h>
#include <fmt/format.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <optional>
#include <string_view>

#include "lib/base/patterns.h"
#include "lib/base/subnet.h"
#include "lib/bootstrap/bytes.h"
#include "lib/bootstrap/socket.h"

namespace peal {
namespace {

AddressReach reachOf(const Address& address, unsigned flags) {
  if (address.family() == AF_INET) {
    const uint32_t host = ntohl(reinterpret_cast<const sockaddr_in&>(address.storage).sin_addr.s_addr);
    if ((flags & IFF_LOOPBACK) != 0 || host >> 24 == 127) {
      return AddressReach::Loopback;
    }
    return host >> 16 == 0xa9fe ? AddressReach::LinkLocal : AddressReach::Routable;
  }
  const in6_addr& host = reinterpret_cast<const sockaddr_in6&>(address.storage).sin6_addr;
  if ((flags & IFF_LOOPBACK) != 0 || IN6_IS_ADDR_LOOPBACK(&host)) {
    return AddressReach::Loopback;
  }
  return IN6_IS_ADDR_LINKLOCAL(&host) ? AddressReach::LinkLocal : AddressReach::Routable;
}

ByteView hostOf(const Address& address) {
  if (address.family() == AF_INET) {
    return std::as_bytes(std::span(&reinterpret_cast<const sockaddr_in&>(address.storage).sin_addr, 1));
  }
  return std::as_bytes(std::span(&reinterpret_cast<const sockaddr_in6&>(address.storage).sin6_addr, 1));
}

bool matches(const NamePattern& pattern, const InterfaceAddress& entry) {
  const std::optional<Subnet> subnet = parseSubnet(pattern.name);
  return subnet ? subnet->holds(hostOf(entry.address)) : pattern.matches(entry.interface);
}

std::string listInterfaces(const std::vector<InterfaceAddress>& all) {
  std::string text;
  for (const InterfaceAddress& entry : all) {
    char host[NI_MAXHOST] = "?";
    getnameinfo(entry.address.pointer(), entry.address.length, host, sizeof host, nullptr, 0, NI_NUMERICHOST);
    text += fmt::format("{}{} ({})", text.empty() ? "" : ", ", entry.interface, host);
  }
  return text.empty() ? "none" : text;
}

}  // namespace

Result<std::vector<InterfaceAddress>> localAddresses() {
  ifaddrs* raw = nullptr;
  if (getifaddrs(&raw) != 0) {
    return Error{
        pealSystemError,
        fmt::format("getifaddrs: {}. Cannot list this machine's network interfaces.", errnoText(errno))};
  }
  const std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> list(raw, &freeifaddrs);
  std::vector<InterfaceAddress> found;
  for (const ifaddrs* entry = list.get(); entry != nullptr; entry = entry->ifa_next) {
    if (entry->ifa_addr == nullptr || (entry->ifa_flags & IFF_UP) == 0) {
      continue;
    }
    InterfaceAddress local;
    local.interface = entry->ifa_name;
    if (entry->ifa_addr->sa_family == AF_INET) {
      local.address = ipv4Address(&reinterpret_cast<const sockaddr_in*>(entry->ifa_addr)->sin_addr, 0);
    } else if (entry->ifa_addr->sa_family == AF_INET6) {
      const auto* ipv6 = reinterpret_cast<const sockaddr_in6*>(entry->ifa_addr);
      local.address = ipv6Address(&ipv6->sin6_addr, 0, ipv6->sin6_scope_id);
    } else {
      continue;
    }
    local.reach = reachOf(local.address, entry->ifa_flags);
    found.push_back(std::move(local));
  }
  return found;
}

Result<std::vector<InterfaceAddress>> selectInterfaces(const std::vector<InterfaceAddress>& all,
                                                       const std::string& pattern) {
  const std::vector<NamePattern> patterns = parsePatterns(pattern);
  std::vector<InterfaceAddress> selected;
  std::copy_if(all.begin(), all.end(), std::back_inserter(selected), [&](const InterfaceAddress& entry) {
    return selects(patterns, [&](const NamePattern& one) { return matches(one, entry); });
  });
  if (selected.empty()) {
    return Error{
        pealInvalidArgument,
        fmt::format("PEAL_INTERFACE=\"{}\" selects none of this machine's interfaces that are up and "
                    "have an address: {}. Correct it, or leave it unset to offer all.",
                    pattern, listInterfaces(all))};
  }
  return selected;
}

std::vector<Address> orderOffered(const std::vector<InterfaceAddress>& selected) {
  const bool anyRoutable = std::any_of(selected.begin(), selected.end(), [](const InterfaceAddress& entry) {
    return entry.reach == AddressReach::Routable;
  });
  std::vector<Address> ordered;
  for (const AddressReach reach : {AddressReach::Routable, AddressReach::LinkLocal, AddressReach::Loopback}) {
    for (const int family : {AF_INET, AF_INET6}) {
      for (const InterfaceAddress& entry : selected) {
        const bool wanted = entry.reach == reach && entry.address.family() == family &&
                            !(reach == AddressReach::LinkLocal && anyRoutable);
        if (wanted) {
          ordered.push_back(entry.address);
        }
      }
    }
  }
  return ordered;
}

std::vector<Address> asSeenFromHere(const std::vector<Address>& offered) {
  const auto isLinkLocal = [](const Address& address) {
    return address.family() == AF_INET6 &&
           IN6_IS_ADDR_LINKLOCAL(&reinterpret_cast<const sockaddr_in6&>(address.storage).sin6_addr);
  };
  const Result<std::vector<InterfaceAddress>> locals = localAddresses();
  std::vector<Address> all;
  for (const Address& address : offered) {
    if (!isLinkLocal(address)) {
      all.push_back(address);
      continue;
    }
    for (const InterfaceAddress& local : locals ? *locals : std::vector<InterfaceAddress>()) {
      if (isLinkLocal(local.address)) {
        const auto& host = reinterpret_cast<const sockaddr_in6&>(address.storage).sin6_addr;
        const auto& ours = reinterpret_cast<const sockaddr_in6&>(local.address.storage);
        all.push_back(ipv6Address(&host, address.port(), ours.sin6_scope_id));
      }
    }
  }
  return all;
}

bool isNumericHost(const std::string& host) {
  addrinfo hints{};
  hints.ai_flags = AI_NUMERICHOST;
  addrinfo* raw = nullptr;
  if (getaddrinfo(host.c_str(), nullptr, &hints, &raw) != 0) {
    return false;
  }
  freeaddrinfo(raw);
  return true;
}

Result<std::vector<Address>> resolveHost(const std::string& host, uint16_t port) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* raw = nullptr;
  if (const int fault = getaddrinfo(host.c_str(), nullptr, &hints, &raw); fault != 0) {
    return Error{
        pealSystemError,
        fmt::format("host \"{}\" has no address: {}. Use an address, or a name that every node knows.", host,
                    fault == EAI_SYSTEM ? errnoText(errno) : gai_strerror(fault))};
  }
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> list(raw, &freeaddrinfo);
  std::vector<Address> found;
  for (const addrinfo* entry = list.get(); entry != nullptr; entry = entry->ai_next) {
    if (entry->ai_family == AF_INET || entry->ai_family == AF_INET6) {
      Address address;
      std::memcpy(&address.storage, entry->ai_addr, entry->ai_addrlen);
      address.length = entry->ai_addrlen;
      address.setPort(port);
      found.push_back(address);
    }
  }
  return found;
}

}  // namespace peal
