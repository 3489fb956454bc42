// Writes one rank's part, streaming: from the live state, or from a snapshot of it. Called by Save, the
// second on a thread of its own. Communicates nothing.
#pragma once
#include <atomic>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "lib/zero/checkpoint/manifest.h"
#include "lib/zero/checkpoint/state.h"

namespace peal::zero::checkpoint {

// The elements of one part's streams, by their position in the stream.
class PartSource {
 public:
  virtual ~PartSource() = default;
  virtual Result<void> read(Stream stream, uint64_t begin, uint64_t elements, void* to) const = 0;
};

class LivePart : public PartSource {
 public:
  // trained: how many of the stretches are of trained parameters; they come first.
  LivePart(const State& state, std::vector<Stretch> stretches, size_t trained);
  Result<void> read(Stream stream, uint64_t begin, uint64_t elements, void* to) const override;

 private:
  const State& state_;
  std::vector<Stretch> stretches_;
  size_t trained_;
  std::vector<uint64_t> positions_;  // of each stretch in its streams
};

// A copy: 12 bytes for each trained element, 14 with weights; 2 for each frozen one.
class SnapshotPart : public PartSource {
 public:
  static Result<std::unique_ptr<PartSource>> make(const PartSource& source, const PartHead& head);
  Result<void> read(Stream stream, uint64_t begin, uint64_t elements, void* to) const override;

 private:
  std::vector<std::vector<std::byte>> streams_;
};

// Whether every weight of the part is the rounding of its master: then weights need not be stored.
Result<bool> weightsFollowMaster(const PartSource& source, uint64_t elements);

// Writes PATH, which must not exist, and brings it to the disk. Uses one block of memory besides the table.
// cancelled: looked at before each block; the part is then given up with an error.
Result<PartEntry> writePart(const std::string& path, const std::string& name, const PartHead& head,
                            std::span<const Stretch> stretches, const PartSource& source,
                            const std::atomic<bool>& cancelled);

}  // namespace peal::zero::checkpoint
