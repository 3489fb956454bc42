#include "lib/bootstrap/auth.h"

#include <sodium.h>

namespace peal {
namespace {

const unsigned char* raw(ByteView bytes) { return reinterpret_cast<const unsigned char*>(bytes.data()); }

}  // namespace

static_assert(sizeof(Key) == crypto_auth_KEYBYTES && sizeof(Proof) == crypto_auth_BYTES);
static_assert(sizeof(Key) >= crypto_generichash_KEYBYTES_MIN &&
              sizeof(Key) <= crypto_generichash_KEYBYTES_MAX);

Result<void> startSodium() {
  static const bool started = sodium_init() >= 0;
  if (!started) {
    return Error{pealSystemError,
                 "libsodium did not start: no source of random numbers. Is /dev/urandom readable?"};
  }
  return {};
}

Key deriveKey(const Key& from, std::string_view label, ByteView context) {
  // The label's length is part of the text, so that no label and context can be cut in two ways.
  Bytes text;
  appendInteger(text, static_cast<uint32_t>(label.size()));
  append(text, viewOf(label));
  append(text, context);
  Key key;
  crypto_generichash(key.data(), key.size(), raw(text), text.size(), from.data(), from.size());
  return key;
}

Key keyOfText(std::string_view text) { return digestOf(viewOf(text)); }

Proof prove(const Key& key, ByteView message) {
  Proof proof;
  crypto_auth(proof.data(), raw(message), message.size(), key.data());
  return proof;
}

bool proves(const Key& key, ByteView message, ByteView proof) {
  return proof.size() == crypto_auth_BYTES &&
         crypto_auth_verify(raw(proof), raw(message), message.size(), key.data()) == 0;
}

std::array<uint8_t, 32> digestOf(ByteView bytes) {
  std::array<uint8_t, 32> digest;
  crypto_generichash(digest.data(), digest.size(), raw(bytes), bytes.size(), nullptr, 0);
  return digest;
}

Nonce freshNonce() {
  Nonce nonce;
  randombytes_buf(nonce.data(), nonce.size());
  return nonce;
}

Key freshKey() {
  Key key;
  randombytes_buf(key.data(), key.size());
  return key;
}

}  // namespace peal
