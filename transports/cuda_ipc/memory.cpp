#include "transports/cuda_ipc/memory.h"

#include <algorithm>

#include "lib/base/log.h"
#include "transports/cuda_ipc/lingering.h"

namespace peal::cuda {
namespace {

// Peers' watch threads answer at once, unless a driver call keeps their mappers.
constexpr int64_t kLastRetirementMs = 2000;

}  // namespace

CudaIpcMemory::CudaIpcMemory(Connected connected) : connected_(std::move(connected)) {}

CudaIpcMemory::~CudaIpcMemory() {
  if (!connected_.watch) {
    return;
  }
  connected_.watch->onLoss(nullptr);  // the thread may live on, whoever asked for it does not
  const Deadline deadline = Deadline::afterMs(kLastRetirementMs);
  for (const uint64_t id : connected_.regions->ids()) {
    if (const Result<void> retired = connected_.watch->retire(id, deadline); !retired) {
      log(LogLevel::Warn, retired.error().message);
    }
  }
  const bool othersMapIt = reachesSomebody(Reach::Ipc);
  connected_.peers.clear();
  if (othersMapIt) {
    connected_.watch->leave(std::move(connected_.window));
    keepLingering(std::move(connected_.watch));
  }
}

bool CudaIpcMemory::reachesSomebody(Reach reach) const {
  return std::any_of(connected_.peers.begin(), connected_.peers.end(),
                     [reach](const PeerWindow& peer) { return peer.reach == reach; });
}

// ---- registered buffers ----

// The allocation that holds [data, data + bytes), if it is one of this device.
Result<Allocation> CudaIpcMemory::check(const void* data, size_t bytes) const {
  if (bytes == 0) {
    return Error{pealInvalidArgument,
                 fmt::format("{}: a buffer of 0 bytes cannot be registered", connected_.name)};
  }
  const Result<PointerKind> kind = kindOf(data);
  if (!kind) {
    return kind.error();
  }
  if (kind->type != cudaMemoryTypeDevice || kind->device != connected_.device) {
    return Error{
        pealInvalidArgument,
        fmt::format("{}: the buffer at {} is {}; only memory of this rank's device {} can be registered",
                    connected_.name, data, kind->text(), connected_.device)};
  }
  Result<Allocation> allocation = allocationOf(data);
  if (!allocation) {
    return allocation.error();
  }
  const size_t offset = static_cast<size_t>(static_cast<const std::byte*>(data) - allocation->base);
  if (bytes > allocation->bytes - offset) {
    return Error{
        pealInvalidArgument,
        fmt::format("{}: {} bytes at {} do not lie in one allocation: it ends {} bytes after that address",
                    connected_.name, bytes, data, allocation->bytes - offset)};
  }
  return allocation;
}

Result<uint64_t> CudaIpcMemory::registerBuffer(const void* data, size_t bytes) {
  const RelaxedCapture relaxed;
  const CurrentDevice current(connected_.device);
  PEAL_TRY(current.status());
  const Result<Allocation> allocation = check(data, bytes);
  if (!allocation) {
    return allocation.error();
  }
  Region region;
  region.data = static_cast<const std::byte*>(data);
  region.bytes = bytes;
  region.at.resize(connected_.peers.size());
  region.holds.resize(connected_.peers.size(), Hold::No);
  Note note;
  note.offset = static_cast<uint64_t>(region.data - allocation->base);
  note.bytes = bytes;
  // Peer access and IPC reach memory of cudaMalloc only. An IPC handle is how one knows it.
  if (reachesSomebody(Reach::Ipc) || reachesSomebody(Reach::PeerAccess)) {
    const Result<void> handle =
        cudaResult(cudaIpcGetMemHandle(&note.handle, allocation->base), "cudaIpcGetMemHandle");
    if (!handle) {
      return Error{
          pealInvalidUsage,
          fmt::format("{}: the buffer at {} cannot be mapped by other devices or processes: {}. Register "
                      "memory of cudaMalloc, not of cuMemCreate or cudaMallocAsync. Without registration "
                      "it is copied through slots.",
                      connected_.name, data, handle.error().message)};
    }
  }
  for (size_t peer = 0; peer < connected_.peers.size(); ++peer) {
    const Reach reach = connected_.peers[peer].reach;
    if (reach == Reach::Self || reach == Reach::SameDevice || reach == Reach::PeerAccess) {
      region.at[peer] = reinterpret_cast<uint64_t>(data);
    }
  }
  return connected_.watch ? connected_.watch->announce(std::move(region), note)
                          : connected_.regions->add(std::move(region));
}

Result<void> CudaIpcMemory::deregisterBuffer(uint64_t id, Deadline deadline) {
  const std::optional<Region> region = connected_.regions->find(id);
  if (!region) {
    return Error{pealInvalidArgument,
                 fmt::format("{}: there is no registered buffer with the id {}", connected_.name, id)};
  }
  if (connected_.watch) {
    PEAL_TRY(connected_.watch->retire(id, deadline));
  } else {
    connected_.regions->erase(id);
  }
  const Result<PointerKind> kind = kindOf(region->data);
  if (!kind || kind->type != cudaMemoryTypeDevice) {
    return Error{
        pealInvalidUsage,
        fmt::format("{}: the buffer at {} was freed while it was registered, so peers may have read other "
                    "memory in its place. Deregister before freeing. (It is deregistered now.)",
                    connected_.name, static_cast<const void*>(region->data))};
  }
  return {};
}

// ---- health ----

std::optional<DeviceMemory::Loss> CudaIpcMemory::loss() {
  return connected_.watch ? connected_.watch->loss() : std::nullopt;
}

void CudaIpcMemory::onLoss(std::function<void()> action) {
  if (connected_.watch) {
    connected_.watch->onLoss(std::move(action));
  }
}

void CudaIpcMemory::farewell(int culpritRank, const std::string& reason) {
  if (connected_.watch) {
    connected_.watch->farewell(culpritRank, reason);
  }
}

}  // namespace peal::cuda
