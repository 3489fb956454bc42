// One checkpoint, opened: its manifest and all tables checked, and every element reachable, block by block,
// each checked before its elements are seen. Used by Load and by the C API's reading functions. Changes
// nothing; communicates nothing.
#pragma once
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "lib/zero/checkpoint/file.h"
#include "lib/zero/checkpoint/manifest.h"

namespace peal::zero::checkpoint {

class Reader {
 public:
  // Reads the manifest, and header and table of every part; each element must be there exactly once.
  static Result<Reader> open(const std::string& path);

  const Manifest& manifest() const { return manifest_; }
  const std::string& path() const { return path_; }
  // The user's bytes, checked.
  Result<std::string> userData() const;

  // What to read: consecutive elements that lie in one part.
  struct Piece {
    size_t part;
    uint64_t position;  // in the part's streams
    Stretch stretch;
  };
  // In the order of the files. Parameters are the manifest's, of no tied name.
  std::vector<Piece> pieces(std::span<const Stretch> wanted) const;

  // Calls visit for all elements of the pieces, those that have this stream, in pieces that lie inside one
  // block. Uses one block of memory.
  using Visit = std::function<void(const Stretch& stretch, const void* values)>;
  Result<void> walk(std::span<const Piece> pieces, Stream stream, const Visit& visit) const;

 private:
  struct Source {
    uint64_t begin, elements;  // of the parameter
    size_t part;
    uint64_t position;
  };
  Result<void> openPart(size_t part);
  Result<void> checkCoverage();
  Result<void> readBlock(const File& file, size_t part, Stream stream, uint64_t block, std::byte* to) const;
  bool isFrozen(uint64_t parameter) const { return manifest_.parameters[parameter].kind == Kind::Frozen; }
  std::string partPath(size_t part) const { return path_ + "/" + manifest_.parts[part].name; }

  std::string path_;
  Manifest manifest_;
  std::vector<PartHead> heads_;               // per part
  std::vector<std::vector<Source>> sources_;  // per parameter, by begin
};

// Manifest only, and that all files are there with their sizes: whether PATH is a complete checkpoint.
Result<Manifest> readManifest(const std::string& path);

// The newest complete checkpoint among the directories in `directory`: that with the most steps, of those the
// one written last. Empty: there is none.
Result<std::string> latestCheckpoint(const std::string& directory);

}  // namespace peal::zero::checkpoint
