#include "transports/shm/regions.h"

#include <fmt/format.h>
#include <sys/mman.h>

#include <cerrno>

#include "transports/shm/wire.h"

namespace peal::shm {

bool SharedRegions::share(int peerRank, const Region& region) {
  dropEnded();
  if (!canShare(region)) {
    return false;
  }
  const auto index = static_cast<size_t>(peerRank);
  std::vector<bool>& known = sharedWith_.try_emplace(region.id, sockets_.size(), false).first->second;
  if (!known[index]) {
    const RegionNote note{Note::RegionBegins, 0, region.id, region.bytes};
    if (sendPacket(sockets_[index], &note, sizeof note, region.fd) != 0) {
      return false;
    }
    known[index] = true;
  }
  return true;
}

void SharedRegions::dropEnded() {
  const uint64_t now = registryGeneration();
  if (now == generation_ && unsent_.empty()) {
    return;
  }
  generation_ = now;
  for (auto at = sharedWith_.begin(); at != sharedWith_.end();) {
    if (regionExists(at->first)) {
      ++at;
      continue;
    }
    for (size_t rank = 0; rank < at->second.size(); ++rank) {
      if (at->second[rank]) {
        unsent_.push_back({static_cast<int>(rank), at->first});
      }
    }
    at = sharedWith_.erase(at);
  }
  std::erase_if(unsent_, [this](const Notice& notice) {
    const RegionNote note{Note::RegionEnds, 0, notice.id, 0};
    return sendPacket(sockets_[static_cast<size_t>(notice.peerRank)], &note, sizeof note, -1) != EAGAIN;
  });
}

Result<void> MappedRegions::begin(uint64_t id, size_t bytes, int file) {
  PEAL_TRY(checkMemoryFile(file, bytes));
  if (bytes == 0 || regions_.count(id) != 0) {
    return Error{pealRemoteError, fmt::format("region {} of {} bytes is empty or known already", id, bytes)};
  }
  Result<Mapping> mapping = Mapping::make(file, 0, bytes, PROT_READ | PROT_WRITE, "a peer's buffer");
  if (!mapping) {
    return mapping.error();
  }
  regions_.emplace(id, std::move(*mapping));
  return {};
}

void MappedRegions::end(uint64_t id) { regions_.erase(id); }

std::byte* MappedRegions::find(uint64_t id, size_t offset, size_t bytes) const {
  const auto found = regions_.find(id);
  if (found == regions_.end() || offset > found->second.bytes() || bytes > found->second.bytes() - offset) {
    return nullptr;
  }
  return found->second.base() + offset;
}

}  // namespace peal::shm
