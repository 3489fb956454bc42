// The 128 bytes of a unique id: what they hold, and how they are read back.
//
//   0  magic "peal"          4  version           5  place: 1 TCP, 2 abstract Unix name
//   6  port                  8  secret (16)      24  flags: 1 = the root may start later than the others
//  25  addresses, each a tag (4 or 6) and 4 or 16 bytes, ended by tag 0; or the name, ended by a zero
// 124  checksum of all before it
//
// A link-local address carries no interface: the joining side tries it on each of its own.
#pragma once
#include <array>
#include <string>
#include <vector>

#include "lib/base/result.h"
#include "lib/bootstrap/auth.h"
#include "lib/bootstrap/socket.h"

namespace peal {

enum class RootPlace : uint8_t { Tcp = 1, Unix = 2 };
enum class RootStart : uint8_t { Before = 0, Maybe = 1 };  // Maybe: joining retries until its deadline

struct IdContent {
  RootPlace place = RootPlace::Tcp;
  RootStart start = RootStart::Before;
  uint16_t port = 0;
  std::array<uint8_t, 16> secret{};
  std::vector<Address> addresses;  // Tcp; their own port is not kept
  std::string name;                // Unix; at most 98 characters
};

// Addresses that do not fit are left out, from the end.
pealUniqueId encodeId(const IdContent& content);
Result<IdContent> decodeId(const pealUniqueId& id);

// The key that proves the right to take part.
Key rendezvousKey(const IdContent& content);

}  // namespace peal
