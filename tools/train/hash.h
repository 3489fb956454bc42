// FNV-1a, 64 bits: fingerprints of weights and of the text, to compare runs and ranks. Not for secrets.
#pragma once
#include <cstddef>
#include <cstdint>

namespace peal::train {

class Fnv1a {
 public:
  void add(const void* data, size_t sizeBytes) {
    for (const auto* byte = static_cast<const unsigned char*>(data); sizeBytes > 0; --sizeBytes, ++byte) {
      value_ = (value_ ^ *byte) * 0x100000001b3u;
    }
  }
  uint64_t value() const { return value_; }

 private:
  uint64_t value_ = 0xcbf29ce484222325u;
};

}  // namespace peal::train
