#include "transports/shm/greeting.h"

#include <sodium.h>

#include <cstddef>
#include <cstring>

namespace peal::shm {

Greeter::Greeter(const SecretKey& secret, int rank, int size) : secret_(secret), rank_(rank), size_(size) {
  randombytes_buf(cookie_.data(), cookie_.size());
}

Greeting Greeter::make(Note note, int dstRank, const Nonce& nonce, bool canRead,
                       const SocketName& listener) const {
  Greeting greeting{};
  greeting.note = note;
  greeting.version = kWireVersion;
  greeting.srcRank = rank_;
  greeting.dstRank = dstRank;
  greeting.nonce = nonce;
  greeting.probe = {reinterpret_cast<uint64_t>(cookie_.data()), cookie_};
  greeting.canRead = canRead ? 1 : 0;
  greeting.mac = macOf(greeting, listener);
  return greeting;
}

bool Greeter::isGenuine(const Greeting& greeting, Note note, const SocketName& listener) const {
  const Mac expected = macOf(greeting, listener);
  return sodium_memcmp(expected.data(), greeting.mac.data(), expected.size()) == 0 && greeting.note == note &&
         greeting.version == kWireVersion && greeting.dstRank == rank_ && greeting.srcRank >= 0 &&
         greeting.srcRank < size_;
}

Mac Greeter::macOf(const Greeting& greeting, const SocketName& listener) const {
  constexpr size_t kCovered = offsetof(Greeting, mac);
  std::array<unsigned char, kCovered + sizeof(SocketName)> text;
  std::memcpy(text.data(), &greeting, kCovered);
  std::memcpy(text.data() + kCovered, listener.data(), listener.size());
  Mac mac;
  static_assert(sizeof(Mac) == crypto_auth_BYTES && sizeof(SecretKey) == crypto_auth_KEYBYTES);
  crypto_auth(mac.data(), text.data(), text.size(), secret_.data());
  return mac;
}

}  // namespace peal::shm
