#include "lib/zero/checkpoint/reader.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <utility>

#include "lib/zero/checkpoint/crc32c.h"
#include "lib/zero/checkpoint/staging.h"

namespace peal::zero::checkpoint {
namespace {

constexpr uint64_t kMostUserBytes = uint64_t{1} << 30;

// A file of the checkpoint, of the size that the manifest says.
Result<File> openChecked(const std::string& path, uint64_t bytes) {
  Result<File> file = File::open(path);
  if (!file) {
    return file;
  }
  const Result<uint64_t> size = file->size();
  if (!size) {
    return size.error();
  }
  if (*size != bytes) {
    return Error{pealInvalidArgument,
                 fmt::format("{} ends at offset {} but the manifest says {}: it is {}", path, *size, bytes,
                             *size < bytes ? "truncated" : "not the file that was saved")};
  }
  return file;
}

}  // namespace

Result<Manifest> readManifest(const std::string& path) {
  const std::string file = path + "/" + kManifestName;
  if (access(file.c_str(), F_OK) != 0 && (errno == ENOENT || errno == ENOTDIR)) {
    return Error{pealSystemError, fmt::format("{} is no checkpoint: there is no {}", path, file)};
  }
  const Result<std::string> text = readWhole(file, kMostManifestBytes);
  if (!text) {
    return text.error();
  }
  Result<Manifest> manifest = parseManifest(*text, file);
  if (!manifest) {
    return manifest;
  }
  for (const PartEntry& part : manifest->parts) {
    if (const Result<File> opened = openChecked(path + "/" + part.name, part.bytes); !opened) {
      return opened.error();
    }
  }
  if (manifest->userBytes > 0) {
    if (const Result<File> opened = openChecked(path + "/" + kUserName, manifest->userBytes); !opened) {
      return opened.error();
    }
  }
  return manifest;
}

Result<Reader> Reader::open(const std::string& path) {
  Result<Manifest> manifest = readManifest(path);
  if (!manifest) {
    // A folder of checkpoints is easily taken for one.
    const Result<std::string> inside = latestCheckpoint(path);
    return inside && !inside->empty()
               ? Error{manifest.error().code,
                       fmt::format("{}. Is {} meant, the newest in it?", manifest.error().message, *inside)}
               : manifest.error();
  }
  Reader reader;
  reader.path_ = path;
  reader.manifest_ = std::move(*manifest);
  reader.sources_.resize(reader.manifest_.parameters.size());
  for (size_t part = 0; part < reader.manifest_.parts.size(); ++part) {
    PEAL_TRY(reader.openPart(part));
  }
  PEAL_TRY(reader.checkCoverage());
  return reader;
}

Result<void> Reader::openPart(size_t part) {
  const PartEntry& entry = manifest_.parts[part];
  const std::string path = partPath(part);
  const Result<File> file = openChecked(path, entry.bytes);
  if (!file) {
    return file.error();
  }
  std::vector<std::byte> bytes(kHeaderBytes);
  PEAL_TRY(file->readAt(0, bytes.data(), kHeaderBytes));
  const Result<PartHead> head = decodeHeader(bytes, path);
  if (!head) {
    return head.error();
  }
  if (head->id != manifest_.id || head->streams != manifest_.streams ||
      head->elements + head->frozenElements != entry.elements || head->fileBytes() != entry.bytes) {
    return Error{pealInvalidArgument,
                 fmt::format("{} is foreign: its header at offset 0 is of checkpoint {:016x} with {} streams "
                             "of {} elements, the manifest's is {:016x} with {} of {}",
                             path, head->id, head->streams, head->elements, manifest_.id, manifest_.streams,
                             entry.elements)};
  }
  bytes.resize(head->headBytes());
  PEAL_TRY(file->readAt(kHeaderBytes, bytes.data() + kHeaderBytes, bytes.size() - kHeaderBytes));
  const Result<std::vector<Stretch>> table = decodeTable(std::span(bytes).subspan(kHeaderBytes), *head, path);
  if (!table) {
    return table.error();
  }
  if (crc32c(0, bytes.data(), bytes.size()) != entry.headChecksum) {
    return Error{pealInvalidArgument,
                 fmt::format("{} is foreign: its header and table from offset 0 are not those that the "
                             "manifest lists",
                             path)};
  }
  heads_.push_back(*head);
  uint64_t trained = 0, frozen = 0;  // positions
  for (const Stretch& stretch : *table) {
    if (stretch.parameter >= sources_.size() || manifest_.parameters[stretch.parameter].kind == Kind::Tied) {
      return Error{
          pealInvalidArgument,
          fmt::format("{}: the table at offset {} has parameter {}, which has no elements of its own "
                      "in the manifest",
                      path, kHeaderBytes, stretch.parameter)};
    }
    uint64_t& position = isFrozen(stretch.parameter) ? frozen : trained;
    sources_[stretch.parameter].push_back({stretch.begin, stretch.elements, part, position});
    position += stretch.elements;
  }
  if (trained != head->elements || frozen != head->frozenElements) {
    return Error{
        pealInvalidArgument,
        fmt::format("{}: the table at offset {} has {} trained and {} frozen elements, the header {} "
                    "and {}",
                    path, kHeaderBytes, trained, frozen, head->elements, head->frozenElements)};
  }
  return {};
}

Result<void> Reader::checkCoverage() {
  for (size_t parameter = 0; parameter < sources_.size(); ++parameter) {
    if (manifest_.parameters[parameter].kind == Kind::Tied) {
      continue;
    }
    std::vector<Source>& sources = sources_[parameter];
    std::sort(sources.begin(), sources.end(),
              [](const Source& a, const Source& b) { return a.begin < b.begin; });
    uint64_t reached = 0;
    const uint64_t elements = manifest_.parameters[parameter].elements;
    for (const Source& source : sources) {
      if (source.begin != reached || source.elements > elements - reached) {
        break;
      }
      reached += source.elements;
    }
    if (reached != elements) {
      return Error{
          pealInvalidArgument,
          fmt::format("{}: the parts do not hold each of the {} elements of parameter \"{}\" exactly "
                      "once, from element {} on",
                      path_, elements, manifest_.parameters[parameter].name, reached)};
    }
  }
  return {};
}

Result<std::string> Reader::userData() const {
  if (manifest_.userBytes == 0) {
    return std::string();
  }
  const std::string path = path_ + "/" + kUserName;
  Result<std::string> data = readWhole(path, kMostUserBytes);
  if (!data) {
    return data;
  }
  const uint32_t found = crc32c(0, data->data(), data->size());
  if (data->size() != manifest_.userBytes || found != manifest_.userChecksum) {
    return Error{
        pealInvalidArgument,
        fmt::format("{}: its {} bytes from offset 0 have checksum {:08x}; the manifest says {} bytes "
                    "and {:08x}: it is damaged",
                    path, data->size(), found, manifest_.userBytes, manifest_.userChecksum)};
  }
  return data;
}

std::vector<Reader::Piece> Reader::pieces(std::span<const Stretch> wanted) const {
  std::vector<Piece> pieces;
  for (const Stretch& want : wanted) {
    const std::vector<Source>& sources = sources_[want.parameter];
    const uint64_t end = want.begin + want.elements;
    auto source = std::partition_point(sources.begin(), sources.end(),
                                       [&](const Source& s) { return s.begin + s.elements <= want.begin; });
    for (; source != sources.end() && source->begin < end; ++source) {
      const uint64_t from = std::max(want.begin, source->begin);
      const uint64_t to = std::min(end, source->begin + source->elements);
      if (from < to) {
        pieces.push_back(
            {source->part, source->position + (from - source->begin), {want.parameter, from, to - from}});
      }
    }
  }
  std::sort(pieces.begin(), pieces.end(), [](const Piece& a, const Piece& b) {
    return std::pair(a.part, a.position) < std::pair(b.part, b.position);
  });
  return pieces;
}

Result<void> Reader::walk(std::span<const Piece> pieces, Stream stream, const Visit& visit) const {
  constexpr uint64_t kNone = ~uint64_t{0};
  std::vector<std::byte> buffer(kBlockBytes + kChecksumBytes);
  const uint64_t size = elementBytes(stream);
  const uint64_t blockElements = kBlockBytes / size;
  File file;
  size_t opened = ~size_t{0};
  uint64_t held = kNone;  // the block in the buffer
  for (const Piece& piece : pieces) {
    if (isFrozen(piece.stretch.parameter) != (stream == Stream::Frozen)) {
      continue;
    }
    if (piece.part != opened) {
      Result<File> next = openChecked(partPath(piece.part), manifest_.parts[piece.part].bytes);
      if (!next) {
        return next.error();
      }
      file = std::move(*next);
      opened = piece.part;
      held = kNone;
    }
    for (uint64_t done = 0; done < piece.stretch.elements;) {
      const uint64_t position = piece.position + done;
      const uint64_t block = position / blockElements;
      if (block != held) {
        PEAL_TRY(readBlock(file, opened, stream, block, buffer.data()));
        held = block;
      }
      const uint64_t inside = position % blockElements;
      const uint64_t count = std::min(piece.stretch.elements - done, blockElements - inside);
      visit({piece.stretch.parameter, piece.stretch.begin + done, count}, buffer.data() + inside * size);
      done += count;
    }
  }
  return {};
}

Result<void> Reader::readBlock(const File& file, size_t part, Stream stream, uint64_t block,
                               std::byte* to) const {
  const PartHead& head = heads_[part];
  const uint64_t bytes = head.blockBytes(stream, block);
  const uint64_t offset = head.blockOffset(stream, block);
  PEAL_TRY(file.readAt(offset, to, bytes + kChecksumBytes));
  uint32_t checksum = 0;
  std::memcpy(&checksum, to + bytes, kChecksumBytes);
  const uint32_t found = blockChecksum(head.id, stream, block, {to, bytes});
  if (found != checksum) {
    return Error{pealInvalidArgument,
                 fmt::format("{}: block {} of {}, {} bytes at offset {}, has checksum {:08x} but its bytes "
                             "have {:08x}: the file is damaged",
                             file.path(), block, streamName(stream), bytes, offset, checksum, found)};
  }
  return {};
}

Result<std::string> latestCheckpoint(const std::string& directory) {
  namespace fs = std::filesystem;
  std::error_code fault;
  fs::directory_iterator entries(directory, fault);
  if (fault) {
    return fileError("cannot list", directory, fault.value());
  }
  std::string best;
  std::pair<uint64_t, fs::file_time_type> newest;
  for (; entries != fs::directory_iterator(); entries.increment(fault)) {
    const std::string path = entries->path().string();
    if (isStagingName(entries->path().filename().string())) {
      continue;
    }
    const Result<Manifest> manifest = readManifest(path);
    if (!manifest) {
      continue;  // something else, or damaged: not complete
    }
    std::error_code unknown;
    const std::pair age(manifest->step, fs::last_write_time(path + "/" + kManifestName, unknown));
    if (best.empty() || age > newest) {
      best = path;
      newest = age;
    }
    if (fault) {
      break;
    }
  }
  return best;
}

}  // namespace peal::zero::checkpoint
