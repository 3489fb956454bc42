// Memory of one buffer with guard zones before and after it, so that a stray write is seen. On a GPU it has a
// mirror in host memory, which is filled and looked at in its place.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>

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
  // for Placement::Plain. device: PEAL_DEVICE_HOST, or the calling thread's current GPU.
  Arena(size_t capacityBytes, size_t mostShiftBytes, Placement placement, pealComm_t comm, int device);
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  // For the library.
  std::byte* data() const { return data_; }
  // For who fills it and looks at it: the same memory on the host, else the mirror.
  std::byte* host() const { return mirror_ != nullptr ? mirror_.get() + (data_ - memory()) : data_; }
  // Between mirror and GPU: the first usedBytes bytes and the zones around them. Nothing on the host.
  void upload(size_t usedBytes) const;
  void download(size_t usedBytes) const;
  // Puts data() this far after a page boundary (-u).
  void shift(size_t shiftBytes);
  // Writes the pattern of the zones around the first usedBytes bytes, at host().
  void fillGuards(size_t usedBytes);
  // Bytes of the zones that have changed since; *firstAt is the first one's place relative to data().
  uint64_t damagedGuardBytes(size_t usedBytes, int64_t* firstAt) const;

 private:
  std::byte* memory() const { return static_cast<std::byte*>(memory_); }

  size_t allocatedBytes_ = 0;
  Placement placement_;
  pealComm_t comm_;
  int device_;
  std::unique_ptr<std::byte[]> mirror_;  // on a GPU
  void* memory_ = nullptr;
  void* handle_ = nullptr;
  std::byte* data_ = nullptr;
};

}  // namespace peal::bench
