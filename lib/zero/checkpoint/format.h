// A part: the file that one rank writes. Its bytes, and where in it an element lies. docs/CHECKPOINTS.md
// describes the same to the byte.
//
//   header    64 bytes
//   table     24 bytes for each stretch: parameter, first element, elements; then 8 bytes: its checksum
//   streams   master, moment1, moment2, and weights where the master does not determine them: the elements of
//             all stretches of trained parameters one after the other; then the weights of frozen ones. Each
//             is cut into blocks of kBlockBytes (the last is shorter); 4 bytes of checksum follow each block
//
// Used by the writer and the reader. Does no input and output.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "lib/base/result.h"

namespace peal::zero::checkpoint {

enum class Stream : uint32_t { Master = 0, Moment1 = 1, Moment2 = 2, Weight = 3, Frozen = 4 };
inline constexpr uint32_t kStreams = 5;
// Of trained parameters: with weights or without.
inline constexpr uint32_t kMostStreams = 4;
inline constexpr uint32_t kFewestStreams = 3;
constexpr uint64_t elementBytes(Stream stream) { return stream < Stream::Weight ? 4 : 2; }
const char* streamName(Stream stream);

inline constexpr uint64_t kBlockBytes = uint64_t{256} << 10;
inline constexpr uint64_t kChecksumBytes = 4;
inline constexpr uint64_t kHeaderBytes = 64;
inline constexpr uint64_t kStretchBytes = 24;
inline constexpr uint64_t kTableEndBytes = 8;

// Consecutive elements of one parameter. parameter: its number in the manifest, or in the engine where that
// is said.
struct Stretch {
  uint64_t parameter;
  uint64_t begin;
  uint64_t elements;
  bool operator==(const Stretch&) const = default;
};
static_assert(sizeof(Stretch) == kStretchBytes);

// What the header says.
struct PartHead {
  uint64_t id = 0;                    // the checkpoint's: a part of another is foreign
  uint32_t streams = kFewestStreams;  // of trained parameters
  uint64_t stretches = 0;
  uint64_t elements = 0;  // of each of those streams
  uint64_t frozenElements = 0;

  uint64_t elementsOf(Stream stream) const;
  uint64_t headBytes() const { return kHeaderBytes + stretches * kStretchBytes + kTableEndBytes; }
  uint64_t streamBytes(Stream stream) const { return elementsOf(stream) * elementBytes(stream); }
  uint64_t blocks(Stream stream) const { return (streamBytes(stream) + kBlockBytes - 1) / kBlockBytes; }
  // Payload of a block.
  uint64_t blockBytes(Stream stream, uint64_t block) const;
  uint64_t blockOffset(Stream stream, uint64_t block) const;
  uint64_t fileBytes() const;
};

// Header and table, ready to be written: headBytes() of them.
std::vector<std::byte> encodeHead(const PartHead& head, std::span<const Stretch> stretches);
// header: kHeaderBytes. file: for the error.
Result<PartHead> decodeHeader(std::span<const std::byte> header, const std::string& file);
// table: what follows the header, headBytes() - kHeaderBytes.
Result<std::vector<Stretch>> decodeTable(std::span<const std::byte> table, const PartHead& head,
                                         const std::string& file);

// Of a block's payload, mixed with where it belongs: a block in a wrong place is a wrong block.
uint32_t blockChecksum(uint64_t id, Stream stream, uint64_t block, std::span<const std::byte> payload);

}  // namespace peal::zero::checkpoint
