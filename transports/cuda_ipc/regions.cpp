#include "transports/cuda_ipc/regions.h"

#include <algorithm>
#include <utility>

namespace peal::cuda {

uint64_t Regions::add(Region region) {
  const std::lock_guard lock(mutex_);
  regions_.emplace(++lastId_, std::move(region));
  count_.store(regions_.size(), std::memory_order_relaxed);
  return lastId_;
}

uint64_t Regions::addressAt(int peerRank, const std::byte* data, size_t bytes) const {
  // A thread that registered a buffer sees its own store; nobody else may count on the buffer yet.
  if (count_.load(std::memory_order_relaxed) == 0) {
    return 0;
  }
  const std::lock_guard lock(mutex_);
  // The newest that holds the range decides, also while a peer has not mapped it: memory that was freed while
  // registered, and registered again at the same address, is not what peers mapped before.
  for (auto entry = regions_.rbegin(); entry != regions_.rend(); ++entry) {
    const Region& region = entry->second;
    if (!region.retired && data >= region.data && static_cast<size_t>(data - region.data) <= region.bytes &&
        bytes <= region.bytes - static_cast<size_t>(data - region.data)) {
      const uint64_t address = region.at[static_cast<size_t>(peerRank)];
      return address == 0 ? 0 : address + static_cast<uint64_t>(data - region.data);
    }
  }
  return 0;
}

std::optional<std::vector<int>> Regions::retire(uint64_t id) {
  const std::lock_guard lock(mutex_);
  const auto found = regions_.find(id);
  if (found == regions_.end()) {
    return std::nullopt;
  }
  found->second.retired = true;
  std::vector<int> toAsk;
  std::vector<Hold>& holds = found->second.holds;
  for (size_t peer = 0; peer < holds.size(); ++peer) {
    if (holds[peer] == Hold::Told) {
      holds[peer] = Hold::AskedToClose;
      toAsk.push_back(static_cast<int>(peer));
    }
  }
  return toAsk;
}

std::vector<int> Regions::holders(uint64_t id) const {
  const std::lock_guard lock(mutex_);
  std::vector<int> all;
  const auto found = regions_.find(id);
  for (size_t peer = 0; found != regions_.end() && peer < found->second.holds.size(); ++peer) {
    if (found->second.holds[peer] != Hold::No) {
      all.push_back(static_cast<int>(peer));
    }
  }
  return all;
}

std::optional<Region> Regions::find(uint64_t id) const {
  const std::lock_guard lock(mutex_);
  const auto found = regions_.find(id);
  return found == regions_.end() ? std::nullopt : std::optional<Region>(found->second);
}

std::vector<uint64_t> Regions::ids() const {
  const std::lock_guard lock(mutex_);
  std::vector<uint64_t> all;
  for (const auto& [id, region] : regions_) {
    all.push_back(id);
  }
  return all;
}

void Regions::erase(uint64_t id) {
  const std::lock_guard lock(mutex_);
  regions_.erase(id);
  count_.store(regions_.size(), std::memory_order_relaxed);
}

void Regions::mapped(int peerRank, uint64_t id, uint64_t address) {
  const std::lock_guard lock(mutex_);
  const auto found = regions_.find(id);
  if (found != regions_.end() && found->second.holds[static_cast<size_t>(peerRank)] == Hold::Told) {
    found->second.at[static_cast<size_t>(peerRank)] = address;
  }
}

void Regions::closed(int peerRank, uint64_t id) {
  const std::lock_guard lock(mutex_);
  const auto found = regions_.find(id);
  if (found != regions_.end() && found->second.holds[static_cast<size_t>(peerRank)] != Hold::No) {
    found->second.at[static_cast<size_t>(peerRank)] = 0;
    found->second.holds[static_cast<size_t>(peerRank)] = Hold::No;
  }
}

void Regions::gone(int peerRank) {
  for (const uint64_t id : ids()) {
    closed(peerRank, id);
  }
}

}  // namespace peal::cuda
