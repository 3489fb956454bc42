// Which entry of a port's GID table a queue pair uses. An entry's place in the table says nothing: it depends
// on the order in which addresses came up. Chosen by type and address.
//
// Pure, but for subnetBits(), which asks the system for the interfaces' netmasks.
#pragma once
#include <infiniband/verbs.h>

#include <span>
#include <string>

#include "lib/base/result.h"

namespace peal::verbs {

enum class RoceVersion { Any, V1, V2 };

// An address and how many of its leading bits count. An IPv4 address is written as ::ffff:a.b.c.d, as it is
// in a GID.
struct Subnet {
  ibv_gid address{};
  int bits = 0;
};

struct GidWish {
  RoceVersion version = RoceVersion::Any;
  Subnet subnet;  // bits 0: any
};

struct ChosenGid {
  ibv_gid gid{};
  uint32_t index = 0;
  uint32_t type = IBV_GID_TYPE_IB;
};

// "10.1.0.0/16" or "fd00::/8"; empty: any.
Result<Subnet> parseSubnet(const std::string& text);
bool isIpv4(const ibv_gid& gid);
bool inSubnet(const ibv_gid& gid, const Subnet& subnet);

// The best entry: RoCE v2 before v1 (v2 crosses routers), IPv4 before IPv6 before link-local addresses, then
// the lowest index. The error lists the table.
Result<ChosenGid> chooseGid(std::span<const ibv_gid_entry> table, const GidWish& wish);

// Leading bits of the GID that name its subnet: from the interface's netmask where the address is found on
// one, else 24 of an IPv4 address and 64 of any other.
int subnetBits(const ibv_gid& gid);

std::string gidText(const ibv_gid& gid);
const char* gidTypeText(uint32_t type);

}  // namespace peal::verbs
