#include "transports/network/card.h"

#include <fmt/format.h>
#include <netinet/in.h>

#include <algorithm>

namespace peal::network {
namespace {

constexpr uint8_t kIpv4 = 4;
constexpr uint8_t kIpv6 = 6;

ByteView hostOf(const Address& address) {
  if (address.family() == AF_INET) {
    return std::as_bytes(std::span(&reinterpret_cast<const sockaddr_in&>(address.storage).sin_addr, 1));
  }
  return std::as_bytes(std::span(&reinterpret_cast<const sockaddr_in6&>(address.storage).sin6_addr, 1));
}

}  // namespace

// The nonce, then of each address: 4 or 6, the port, 4 or 16 bytes.
Bytes encode(const Card& card) {
  Bytes blob;
  append(blob, viewOf(card.listener));
  for (size_t i = 0; i < std::min(card.addresses.size(), kAddressesMost); ++i) {
    const Address& address = card.addresses[i];
    appendInteger(blob, address.family() == AF_INET ? kIpv4 : kIpv6);
    appendInteger(blob, address.port());
    append(blob, hostOf(address));
  }
  return blob;
}

Result<Card> decodeCard(ByteView blob) {
  const Error malformed{
      pealRemoteError, fmt::format("a card of {} bytes that is none: another version of peal?", blob.size())};
  Card card;
  if (blob.size() < sizeof card.listener) {
    return malformed;
  }
  std::copy_n(blob.begin(), sizeof card.listener, reinterpret_cast<std::byte*>(card.listener.data()));
  blob = blob.subspan(sizeof card.listener);
  while (!blob.empty()) {
    const auto kind = readInteger<uint8_t>(blob);
    const size_t hostBytes = kind == kIpv4 ? 4 : 16;
    if ((kind != kIpv4 && kind != kIpv6) || blob.size() < 3 + hostBytes ||
        card.addresses.size() == kAddressesMost) {
      return malformed;
    }
    const auto port = readInteger<uint16_t>(blob.subspan(1));
    const std::byte* host = blob.data() + 3;
    card.addresses.push_back(kind == kIpv4 ? ipv4Address(host, port) : ipv6Address(host, port, 0));
    blob = blob.subspan(3 + hostBytes);
  }
  return card;
}

Key listenerKey(const Key& secret, int rank, const Card& card) {
  Bytes context;
  appendInteger(context, static_cast<uint32_t>(rank));
  append(context, viewOf(card.listener));
  return deriveKey(secret, "peal control connection", context);
}

}  // namespace peal::network
