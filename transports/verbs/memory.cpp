#include "transports/verbs/memory.h"

#include <fmt/format.h>
#include <sys/mman.h>

#include <cerrno>
#include <cstring>

#include "lib/base/log.h"

namespace peal::verbs {

Result<Registration> registerMemory(Device& device, void* base, size_t bytes, int access) {
  errno = 0;
  ibv_mr* mr = device.library().regMr(device.pd(), base, bytes, access);
  if (mr == nullptr) {
    const int code = errno;
    return Error{
        pealSystemError,
        fmt::format("registering {} bytes with {} failed: {}. {}", bytes, device.name(), std::strerror(code),
                    code == ENOMEM || code == EAGAIN
                        ? "Raise the limit of locked memory (ulimit -l unlimited; in a container, the "
                          "limit memlock)."
                        : "Is the device in order (ibv_devinfo, dmesg)?")};
  }
  return Registration(device.library(), mr);
}

Result<PinnedMemory> PinnedMemory::make(const std::vector<std::unique_ptr<Device>>& devices, size_t bytes,
                                        int access) {
  PinnedMemory memory;
  void* base = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (base == MAP_FAILED) {
    return Error{pealSystemError,
                 fmt::format("no memory for {} bytes of slots: {}. Use smaller or fewer slots "
                             "(PEAL_SLOT_BYTES, PEAL_SLOTS).",
                             bytes, std::strerror(errno))};
  }
  memory.base_ = static_cast<std::byte*>(base);
  memory.bytes_ = bytes;
  madvise(base, bytes, MADV_DONTFORK);
  for (const std::unique_ptr<Device>& device : devices) {
    Result<Registration> registration = registerMemory(*device, base, bytes, access);
    if (!registration) {
      return registration.error();
    }
    memory.registered_.emplace(device.get(), std::move(*registration));
  }
  return memory;
}

PinnedMemory& PinnedMemory::operator=(PinnedMemory&& other) noexcept {
  std::swap(base_, other.base_);
  std::swap(bytes_, other.bytes_);
  std::swap(registered_, other.registered_);
  return *this;
}

PinnedMemory::~PinnedMemory() {
  registered_.clear();
  if (base_ != nullptr) {
    munmap(base_, bytes_);
  }
}

namespace {

struct Part {
  size_t begin = 0;
  size_t bytes = 0;
  int access = 0;
};

Result<Registration> registerGpu(Device& device, const GpuMemory& memory, const Part& part) {
  Library& library = device.library();
  std::byte* const base = memory.base + part.begin;
  std::string first = memory.whyNoDmabuf;
  if (memory.dmabuf >= 0) {
    errno = 0;
    if (ibv_mr* mr = library.regDmabufMr(device.pd(), part.begin, part.bytes,
                                         reinterpret_cast<uint64_t>(base), memory.dmabuf, part.access)) {
      return Registration(library, mr);
    }
    first = std::strerror(errno);
  }
  errno = 0;
  if (ibv_mr* mr = library.regMr(device.pd(), base, part.bytes, part.access)) {
    return Registration(library, mr);
  }
  return Error{
      pealSystemError,
      fmt::format("{} takes no memory of GPU {}: registering {} bytes failed by a dmabuf ({}) and as peer "
                  "memory ({}). A dmabuf needs the driver's open kernel modules and Linux 5.12, peer "
                  "memory the module nvidia-peermem (modprobe nvidia-peermem).",
                  device.name(), memory.device, part.bytes, first, std::strerror(errno))};
}

}  // namespace

Result<ReachedMemory> ReachedMemory::make(const std::vector<std::unique_ptr<Device>>& devices,
                                          const GpuMemory& memory) {
  const Part writtenPart{0, memory.writtenBytes, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE};
  const Part sentPart{memory.writtenBytes, memory.bytes - memory.writtenBytes, /*access=*/0};
  ReachedMemory reached;
  for (const std::unique_ptr<Device>& device : devices) {
    Result<Registration> written = registerGpu(*device, memory, writtenPart);
    if (!written) {
      return written.error();
    }
    Result<Registration> sent = registerGpu(*device, memory, sentPart);
    if (!sent) {
      return sent.error();
    }
    reached.registered_.emplace(device.get(), Parts{std::move(*written), std::move(*sent)});
  }
  reached.sent_ = memory.base + sentPart.begin;
  reached.sentBytes_ = sentPart.bytes;
  return reached;
}

bool ReachedMemory::holds(const std::byte* data, size_t bytes) const {
  const auto offset = reinterpret_cast<uintptr_t>(data) - reinterpret_cast<uintptr_t>(sent_);
  return offset < sentBytes_ && bytes <= sentBytes_ - offset;
}

std::optional<uint32_t> RegistrationCache::find(Device& device, const Region& region) {
  const auto key = std::make_pair(region.id, static_cast<const Device*>(&device));
  auto known = registered_.find(key);
  if (known == registered_.end()) {
    // Only ever read by the device, so that read-only mappings serve too.
    Result<Registration> made =
        registerMemory(device, const_cast<std::byte*>(region.base), region.bytes, /*access=*/0);
    if (!made) {
      log(LogLevel::Warn, made.error().message + " This buffer is copied through slots instead.");
    }
    known = registered_.emplace(key, made ? std::move(*made) : Registration(device.library(), nullptr)).first;
  }
  return known->second ? std::optional(known->second.lkey()) : std::nullopt;
}

void RegistrationCache::dropEnded() {
  const uint64_t now = registryGeneration();
  if (now == generation_) {
    return;
  }
  generation_ = now;
  std::erase_if(registered_, [](const auto& entry) { return !regionExists(entry.first.first); });
}

}  // namespace peal::verbs
