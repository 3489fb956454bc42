// Keys and proofs: the little cryptography that the bootstrap needs, all of it libsodium's. Keyed hashes
// only: the bootstrap authenticates, it does not hide what it carries.
//
// Used by the id, the wire format and the launch id. Must never log or return a key in a message.
#pragma once
#include <array>
#include <cstdint>

#include "lib/base/result.h"
#include "lib/bootstrap/bytes.h"

namespace peal {

using Key = std::array<uint8_t, 32>;
using Proof = std::array<uint8_t, 32>;
using Nonce = std::array<uint8_t, 16>;

// Before anything else here; cheap after the first call.
Result<void> startSodium();

// A key for one purpose. Different labels or contexts give unrelated keys.
Key deriveKey(const Key& from, std::string_view label, ByteView context = {});
// 32 bytes that stand for any text (a password, a job's identity).
Key keyOfText(std::string_view text);

Proof prove(const Key& key, ByteView message);
// In constant time.
bool proves(const Key& key, ByteView message, ByteView proof);

std::array<uint8_t, 32> digestOf(ByteView bytes);
Nonce freshNonce();
Key freshKey();

}  // namespace peal
