#include "lib/base/subnet.h"

#include <arpa/inet.h>

#include <algorithm>
#include <charconv>
#include <string>

namespace peal {

bool Subnet::holds(std::span<const std::byte> host) const {
  if (host.size() != addressBytes) {
    return false;
  }
  const size_t whole = bits / 8;
  const auto mask = static_cast<std::byte>(0xff00U >> bits % 8);
  return std::equal(network.begin(), network.begin() + static_cast<std::ptrdiff_t>(whole), host.begin()) &&
         (bits % 8 == 0 || ((network[whole] ^ host[whole]) & mask) == std::byte{0});
}

std::optional<Subnet> parseSubnet(std::string_view text) {
  const size_t slash = text.find('/');
  if (slash == std::string_view::npos) {
    return std::nullopt;
  }
  const std::string host(text.substr(0, slash));
  Subnet subnet;
  if (inet_pton(AF_INET, host.c_str(), subnet.network.data()) == 1) {
    subnet.addressBytes = 4;
  } else if (inet_pton(AF_INET6, host.c_str(), subnet.network.data()) == 1) {
    subnet.addressBytes = 16;
  } else {
    return std::nullopt;
  }
  const char* const end = text.data() + text.size();
  const auto [stop, fault] = std::from_chars(text.data() + slash + 1, end, subnet.bits);
  if (fault != std::errc() || stop != end || subnet.bits > 8 * subnet.addressBytes) {
    return std::nullopt;
  }
  return subnet;
}

}  // namespace peal
