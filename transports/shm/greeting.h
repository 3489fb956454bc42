// The greetings of the handshake: made and checked with the communicator's secret.
#pragma once
#include <array>
#include <cstdint>

#include "transports/shm/wire.h"

namespace peal::shm {

using SecretKey = std::array<uint8_t, 32>;

// Says the greetings of one rank, and knows genuine ones.
class Greeter {
 public:
  Greeter(const SecretKey& secret, int rank, int size);

  // `listener` is the one of the rank that is called.
  Greeting make(Note note, int dstRank, const Nonce& nonce, bool canRead, const SocketName& listener) const;
  // Whether a rank of this communicator said it to this rank, now and to this listener.
  bool isGenuine(const Greeting& greeting, Note note, const SocketName& listener) const;

 private:
  Mac macOf(const Greeting& greeting, const SocketName& listener) const;

  const SecretKey& secret_;
  const int rank_;
  const int size_;
  Cookie cookie_;  // what peers find at its address if they can read this process
};

}  // namespace peal::shm
