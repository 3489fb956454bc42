// FNV-1a, 64 bits: what ranks compare and nobody attacks. Among a thousand ranks with as many different
// tables two have the same by chance once in 10^13 models.
//
// Used by the seal (options, parameters) and by loads (which elements a rank holds).
#pragma once
#include <bit>
#include <cstdint>
#include <string>

namespace peal::zero {

class Digest {
 public:
  void add(uint64_t value) {
    for (int byte = 0; byte < 8; ++byte) {
      addByte(static_cast<uint8_t>(value >> (8 * byte)));
    }
  }
  void add(double value) { add(std::bit_cast<uint64_t>(value)); }
  void add(const std::string& text) {
    add(uint64_t{text.size()});
    for (const char character : text) {
      addByte(static_cast<uint8_t>(character));
    }
  }
  uint64_t value() const { return value_; }

 private:
  void addByte(uint8_t byte) { value_ = (value_ ^ byte) * 0x100000001b3u; }
  uint64_t value_ = 0xcbf29ce484222325u;
};

}  // namespace peal::zero
