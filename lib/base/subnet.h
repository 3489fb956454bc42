// Subnets as people write them: "10.0.0.0/8", "fd00::/16". Pure.
#pragma once
#include <array>
#include <cstddef>
#include <optional>
#include <span>
#include <string_view>

namespace peal {

struct Subnet {
  std::array<std::byte, 16> network{};  // in network order
  size_t addressBytes = 0;              // 4 (IPv4) or 16
  unsigned bits = 0;                    // of the network that count

  // host: the bytes of an address; one of the other family is in no subnet of this one.
  bool holds(std::span<const std::byte> host) const;
  std::span<const std::byte> address() const { return std::span(network).first(addressBytes); }
};

// Nothing if the text is no subnet: an interface's name, an address alone, more bits than there are.
std::optional<Subnet> parseSubnet(std::string_view text);

}  // namespace peal
