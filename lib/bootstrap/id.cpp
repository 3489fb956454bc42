#include "lib/bootstrap/id.h"

#include <fmt/format.h>
#include <netinet/in.h>

#include <algorithm>
#include <cstring>

namespace peal {
namespace {

constexpr char kMagic[4] = {'p', 'e', 'a', 'l'};
constexpr uint8_t kVersion = 1;
constexpr size_t kSecretAt = 8;
constexpr size_t kFlagsAt = 24;
constexpr size_t kPlacesAt = 25;
constexpr size_t kChecksumAt = 124;
constexpr uint8_t kTagIpv4 = 4;
constexpr uint8_t kTagIpv6 = 6;
static_assert(sizeof(pealUniqueId) == kChecksumAt + 4);

using Raw = std::array<uint8_t, PEAL_UNIQUE_ID_BYTES>;

void writeChecksum(Raw& raw) {
  const auto digest = digestOf(viewOf(raw).first(kChecksumAt));
  std::copy_n(digest.begin(), 4, raw.begin() + kChecksumAt);
}

bool checksumHolds(const Raw& raw) {
  const auto digest = digestOf(viewOf(raw).first(kChecksumAt));
  return std::equal(digest.begin(), digest.begin() + 4, raw.begin() + kChecksumAt);
}

void writeAddresses(Raw& raw, const std::vector<Address>& addresses) {
  size_t at = kPlacesAt;
  for (const Address& address : addresses) {
    const bool ipv4 = address.family() == AF_INET;
    const size_t bytes = ipv4 ? 4 : 16;
    if (at + 1 + bytes > kChecksumAt) {
      continue;  // a shorter one may still fit
    }
    raw[at++] = ipv4 ? kTagIpv4 : kTagIpv6;
    const void* host =
        ipv4 ? static_cast<const void*>(&reinterpret_cast<const sockaddr_in&>(address.storage).sin_addr)
             : &reinterpret_cast<const sockaddr_in6&>(address.storage).sin6_addr;
    std::memcpy(raw.data() + at, host, bytes);
    at += bytes;
  }
}

bool readAddresses(const Raw& raw, IdContent& content) {
  size_t at = kPlacesAt;
  while (at < kChecksumAt && raw[at] != 0) {
    const uint8_t tag = raw[at++];
    const size_t bytes = tag == kTagIpv4 ? 4 : 16;
    if ((tag != kTagIpv4 && tag != kTagIpv6) || at + bytes > kChecksumAt) {
      return false;
    }
    content.addresses.push_back(tag == kTagIpv4 ? ipv4Address(raw.data() + at, content.port)
                                                : ipv6Address(raw.data() + at, content.port, 0));
    at += bytes;
  }
  return !content.addresses.empty() && content.port != 0;
}

bool readName(const Raw& raw, IdContent& content) {
  const auto begin = raw.begin() + kPlacesAt;
  const auto end = std::find(begin, raw.begin() + kChecksumAt, uint8_t{0});
  content.name.assign(begin, end);
  return !content.name.empty();
}

}  // namespace

pealUniqueId encodeId(const IdContent& content) {
  Raw raw{};
  std::copy(std::begin(kMagic), std::end(kMagic), raw.begin());
  raw[4] = kVersion;
  raw[5] = static_cast<uint8_t>(content.place);
  raw[6] = static_cast<uint8_t>(content.port & 0xff);
  raw[7] = static_cast<uint8_t>(content.port >> 8);
  std::copy(content.secret.begin(), content.secret.end(), raw.begin() + kSecretAt);
  raw[kFlagsAt] = static_cast<uint8_t>(content.start);
  if (content.place == RootPlace::Tcp) {
    writeAddresses(raw, content.addresses);
  } else {
    std::copy_n(content.name.begin(), std::min(content.name.size(), kChecksumAt - kPlacesAt - 1),
                raw.begin() + kPlacesAt);
  }
  writeChecksum(raw);
  pealUniqueId id;
  std::memcpy(&id, raw.data(), sizeof id);
  return id;
}

Result<IdContent> decodeId(const pealUniqueId& id) {
  Raw raw;
  std::memcpy(raw.data(), &id, raw.size());
  if (!std::equal(std::begin(kMagic), std::end(kMagic), raw.begin())) {
    return Error{pealInvalidArgument,
                 "the unique id does not begin as one made by pealGetUniqueId. Was it handed to this rank "
                 "before rank 0 made it?"};
  }
  if (raw[4] != kVersion) {
    return Error{
        pealInvalidArgument,
        fmt::format("the unique id has version {}, this library makes version {}. All ranks must use "
                    "the same version of peal.",
                    raw[4], kVersion)};
  }
  IdContent content;
  content.place = static_cast<RootPlace>(raw[5]);
  content.start = raw[kFlagsAt] == 0 ? RootStart::Before : RootStart::Maybe;
  content.port = static_cast<uint16_t>(raw[6] | raw[7] << 8);
  std::copy_n(raw.begin() + kSecretAt, content.secret.size(), content.secret.begin());
  const bool known = content.place == RootPlace::Tcp || content.place == RootPlace::Unix;
  if (!known || !checksumHolds(raw) ||
      !(content.place == RootPlace::Tcp ? readAddresses(raw, content) : readName(raw, content))) {
    return Error{
        pealInvalidArgument,
        "the unique id was damaged on its way to this rank: its checksum does not hold. All 128 bytes "
        "must be copied; they are binary, not a text that ends at a zero."};
  }
  return content;
}

Key rendezvousKey(const IdContent& content) {
  Key padded{};
  std::copy(content.secret.begin(), content.secret.end(), padded.begin());
  return deriveKey(padded, "peal rendezvous 1");
}

}  // namespace peal
