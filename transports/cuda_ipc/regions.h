// This rank's registered buffers, and where each peer reads them.
//
// Owns no memory. Thread-safe: one mutex, held for a few moves at a time and never while anything is mapped,
// because addressAt() is on the way to every launch.
#pragma once
#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "lib/memory/pieces.h"
#include "transports/cuda_ipc/notes.h"

namespace peal::cuda {

// Whether a peer may have a region mapped.
enum class Hold : uint8_t { No, Told, AskedToClose };

struct Region {
  const std::byte* data = nullptr;
  size_t bytes = 0;
  std::vector<uint64_t> at;  // by peer: where it reads the region; 0: it cannot (yet)
  std::vector<Hold> holds;   // by peer
  bool retired = false;
  std::shared_ptr<PieceMapping> mapping;  // for other devices of this process, where they need one
};

class Regions {
 public:
  uint64_t add(Region region);
  uint64_t addressAt(int peerRank, const std::byte* data, size_t bytes) const;

  // From now on nobody is given its address. The peers that must be asked to close it, each once; nullopt:
  // there is no such region.
  std::optional<std::vector<int>> retire(uint64_t id);
  std::optional<Region> find(uint64_t id) const;
  // The peers that may have it mapped.
  std::vector<int> holders(uint64_t id) const;
  std::vector<uint64_t> ids() const;
  // Forgets it.
  void erase(uint64_t id);

  // What a peer said.
  void mapped(int peerRank, uint64_t id, uint64_t address);
  void closed(int peerRank, uint64_t id);
  void gone(int peerRank);

 private:
  mutable std::mutex mutex_;  // guards regions_
  std::map<uint64_t, Region> regions_;
  uint64_t lastId_ = 0;
  std::atomic<size_t> count_{0};  // only to answer quickly where nothing is registered
};

}  // namespace peal::cuda
