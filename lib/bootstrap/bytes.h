// Bytes on the wire: little-endian integers in and out of byte strings. Knows no message.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace peal {

using Bytes = std::vector<std::byte>;
using ByteView = std::span<const std::byte>;

inline ByteView viewOf(std::string_view text) {
  return {reinterpret_cast<const std::byte*>(text.data()), text.size()};
}
inline ByteView viewOf(const auto& array) { return std::as_bytes(std::span(array)); }

void append(Bytes& to, ByteView bytes);

template <class Integer>
void appendInteger(Bytes& to, Integer value) {
  std::array<std::byte, sizeof(Integer)> bytes;
  for (size_t i = 0; i < bytes.size(); ++i) {
    bytes[i] = static_cast<std::byte>(static_cast<uint64_t>(value) >> (8 * i));
  }
  append(to, bytes);
}

// The caller has checked that bytes.size() >= sizeof(Integer).
template <class Integer>
Integer readInteger(ByteView bytes) {
  uint64_t value = 0;
  for (size_t i = 0; i < sizeof(Integer); ++i) {
    value |= static_cast<uint64_t>(bytes[i]) << (8 * i);
  }
  return static_cast<Integer>(value);
}

inline std::string_view textOf(ByteView bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

}  // namespace peal
