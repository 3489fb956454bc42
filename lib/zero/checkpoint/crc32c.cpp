#include "lib/zero/checkpoint/crc32c.h"

#include <array>
#include <bit>
#include <cstring>

namespace peal::zero::checkpoint {
namespace {

static_assert(std::endian::native == std::endian::little, "files are little-endian, and written as they lie");

constexpr uint32_t kReflectedPolynomial = 0x82f63b78u;
constexpr size_t kSlices = 8;
using CrcTables = std::array<std::array<uint32_t, 256>, kSlices>;

// Table k: what a byte does to the checksum when k bytes follow it.
constexpr CrcTables makeCrcTables() {
  CrcTables tables{};
  for (uint32_t byte = 0; byte < 256; ++byte) {
    uint32_t value = byte;
    for (int bit = 0; bit < 8; ++bit) {
      value = (value >> 1) ^ ((value & 1) != 0 ? kReflectedPolynomial : 0);
    }
    tables[0][byte] = value;
  }
  for (uint32_t byte = 0; byte < 256; ++byte) {
    for (size_t slice = 1; slice < kSlices; ++slice) {
      const uint32_t value = tables[slice - 1][byte];
      tables[slice][byte] = (value >> 8) ^ tables[0][value & 0xff];
    }
  }
  return tables;
}

constexpr CrcTables kCrcTables = makeCrcTables();

}  // namespace

uint32_t crc32c(uint32_t before, const void* data, size_t sizeBytes) {
  const auto* bytes = static_cast<const unsigned char*>(data);
  uint32_t crc = ~before;
  for (; sizeBytes >= kSlices; sizeBytes -= kSlices, bytes += kSlices) {
    uint64_t word = 0;
    std::memcpy(&word, bytes, sizeof word);
    word ^= crc;
    crc = 0;
    for (size_t i = 0; i < kSlices; ++i) {
      crc ^= kCrcTables[kSlices - 1 - i][(word >> (8 * i)) & 0xff];
    }
  }
  for (; sizeBytes > 0; --sizeBytes, ++bytes) {
    crc = (crc >> 8) ^ kCrcTables[0][(crc ^ *bytes) & 0xff];
  }
  return ~crc;
}

}  // namespace peal::zero::checkpoint
