// What the tuner decides and the executor runs: a family of algorithms and the size of its messages. Plain
// data.
#pragma once
#include <cstddef>
#include <cstdint>

namespace peal {

// ring.h, or direct.h with one or two shots. The value travels in the digest of every message.
enum class Algorithm : uint8_t { Ring, OneShot, TwoShot };

struct Choice {
  Algorithm algorithm = Algorithm::OneShot;
  size_t chunkBytes = 0;  // the most bytes of one message
};

}  // namespace peal
