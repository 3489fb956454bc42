#include "lib/zero/checkpoint/format.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "lib/zero/checkpoint/crc32c.h"

namespace peal::zero::checkpoint {
namespace {

constexpr std::array<char, 8> kPartMagic{'p', 'e', 'a', 'l', 'p', 'a', 'r', 't'};
constexpr uint32_t kPartVersion = 1;
constexpr uint64_t kMostElementsOfPart = uint64_t{1} << 50;  // offsets of a file stay below 2^63

// As it lies in the file.
struct PartHeader {
  std::array<char, 8> magic;
  uint32_t version;
  uint32_t streams;
  uint64_t id;
  uint64_t stretches;
  uint64_t elements;
  uint64_t fileBytes;
  uint64_t frozenElements;
  uint32_t reserved;
  uint32_t checksum;  // of what precedes it
};
static_assert(sizeof(PartHeader) == kHeaderBytes);
constexpr size_t kHeaderChecked = kHeaderBytes - kChecksumBytes;

uint64_t tableChecksum(uint64_t id, const void* table, size_t sizeBytes) {
  return crc32c(crc32c(0, &id, sizeof id), table, sizeBytes);
}

}  // namespace

const char* streamName(Stream stream) {
  constexpr std::array<const char*, kStreams> names{"master", "moment1", "moment2", "weights",
                                                    "frozen weights"};
  return names[static_cast<size_t>(stream)];
}

uint64_t PartHead::elementsOf(Stream stream) const {
  if (stream == Stream::Frozen) {
    return frozenElements;
  }
  return static_cast<uint32_t>(stream) < streams ? elements : 0;
}

uint64_t PartHead::blockBytes(Stream stream, uint64_t block) const {
  return std::min(kBlockBytes, streamBytes(stream) - block * kBlockBytes);
}

uint64_t PartHead::blockOffset(Stream stream, uint64_t block) const {
  uint64_t offset = headBytes();
  for (uint32_t before = 0; before < static_cast<uint32_t>(stream); ++before) {
    const auto other = static_cast<Stream>(before);
    offset += streamBytes(other) + blocks(other) * kChecksumBytes;
  }
  return offset + block * (kBlockBytes + kChecksumBytes);
}

uint64_t PartHead::fileBytes() const {
  const Stream last = Stream::Frozen;
  return blockOffset(last, 0) + streamBytes(last) + blocks(last) * kChecksumBytes;
}

std::vector<std::byte> encodeHead(const PartHead& head, std::span<const Stretch> stretches) {
  PartHeader header{kPartMagic,    kPartVersion,     head.streams,        head.id, head.stretches,
                    head.elements, head.fileBytes(), head.frozenElements, 0,       0};
  header.checksum = crc32c(0, &header, kHeaderChecked);
  const uint64_t checksum = tableChecksum(head.id, stretches.data(), stretches.size_bytes());
  std::vector<std::byte> bytes(head.headBytes());
  std::memcpy(bytes.data(), &header, sizeof header);
  if (!stretches.empty()) {
    std::memcpy(bytes.data() + kHeaderBytes, stretches.data(), stretches.size_bytes());
  }
  std::memcpy(bytes.data() + bytes.size() - kTableEndBytes, &checksum, kTableEndBytes);
  return bytes;
}

Result<PartHead> decodeHeader(std::span<const std::byte> bytes, const std::string& file) {
  PartHeader header{};
  std::memcpy(&header, bytes.data(), sizeof header);
  if (header.magic != kPartMagic) {
    return Error{
        pealInvalidArgument,
        fmt::format("{} does not begin with \"pealpart\" at offset 0: it is no part of a checkpoint", file)};
  }
  if (header.version != kPartVersion) {
    return Error{pealInvalidArgument, fmt::format("{} has version {} at offset 8; this peal reads version {}",
                                                  file, header.version, kPartVersion)};
  }
  if (const uint32_t found = crc32c(0, bytes.data(), kHeaderChecked); found != header.checksum) {
    return Error{
        pealInvalidArgument,
        fmt::format("{}: the header at offset 0 has checksum {:08x} but its bytes have {:08x}: it is "
                    "damaged",
                    file, header.checksum, found)};
  }
  const PartHead head{header.id, header.streams, header.stretches, header.elements, header.frozenElements};
  if (head.streams < kFewestStreams || head.streams > kMostStreams || head.elements > kMostElementsOfPart ||
      head.frozenElements > kMostElementsOfPart || head.stretches > head.elements + head.frozenElements ||
      header.fileBytes != head.fileBytes()) {
    return Error{
        pealInvalidArgument,
        fmt::format("{}: the header at offset 0 contradicts itself ({} streams, {} stretches, {} elements, "
                    "{} bytes)",
                    file, head.streams, head.stretches, head.elements, header.fileBytes)};
  }
  return head;
}

Result<std::vector<Stretch>> decodeTable(std::span<const std::byte> table, const PartHead& head,
                                         const std::string& file) {
  uint64_t checksum = 0;
  const size_t size = table.size() - kTableEndBytes;
  std::memcpy(&checksum, table.data() + size, sizeof checksum);
  if (const uint64_t found = tableChecksum(head.id, table.data(), size); found != checksum) {
    return Error{
        pealInvalidArgument,
        fmt::format("{}: the table at offset {} has checksum {:08x} but its bytes have {:08x}: it is "
                    "damaged",
                    file, kHeaderBytes, checksum, found)};
  }
  std::vector<Stretch> stretches(head.stretches);
  if (size > 0) {
    std::memcpy(stretches.data(), table.data(), size);
  }
  uint64_t elements = 0;
  for (const Stretch& stretch : stretches) {
    elements += stretch.elements;
  }
  if (elements != head.elements + head.frozenElements) {
    return Error{pealInvalidArgument,
                 fmt::format("{}: the table at offset {} has {} elements, the header says {}", file,
                             kHeaderBytes, elements, head.elements + head.frozenElements)};
  }
  return stretches;
}

uint32_t blockChecksum(uint64_t id, Stream stream, uint64_t block, std::span<const std::byte> payload) {
  const std::array<uint64_t, 3> place{id, static_cast<uint64_t>(stream), block};
  return crc32c(crc32c(0, place.data(), sizeof place), payload.data(), payload.size());
}

}  // namespace peal::zero::checkpoint
