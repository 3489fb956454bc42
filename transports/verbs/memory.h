// Memory that devices may touch: the slots of all links, memory of the user that is sent in place, and memory
// of a GPU.
//
// Owned by the fabric; ends after the queue pairs and before the devices.
#pragma once
#include <cstddef>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "lib/memory/registry.h"
#include "transports/transport.h"
#include "transports/verbs/devices.h"

namespace peal::verbs {

// One registration on one device.
class Registration {
 public:
  // `mr` may be nullptr: a registration that was refused, remembered as such.
  Registration(Library& library, ibv_mr* mr) : library_(&library), mr_(mr) {}
  Registration(Registration&& other) noexcept
      : library_(other.library_), mr_(std::exchange(other.mr_, nullptr)) {}
  Registration& operator=(Registration&& other) noexcept {
    std::swap(library_, other.library_);
    std::swap(mr_, other.mr_);
    return *this;
  }
  ~Registration() {
    if (mr_ != nullptr) {
      library_->deregMr(mr_);
    }
  }
  explicit operator bool() const { return mr_ != nullptr; }
  uint32_t lkey() const { return mr_->lkey; }
  uint32_t rkey() const { return mr_->rkey; }

 private:
  Library* library_;
  ibv_mr* mr_;
};

// Registers host memory; the error names the device, the size and the remedy.
Result<Registration> registerMemory(Device& device, void* base, size_t bytes, int access);

// Pages of our own, registered on every device. Not inherited by children: a fork leaves pinned pages alone.
class PinnedMemory {
 public:
  static Result<PinnedMemory> make(const std::vector<std::unique_ptr<Device>>& devices, size_t bytes,
                                   int access);
  PinnedMemory() = default;
  PinnedMemory(PinnedMemory&& other) noexcept { *this = std::move(other); }
  PinnedMemory& operator=(PinnedMemory&& other) noexcept;
  ~PinnedMemory();

  std::byte* base() const { return base_; }
  const Registration& on(const Device& device) const { return registered_.at(&device); }

 private:
  std::byte* base_ = nullptr;
  size_t bytes_ = 0;
  std::map<const Device*, Registration> registered_;
};

// Memory of a GPU, registered on every device: by its dmabuf, else by its address, which takes a kernel
// module of the GPU's driver (peer memory: nvidia-peermem). What peers write and what is only sent are
// registrations of their own: a peer's key opens the first alone. Not its owner.
class ReachedMemory {
 public:
  static Result<ReachedMemory> make(const std::vector<std::unique_ptr<Device>>& devices,
                                    const GpuMemory& memory);
  ReachedMemory() = default;

  // Whether it may be sent.
  bool holds(const std::byte* data, size_t bytes) const;
  uint32_t keyForPeers(const Device& device) const { return registered_.at(&device).written.rkey(); }
  uint32_t keyToSend(const Device& device) const { return registered_.at(&device).sent.lkey(); }

 private:
  struct Parts {
    Registration written;
    Registration sent;
  };

  std::byte* sent_ = nullptr;
  size_t sentBytes_ = 0;
  std::map<const Device*, Parts> registered_;
};

// Registrations of the user's memory (lib/memory/registry.h): made at the first use of a region, kept until
// the region ends. Pinning costs far more than a message, and training sends the same buffers again.
class RegistrationCache {
 public:
  // The local key of that region on that device; nullopt: the device refused it (said once in the log), and
  // what is in it travels through slots.
  std::optional<uint32_t> find(Device& device, const Region& region);
  // Drops what belongs to regions that ended. Cheap when none has.
  void dropEnded();

 private:
  std::map<std::pair<uint64_t, const Device*>, Registration> registered_;
  uint64_t generation_ = 0;
};

}  // namespace peal::verbs
