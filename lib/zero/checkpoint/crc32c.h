// CRC-32C (Castagnoli, the checksum of iSCSI and ext4): polynomial 0x1edc6f41, reflected, all ones before and
// after. In software, eight bytes at a time. Called by everything here that reads or writes files.
#pragma once
#include <cstddef>
#include <cstdint>

namespace peal::zero::checkpoint {

// before: 0, or the checksum of what precedes the data: crc32c(crc32c(0, a), b) is that of a followed by b.
uint32_t crc32c(uint32_t before, const void* data, size_t sizeBytes);

}  // namespace peal::zero::checkpoint
