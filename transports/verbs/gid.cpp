#include "transports/verbs/gid.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <ifaddrs.h>
#include <netinet/in.h>

#include <bit>
#include <cstring>
#include <memory>
#include <optional>
#include <string_view>

#include "lib/base/subnet.h"

namespace peal::verbs {
namespace {

constexpr int kMappedBits = 96;  // ::ffff:0:0/96 before an IPv4 address
constexpr uint8_t kMapped[12] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};

bool isLinkLocal(const ibv_gid& gid) { return gid.raw[0] == 0xfe && (gid.raw[1] & 0xc0) == 0x80; }

bool isZero(const ibv_gid& gid) { return gid.global.subnet_prefix == 0 && gid.global.interface_id == 0; }

ibv_gid mapped(const in_addr& address) {
  ibv_gid gid{};
  std::memcpy(gid.raw, kMapped, sizeof kMapped);
  std::memcpy(gid.raw + sizeof kMapped, &address, sizeof address);
  return gid;
}

// Lower is better.
int rankOf(const ibv_gid_entry& entry) {
  const int version = entry.gid_type == IBV_GID_TYPE_ROCE_V1 ? 3 : 0;
  return version + (isIpv4(entry.gid) ? 0 : isLinkLocal(entry.gid) ? 2 : 1);
}

bool isWished(const ibv_gid_entry& entry, const GidWish& wish) {
  const bool wrongVersion = (wish.version == RoceVersion::V1 && entry.gid_type == IBV_GID_TYPE_ROCE_V2) ||
                            (wish.version == RoceVersion::V2 && entry.gid_type == IBV_GID_TYPE_ROCE_V1);
  return !wrongVersion && inSubnet(entry.gid, wish.subnet);
}

template <class Mask>
int bitsOf(const Mask& mask) {
  int bits = 0;
  for (const unsigned char byte : mask) {
    bits += std::popcount(byte);
  }
  return bits;
}

}  // namespace

bool isIpv4(const ibv_gid& gid) { return std::memcmp(gid.raw, kMapped, sizeof kMapped) == 0; }

std::string gidText(const ibv_gid& gid) {
  char text[INET6_ADDRSTRLEN] = "?";
  if (isIpv4(gid)) {
    inet_ntop(AF_INET, gid.raw + sizeof kMapped, text, sizeof text);
  } else {
    inet_ntop(AF_INET6, gid.raw, text, sizeof text);
  }
  return text;
}

const char* gidTypeText(uint32_t type) {
  return type == IBV_GID_TYPE_ROCE_V2 ? "RoCE v2" : type == IBV_GID_TYPE_ROCE_V1 ? "RoCE v1" : "InfiniBand";
}

Result<Subnet> parseSubnet(const std::string& text) {
  Subnet subnet;
  if (text.empty()) {
    return subnet;
  }
  const bool alone = text.find('/') == std::string::npos;
  std::optional<peal::Subnet> parsed = peal::parseSubnet(alone ? text + "/32" : text);
  if (alone && (!parsed || parsed->addressBytes != 4)) {
    parsed = peal::parseSubnet(text + "/128");
  }
  if (!parsed) {
    return Error{pealInvalidArgument,
                 fmt::format("PEAL_IB_GID_SUBNET=\"{}\" is no subnet: write 10.1.0.0/16 or fd00::/8, with at "
                             "most 32 or 128 bits, or an address.",
                             text)};
  }
  const bool ipv4 = parsed->addressBytes == 4;
  if (ipv4) {
    in_addr address{};
    std::memcpy(&address, parsed->network.data(), sizeof address);
    subnet.address = mapped(address);
  } else {
    std::memcpy(subnet.address.raw, parsed->network.data(), sizeof subnet.address.raw);
  }
  subnet.bits = (ipv4 ? kMappedBits : 0) + static_cast<int>(parsed->bits);
  return subnet;
}

bool inSubnet(const ibv_gid& gid, const Subnet& subnet) {
  const size_t whole = static_cast<size_t>(subnet.bits) / 8;
  const int rest = subnet.bits % 8;
  if (std::memcmp(gid.raw, subnet.address.raw, whole) != 0) {
    return false;
  }
  return rest == 0 || (gid.raw[whole] ^ subnet.address.raw[whole]) >> (8 - rest) == 0;
}

Result<ChosenGid> chooseGid(std::span<const ibv_gid_entry> table, const GidWish& wish) {
  const ibv_gid_entry* best = nullptr;
  std::string seen;
  for (const ibv_gid_entry& entry : table) {
    if (isZero(entry.gid)) {
      continue;
    }
    seen +=
        fmt::format("{}{} ({})", seen.empty() ? "" : ", ", gidText(entry.gid), gidTypeText(entry.gid_type));
    if (isWished(entry, wish) && (best == nullptr || rankOf(entry) < rankOf(*best))) {
      best = &entry;
    }
  }
  if (best == nullptr) {
    return Error{
        pealSystemError,
        seen.empty()
            ? std::string("it has no GID: give its network interface an address")
            : fmt::format("none of its GIDs fits PEAL_IB_GID_TYPE and PEAL_IB_GID_SUBNET: {}", seen)};
  }
  return ChosenGid{best->gid, best->gid_index, best->gid_type};
}

int subnetBits(const ibv_gid& gid) {
  const int otherwise = isIpv4(gid) ? kMappedBits + 24 : 64;
  ifaddrs* raw = nullptr;
  if (getifaddrs(&raw) != 0) {
    return otherwise;
  }
  const std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> list(raw, &freeifaddrs);
  for (const ifaddrs* entry = list.get(); entry != nullptr; entry = entry->ifa_next) {
    if (entry->ifa_addr == nullptr || entry->ifa_netmask == nullptr) {
      continue;
    }
    if (entry->ifa_addr->sa_family == AF_INET && isIpv4(gid)) {
      const auto* address = reinterpret_cast<const sockaddr_in*>(entry->ifa_addr);
      if (std::memcmp(&address->sin_addr, gid.raw + sizeof kMapped, sizeof address->sin_addr) == 0) {
        const auto* mask = reinterpret_cast<const sockaddr_in*>(entry->ifa_netmask);
        return kMappedBits + std::popcount(mask->sin_addr.s_addr);
      }
    } else if (entry->ifa_addr->sa_family == AF_INET6 && !isIpv4(gid)) {
      const auto* address = reinterpret_cast<const sockaddr_in6*>(entry->ifa_addr);
      if (std::memcmp(&address->sin6_addr, gid.raw, sizeof gid.raw) == 0) {
        return bitsOf(reinterpret_cast<const sockaddr_in6*>(entry->ifa_netmask)->sin6_addr.s6_addr);
      }
    }
  }
  return otherwise;
}

}  // namespace peal::verbs
