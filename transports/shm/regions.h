// Memory files that ranks read in place, and write where it was lent: which of ours each peer has got, and
// which of a peer's are mapped.
//
// A region's file travels once per peer, before the first message that refers to it. When the region ends
// the peer is told, and unmaps it. Ids are never used twice, so a late message cannot hit a wrong region.
#pragma once
#include <algorithm>
#include <cstdint>
#include <map>
#include <vector>

#include "lib/base/result.h"
#include "lib/memory/registry.h"
#include "transports/shm/segment.h"

namespace peal::shm {

// Our regions that peers know.
class SharedRegions {
 public:
  // `sockets` by rank; -1: no such peer. They must stay open as long as this lives.
  void setSockets(std::vector<int> sockets) { sockets_ = std::move(sockets); }

  // Whether one more region may travel: peers map each, and mappings are limited (vm.max_map_count).
  bool canShare(const Region& region) const {
    return sharedWith_.size() < kMaxRegions || sharedWith_.count(region.id) != 0;
  }
  // Makes sure that the peer has the region. False: not now (its socket is full or closed).
  bool share(int peerRank, const Region& region);
  // In a forked child: the descriptors are closed.
  void forgetSockets() noexcept { std::fill(sockets_.begin(), sockets_.end(), -1); }
  // Forgets regions that ended, and tells the peers that knew them. Cheap if none did.
  void dropEnded();

 private:
  static constexpr size_t kMaxRegions = 4096;
  struct Notice {
    int peerRank;
    uint64_t id;
  };
  std::vector<int> sockets_;
  std::map<uint64_t, std::vector<bool>> sharedWith_;  // by region id, then by rank
  std::vector<Notice> unsent_;                        // the peer's socket was full
  uint64_t generation_ = 0;                           // of the registry, when dropEnded() last looked
};

// A peer's regions that this rank has mapped.
class MappedRegions {
 public:
  // Takes the file of a region that begins.
  Result<void> begin(uint64_t id, size_t bytes, int file);
  void end(uint64_t id);
  // [offset, offset + bytes) of the region, or nullptr if it does not hold that.
  std::byte* find(uint64_t id, size_t offset, size_t bytes) const;

 private:
  std::map<uint64_t, Mapping> regions_;
};

}  // namespace peal::shm
