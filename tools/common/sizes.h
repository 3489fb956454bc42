// Sizes as people write them: "8", "64K", "32M", "1G", "2T", with K = 1024 as in nccl-tests.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>

namespace peal::tools {

// Bytes of "64K". A decimal fraction is legal with a suffix ("1.5G"); the result is rounded down. Throws
// UsageError, which names `what`, for anything else and for 2^63 and more.
uint64_t parseSizeBytes(std::string_view text, std::string_view what);

// The shortest exact form: 65536 is "64K", 65537 is "65537".
std::string formatSizeBytes(uint64_t sizeBytes);

}  // namespace peal::tools
