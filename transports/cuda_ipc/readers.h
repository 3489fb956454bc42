// The kernels of a rank that may be reading peers' buffers, as whoever takes such a buffer back sees them:
// peers of this process directly, those of other processes by this rank's mapper.
//
// Owns nothing but the executor's action. Thread-safe. Belongs to a Watch, and to the window by which peers
// of this process find it; outlives the executor, which takes its action out before it ends.
#pragma once
#include <cstdint>
#include <mutex>
#include <optional>
#include <utility>

#include "transports/device_memory.h"

namespace peal::cuda {

class Readers {
 public:
  void set(DeviceMemory::LetGo letGo) {
    const std::lock_guard lock(mutex_);
    letGo_ = std::move(letGo);
    if (letGo_ && askedBy_) {  // a peer failed before this rank had kernels: they must not begin to read
      static_cast<void>(letGo_(*askedBy_, Deadline::afterMs(kNoKernelsMs)));
    }
  }
  // Returns when no kernel reads any peer's buffer, and none will.
  Result<void> letGo(int culpritRank, Deadline deadline) {
    const std::lock_guard lock(mutex_);  // held meanwhile: set() waits
    askedBy_ = culpritRank;
    return letGo_ ? letGo_(culpritRank, deadline) : Result<void>();
  }

 private:
  static constexpr int64_t kNoKernelsMs = 1000;
  std::mutex mutex_;  // guards both
  DeviceMemory::LetGo letGo_;
  std::optional<int> askedBy_;
};

}  // namespace peal::cuda
