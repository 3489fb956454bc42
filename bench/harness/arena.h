// Memory of one buffer with guard zones before and after it, so that a stray write is seen.
#pragma once
#include <cstddef>
#include <cstdint>

#include "peal/peal.h"

namespace peal::bench {

enum class Placement {
  Plain,      // ordinary memory: -R 0
  Registered  // pealMemAlloc and pealCommRegister: -R 1 and 2
};

class Arena {
 public:
  static constexpr size_t kGuardBytes = 4096;

  // Room for capacityBytes from any shift up to mostShiftBytes. comm registers the memory; it may be nullptr
  // for Placement::Plain.
  Arena(size_t capacityBytes, size_t mostShiftBytes, Placement placement, pealComm_t comm);
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  std::byte* data() const { return data_; }
  // Puts data() this far after a page boundary (-u).
  void shift(size_t shiftBytes);
  // Writes the pattern of the zones around the first usedBytes bytes.
  void fillGuards(size_t usedBytes);
  // Bytes of the zones that have changed since; *firstAt is the first one's place relative to data().
  uint64_t damagedGuardBytes(size_t usedBytes, int64_t* firstAt) const;

 private:
  size_t allocatedBytes_ = 0;
  Placement placement_;
  pealComm_t comm_;
  void* memory_ = nullptr;
  void* handle_ = nullptr;
  std::byte* data_ = nullptr;
};

}  // namespace peal::bench
