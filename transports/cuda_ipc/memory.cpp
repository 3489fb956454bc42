#include "transports/cuda_ipc/memory.h"

#include <algorithm>

#include "lib/base/log.h"
#include "transports/cuda_ipc/lingering.h"

namespace peal::cuda {
namespace {

// Peers' watch threads answer at once, unless a driver call keeps their mappers.
constexpr int64_t kLastRetirementMs = 2000;
// After a fault, when peers' kernels leave first: as long as their ranks give them (executor.cpp).
constexpr int64_t kWithdrawalMs = 10000;

}  // namespace

CudaIpcMemory::CudaIpcMemory(Connected connected) : connected_(std::move(connected)) {}

CudaIpcMemory::~CudaIpcMemory() {
  if (!connected_.watch) {
    return;
  }
  // The thread may live on, whoever asked for them does not.
  connected_.watch->onLoss(nullptr);
  connected_.watch->readers()->set(nullptr);
  if (const Result<void> left =
          deregisterAll(Deadline::afterMs(isFaulty() ? kWithdrawalMs : kLastRetirementMs));
      !left) {
    log(LogLevel::Warn, left.error().message);
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

// Whether [data, data + bytes) is memory of this device.
Result<void> CudaIpcMemory::check(const void* data, size_t bytes) const {
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
  const Result<size_t> behind = bytesBehind(data, connected_.device, bytes);
  if (!behind) {
    return behind.error();
  }
  if (bytes > *behind) {
    return Error{
        pealInvalidArgument,
        fmt::format("{}: {} bytes at {} do not lie in one allocation: it ends {} bytes after that address",
                    connected_.name, bytes, data, *behind)};
  }
  return {};
}

// How peers get at the region: an IPC handle for memory of cudaMalloc; handles of its pieces for memory of
// cuMemCreate, and for other devices of this process a mapping of its own, since peer access does not reach
// it.
Result<void> CudaIpcMemory::share(Region& region, Note& note, std::vector<OwnedFd>& files) const {
  if (!mayBePiece(region.data)) {
    const Result<Allocation> allocation = allocationOf(region.data);
    if (!allocation) {
      return allocation.error();
    }
    note.offset = static_cast<uint64_t>(region.data - allocation->base);
    return cudaResult(cudaIpcGetMemHandle(&note.handle, allocation->base), "cudaIpcGetMemHandle");
  }
  Result<Pieces> pieces = Pieces::behind(region.data, region.bytes, HandlePost::kMostFiles);
  if (!pieces) {
    return Error{pieces.error().code, fmt::format("{}. Memory of cudaMallocAsync, of a pool and of a machine "
                                                  "without CUDA IPC cannot be passed on",
                                                  pieces.error().message)};
  }
  note.offset = pieces->offset();
  if (reachesSomebody(Reach::Ipc)) {
    Result<std::vector<OwnedFd>> exported = pieces->files();
    if (!exported) {
      return exported.error();
    }
    files = std::move(*exported);
    note.pieces = static_cast<int32_t>(files.size());
    for (size_t i = 0; i < files.size(); ++i) {
      note.pieceBytes[i] = pieces->all()[i].bytes;
    }
  }
  std::vector<int> devices;
  for (const PeerWindow& peer : connected_.peers) {
    if (peer.reach == Reach::PeerAccess &&
        std::find(devices.begin(), devices.end(), peer.shared->device()) == devices.end()) {
      devices.push_back(peer.shared->device());
    }
  }
  if (!devices.empty()) {
    Result<PieceMapping> mapping = PieceMapping::make(*pieces, devices);
    if (!mapping) {
      return mapping.error();
    }
    region.mapping = std::make_shared<PieceMapping>(std::move(*mapping));
  }
  return {};
}

Result<uint64_t> CudaIpcMemory::registerBuffer(const void* data, size_t bytes) {
  const RelaxedCapture relaxed;
  const CurrentDevice current(connected_.device);
  PEAL_TRY(current.status());
  PEAL_TRY(check(data, bytes));
  Region region;
  region.data = static_cast<const std::byte*>(data);
  region.bytes = bytes;
  region.at.resize(connected_.peers.size());
  region.holds.resize(connected_.peers.size(), Hold::No);
  Note note;
  note.bytes = bytes;
  std::vector<OwnedFd> files;
  if (reachesSomebody(Reach::Ipc) || reachesSomebody(Reach::PeerAccess)) {
    if (const Result<void> shared = share(region, note, files); !shared) {
      return Error{
          pealInvalidUsage,
          fmt::format("{}: the buffer at {} cannot be mapped by other devices or processes: {}. Register "
                      "memory of cudaMalloc or pealMemAllocDevice. Without registration it is copied through "
                      "slots.",
                      connected_.name, data, shared.error().message)};
    }
  }
  for (size_t peer = 0; peer < connected_.peers.size(); ++peer) {
    const Reach reach = connected_.peers[peer].reach;
    if (reach == Reach::PeerAccess && region.mapping != nullptr) {
      region.at[peer] = reinterpret_cast<uint64_t>(region.mapping->base()) + note.offset;
    } else if (reach == Reach::Self || reach == Reach::SameDevice || reach == Reach::PeerAccess) {
      region.at[peer] = reinterpret_cast<uint64_t>(data);
    }
  }
  return connected_.watch ? connected_.watch->announce(std::move(region), note, std::move(files))
                          : connected_.regions->add(std::move(region));
}

// After a fault, the kernels of this process's other ranks. Their addresses are the buffer's own, so nobody
// closes a mapping, and the caller may free it when this has returned.
Result<void> CudaIpcMemory::awaitReaders(Deadline deadline) {
  for (size_t peer = 0; peer < connected_.peers.size(); ++peer) {
    const std::shared_ptr<Window>& window = connected_.peers[peer].shared;
    if (window == nullptr || window->readers() == nullptr) {
      continue;
    }
    if (const Result<void> gone = window->readers()->letGo(connected_.rank, deadline); !gone) {
      return Error{gone.error().code,
                   fmt::format("{}: kernels of rank {} may still read this rank's registered buffers: {}. Do "
                               "not free them.",
                               connected_.name, peer, gone.error().message)};
    }
  }
  return {};
}

Result<void> CudaIpcMemory::retire(uint64_t id, Deadline deadline) {
  if (!connected_.watch) {
    connected_.regions->erase(id);
    return {};
  }
  const bool faulty = isFaulty();
  if (faulty) {
    PEAL_TRY(awaitReaders(deadline));
  }
  return connected_.watch->retire(id, faulty ? NoteKind::Withdraw : NoteKind::Retire, deadline);
}

Result<void> CudaIpcMemory::deregisterAll(Deadline deadline) {
  Result<void> outcome;
  for (const uint64_t id : connected_.regions->ids()) {
    if (Result<void> retired = retire(id, deadline); !retired && outcome) {
      outcome = std::move(retired);
    }
  }
  return outcome;
}

Result<void> CudaIpcMemory::deregisterBuffer(uint64_t id, Deadline deadline) {
  const std::optional<Region> region = connected_.regions->find(id);
  if (!region) {
    return Error{pealInvalidArgument,
                 fmt::format("{}: there is no registered buffer with the id {}", connected_.name, id)};
  }
  PEAL_TRY(retire(id, deadline));
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

void CudaIpcMemory::onWithdrawal(LetGo action) {
  if (connected_.watch) {
    connected_.watch->readers()->set(std::move(action));
  }
}

void CudaIpcMemory::farewell(int culpritRank, const std::string& reason) {
  if (culpritRank >= 0) {
    faulty_.store(true, std::memory_order_relaxed);
  }
  if (connected_.watch) {
    connected_.watch->farewell(culpritRank, reason);
  }
}

}  // namespace peal::cuda
