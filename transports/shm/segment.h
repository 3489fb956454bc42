// The memory that a rank shares: its own segment, and its views of peers' segments.
//
// Owns mappings only; the memory file's descriptor is closed once every peer has it, the pages live as long
// as somebody maps them. Knows no protocol.
#pragma once
#include <array>
#include <cstdint>
#include <memory>
#include <string>

#include "lib/base/result.h"
#include "lib/memory/descriptor.h"
#include "transports/shm/layout.h"

namespace peal::shm {

using Token = std::array<uint8_t, 16>;

// A mapping that ends with its owner.
class Mapping {
 public:
  Mapping() = default;
  Mapping(std::byte* base, size_t bytes) : base_(base), bytes_(bytes) {}
  Mapping(Mapping&& other) noexcept { *this = std::move(other); }
  Mapping& operator=(Mapping&& other) noexcept;
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  ~Mapping();
  std::byte* base() const { return base_; }
  size_t bytes() const { return bytes_; }

  // fd -1: private zeroed pages. `protection` as of mmap.
  static Result<Mapping> make(int fd, size_t offset, size_t bytes, int protection, const char* what);

 private:
  std::byte* base_ = nullptr;
  size_t bytes_ = 0;
};

// One rank's shared memory as another rank of the same machine uses it.
struct Segment {
  Mapping control;
  Mapping staging;         // writable for the owner only
  Mapping privateControl;  // credits and rings for ranks of this process; empty in a view of another process

  Control shared() const { return {control.base()}; }
  Control local() const { return {privateControl.base()}; }
};

// This rank's own segment, with the descriptor that peers get.
struct OwnSegment {
  std::shared_ptr<Segment> segment;
  OwnedFd file;
};
Result<OwnSegment> createSegment(const Layout& layout, int rank);

// Maps a peer's segment and checks its header.
Result<std::shared_ptr<Segment>> mapSegment(const Layout& layout, int peerRank, int fd);

// Ranks of one process find each other's segment here and use it in place. `token` is random; the entry
// lasts as long as the owner keeps the segment.
void publishLocally(const Token& token, const std::shared_ptr<Segment>& segment);
std::shared_ptr<Segment> findLocally(const Token& token);

}  // namespace peal::shm
