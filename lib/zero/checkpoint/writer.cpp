#include "lib/zero/checkpoint/writer.h"

#include <algorithm>
#include <cstring>

#include "lib/reduce/adamw.h"
#include "lib/zero/checkpoint/crc32c.h"
#include "lib/zero/checkpoint/file.h"

namespace peal::zero::checkpoint {
namespace {

constexpr uint64_t kComparedElements = 16384;

}  // namespace

LivePart::LivePart(const State& state, std::vector<Stretch> stretches, size_t trained)
    : state_(state), stretches_(std::move(stretches)), trained_(trained) {
  uint64_t position = 0;
  for (size_t i = 0; i < stretches_.size(); ++i) {
    position = i == trained_ ? 0 : position;
    positions_.push_back(position);
    position += stretches_[i].elements;
  }
}

Result<void> LivePart::read(Stream stream, uint64_t begin, uint64_t elements, void* to) const {
  auto* into = static_cast<std::byte*>(to);
  const auto split = positions_.begin() + static_cast<std::ptrdiff_t>(trained_);
  const auto found = stream == Stream::Frozen ? std::upper_bound(split, positions_.end(), begin)
                                              : std::upper_bound(positions_.begin(), split, begin);
  for (auto i = static_cast<size_t>(found - positions_.begin()) - 1; elements > 0; ++i) {
    const uint64_t skipped = begin - positions_[i];
    const uint64_t count = std::min(elements, stretches_[i].elements - skipped);
    PEAL_TRY(state_.fetch(stream, {stretches_[i].parameter, stretches_[i].begin + skipped, count}, into));
    into += count * elementBytes(stream);
    begin += count;
    elements -= count;
  }
  return {};
}

Result<std::unique_ptr<PartSource>> SnapshotPart::make(const PartSource& source, const PartHead& head) {
  auto copy = std::make_unique<SnapshotPart>();
  for (uint32_t i = 0; i < kStreams; ++i) {
    const auto stream = static_cast<Stream>(i);
    const uint64_t elements = head.elementsOf(stream);
    copy->streams_.emplace_back(elements * elementBytes(stream));
    if (elements > 0) {
      PEAL_TRY(source.read(stream, 0, elements, copy->streams_.back().data()));
    }
  }
  return std::unique_ptr<PartSource>(std::move(copy));
}

Result<void> SnapshotPart::read(Stream stream, uint64_t begin, uint64_t elements, void* to) const {
  const uint64_t size = elementBytes(stream);
  std::memcpy(to, streams_[static_cast<size_t>(stream)].data() + begin * size, elements * size);
  return {};
}

Result<bool> weightsFollowMaster(const PartSource& source, uint64_t elements) {
  std::vector<float> master(std::min(elements, kComparedElements));
  std::vector<uint16_t> weights(master.size());
  for (uint64_t begin = 0; begin < elements; begin += master.size()) {
    const uint64_t count = std::min<uint64_t>(master.size(), elements - begin);
    PEAL_TRY(source.read(Stream::Master, begin, count, master.data()));
    PEAL_TRY(source.read(Stream::Weight, begin, count, weights.data()));
    for (uint64_t i = 0; i < count; ++i) {
      if (toBf16(master[i]) != weights[i]) {
        return false;
      }
    }
  }
  return true;
}

Result<PartEntry> writePart(const std::string& path, const std::string& name, const PartHead& head,
                            std::span<const Stretch> stretches, const PartSource& source,
                            const std::atomic<bool>& cancelled) {
  Result<File> file = File::create(path);
  if (!file) {
    return file.error();
  }
  const std::vector<std::byte> headBytes = encodeHead(head, stretches);
  PEAL_TRY(file->write(headBytes.data(), headBytes.size()));
  std::vector<std::byte> buffer(kBlockBytes + kChecksumBytes);
  for (uint32_t i = 0; i < kStreams; ++i) {
    const auto stream = static_cast<Stream>(i);
    for (uint64_t block = 0; block < head.blocks(stream); ++block) {
      // Pairs with the store in ~Save.
      if (cancelled.load(std::memory_order_relaxed)) {
        return Error{pealInvalidUsage, path + " is given up: the engine was destroyed"};
      }
      const uint64_t bytes = head.blockBytes(stream, block);
      const uint64_t size = elementBytes(stream);
      PEAL_TRY(source.read(stream, block * (kBlockBytes / size), bytes / size, buffer.data()));
      const uint32_t checksum = blockChecksum(head.id, stream, block, {buffer.data(), bytes});
      std::memcpy(buffer.data() + bytes, &checksum, kChecksumBytes);
      PEAL_TRY(file->write(buffer.data(), bytes + kChecksumBytes));
    }
  }
  PEAL_TRY(file->sync());
  return PartEntry{name, head.fileBytes(), head.elements + head.frozenElements,
                   crc32c(0, headBytes.data(), headBytes.size())};
}

}  // namespace peal::zero::checkpoint
