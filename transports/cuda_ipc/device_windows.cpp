// Windows in device memory: opened by the nearest way that each pair of ranks has, tried, and voted on.
#include <fmt/format.h>

#include <algorithm>

#include "transports/cuda_ipc/connect.h"
#include "transports/cuda_ipc/verify.h"
#include "transports/gather.h"

namespace peal::cuda {
namespace {

// Of all copies of one step together.
constexpr int64_t kTrialMs = 2000;

// ---- devices ----

Result<std::array<char, 16>> uuidOf(int device) {
  cudaDeviceProp properties{};
  PEAL_TRY(cudaResult(cudaGetDeviceProperties(&properties, device), "cudaGetDeviceProperties({})", device));
  std::array<char, 16> uuid{};
  static_assert(sizeof properties.uuid == sizeof uuid);
  std::memcpy(uuid.data(), &properties.uuid, sizeof uuid);
  return uuid;
}

// The device with that identity in the numbers of this process; -1: it is hidden from it.
Result<int> deviceWith(const std::array<char, 16>& uuid) {
  int count = 0;
  PEAL_TRY(cudaResult(cudaGetDeviceCount(&count), "cudaGetDeviceCount"));
  for (int device = 0; device < count; ++device) {
    const Result<std::array<char, 16>> other = uuidOf(device);
    if (!other) {
      return other.error();
    }
    if (*other == uuid) {
      return device;
    }
  }
  return -1;
}

Result<void> checkPeerAccess(int device, int peerDevice) {
  int can = 0;
  PEAL_TRY(cudaResult(cudaDeviceCanAccessPeer(&can, device, peerDevice), "cudaDeviceCanAccessPeer({}, {})",
                      device, peerDevice));
  if (can == 0) {
    return Error{
        pealSystemError,
        fmt::format("device {} has no peer access to device {}: there is no NVLink between them, and the "
                    "PCIe topology or an IOMMU does not let them write to each other",
                    device, peerDevice)};
  }
  return {};
}

// Never disabled again: other users in this process may rely on it.
Result<void> enablePeerAccess(int device, int peerDevice) {
  PEAL_TRY(checkPeerAccess(device, peerDevice));
  const CurrentDevice current(device);
  PEAL_TRY(current.status());
  const cudaError_t code = cudaDeviceEnablePeerAccess(peerDevice, 0);
  if (code == cudaErrorPeerAccessAlreadyEnabled) {
    cudaGetLastError();  // it is not an error, and must not be the application's next one
    return {};
  }
  return cudaResult(code, "cudaDeviceEnablePeerAccess of device {} to device {}", device, peerDevice);
}

// Native atomics between two devices mean NVLink, where a warp's store of a line arrives as one.
Result<bool> isNvlink(int device, int peerDevice) {
  int atomics = 0;
  PEAL_TRY(
      cudaResult(cudaDeviceGetP2PAttribute(&atomics, cudaDevP2PAttrNativeAtomicSupported, device, peerDevice),
                 "cudaDeviceGetP2PAttribute({}, {})", device, peerDevice));
  return atomics != 0;
}

// ---- cards ----

Card makeCard(const Exchange& exchange, const DeviceMemoryOptions& options, DeviceWindows& windows) {
  Card card;
  card.windowBytes = options.windowBytes;
  card.process = processIdentity();
  card.device = options.device;
  card.rank = exchange.rank();
  const Result<std::array<char, 16>> uuid = uuidOf(options.device);
  if (!uuid) {
    card.failure.set(uuid.error().message);
    return card;
  }
  card.deviceUuid = *uuid;
  Result<std::shared_ptr<Window>> window = Window::onDevice(
      options.device, std::max(options.windowBytes, patternsBytes(exchange.size())), options.deadline);
  if (!window) {
    card.failure.set(window.error().message);
    return card;
  }
  windows.window = std::move(*window);
  card.window = windows.window->token();
  const CurrentDevice current(options.device);
  if (const Result<void> handle = cudaResult(cudaIpcGetMemHandle(&card.handle, windows.window->data()),
                                             "cudaIpcGetMemHandle of the window");
      !handle) {
    card.noHandle.set(handle.error().message);
  }
  return card;
}

Result<void> checkCards(const std::vector<Card>& cards, const Card& mine) {
  if (const std::string failure = firstReason(cards, &Card::failure); !failure.empty()) {
    return Error{mine.failure.empty() ? pealRemoteError : pealUnhandledCudaError, failure};
  }
  for (const Card& card : cards) {
    if (card.windowBytes != mine.windowBytes) {
      return Error{pealInvalidUsage,
                   fmt::format("windows have {} bytes on rank {} and {} on rank {}; they must be "
                               "the same on all ranks",
                               card.windowBytes, card.rank, mine.windowBytes, mine.rank)};
    }
  }
  return {};
}

// ---- opening ----

Result<PeerWindow> openInProcess(const Card& mine, const Card& theirs) {
  PeerWindow view;
  view.shared = Window::find(theirs.window);
  if (!view.shared) {
    return Error{pealInternalError, "its window is gone"};
  }
  view.address = view.shared->data();
  view.reach = mine.device == theirs.device ? Reach::SameDevice : Reach::PeerAccess;
  view.path = GpuPath::SameDevice;
  if (view.reach == Reach::PeerAccess) {
    PEAL_TRY(enablePeerAccess(mine.device, theirs.device));
    const Result<bool> nvlink = isNvlink(mine.device, theirs.device);
    if (!nvlink) {
      return nvlink.error();
    }
    view.path = *nvlink ? GpuPath::Nvlink : GpuPath::Pcie;
  }
  return view;
}

Result<PeerWindow> openByIpc(const Card& mine, const Card& theirs) {
  if (!theirs.noHandle.empty()) {
    return Error{pealSystemError, theirs.noHandle.text()};
  }
  PeerWindow view;
  view.reach = Reach::Ipc;
  view.path = mine.deviceUuid == theirs.deviceUuid ? GpuPath::SameDevice : GpuPath::Pcie;
  if (view.path != GpuPath::SameDevice) {
    const Result<int> device = deviceWith(theirs.deviceUuid);
    if (!device) {
      return device.error();
    }
    // Memory of a device that is hidden from this process can be mapped all the same; whether NVLink leads
    // there cannot be asked.
    if (*device >= 0) {
      PEAL_TRY(checkPeerAccess(mine.device, *device));
      const Result<bool> nvlink = isNvlink(mine.device, *device);
      if (!nvlink) {
        return nvlink.error();
      }
      view.path = *nvlink ? GpuPath::Nvlink : GpuPath::Pcie;
    }
  }
  Result<IpcMapping> mapping = IpcMapping::open(mine.device, theirs.handle);
  if (!mapping) {
    return mapping.error();
  }
  view.ipc = std::move(*mapping);
  view.address = view.ipc.base();
  return view;
}

Result<void> openAll(const DeviceMemoryOptions& options, const std::vector<Card>& cards, int rank,
                     DeviceWindows& windows) {
  const Card& mine = cards[static_cast<size_t>(rank)];
  windows.peers.resize(cards.size());
  for (size_t peer = 0; peer < cards.size(); ++peer) {
    if (static_cast<int>(peer) == rank) {
      windows.peers[peer].address = windows.window->data();
      windows.peers[peer].path = GpuPath::SameDevice;
      continue;
    }
    if (!options.onThisNode(static_cast<int>(peer))) {
      windows.peers[peer].reach = Reach::OtherNode;
      windows.peers[peer].path = GpuPath::SameDevice;  // nothing is stored there
      continue;
    }
    const bool local = sameProcess(mine.process, cards[peer].process);
    Result<PeerWindow> view = local ? openInProcess(mine, cards[peer]) : openByIpc(mine, cards[peer]);
    if (!view) {
      return Error{view.error().code,
                   fmt::format("the window of rank {} (device {}, pid {}) cannot be reached: {}", peer,
                               cards[peer].device, cards[peer].process.pid, view.error().message)};
    }
    windows.peers[peer] = std::move(*view);
  }
  return {};
}

// The peers that map this rank's memory.
std::vector<std::optional<ImporterCard>> importers(const DeviceMemoryOptions& options,
                                                   const std::vector<Card>& cards, int rank) {
  std::vector<std::optional<ImporterCard>> all(cards.size());
  for (size_t peer = 0; peer < cards.size(); ++peer) {
    if (options.onThisNode(static_cast<int>(peer)) &&
        !sameProcess(cards[static_cast<size_t>(rank)].process, cards[peer].process)) {
      all[peer].emplace(ImporterCard{PeerProcess(cards[peer].process), cards[peer].post});
    }
  }
  return all;
}

Result<void> makeCopies(int device, int ranks, DeviceWindows& windows) {
  Result<TimedCopies> copies = TimedCopies::make(device, patternsBytes(ranks));
  if (!copies) {
    return copies.error();
  }
  windows.copies = std::move(*copies);
  return {};
}

// All ranks' votes on one step. True: nobody is against it.
Result<bool> agreed(Exchange& exchange, const Result<void>& mine, DeviceWindows& windows) {
  Vote vote;
  vote.path = GpuPath::SameDevice;
  for (const PeerWindow& peer : windows.peers) {
    vote.path = std::max(vote.path, peer.path);
  }
  if (!mine) {
    vote.against.set(mine.error().message);
  }
  const Result<std::vector<Vote>> votes = gather(exchange, vote);
  if (!votes) {
    return votes.error();
  }
  windows.whyNot = firstReason(*votes, &Vote::against);
  for (const Vote& other : *votes) {
    windows.path = std::max(windows.path, other.path);
  }
  return windows.whyNot.empty();
}

}  // namespace

Result<DeviceWindows> connectDeviceWindows(Exchange& exchange, const DeviceMemoryOptions& options,
                                           const Result<std::unique_ptr<Watch>>& watch) {
  DeviceWindows windows;
  Card mine;
  if (watch) {
    mine = makeCard(exchange, options, windows);
    if (*watch) {  // there is none where all peers are on other nodes
      mine.post = (*watch)->post();
      if (windows.window) {
        windows.window->setReaders((*watch)->readers());
      }
    }
  } else {
    mine.failure.set(watch.error().message);
  }
  const Result<std::vector<Card>> cards = gather(exchange, mine);
  if (!cards) {
    return cards.error();
  }
  PEAL_TRY(checkCards(*cards, mine));

  const int rank = exchange.rank();
  Result<void> reached = openAll(options, *cards, rank, windows);
  if (reached) {
    reached = makeCopies(options.device, exchange.size(), windows);
  }
  if (reached) {
    reached = writePatterns(options.device, rank, *cards, windows.peers, *windows.copies,
                            Deadline::afterMs(kTrialMs));
  }
  const Result<bool> written = agreed(exchange, reached, windows);
  if (!written) {
    return written.error();
  }
  if (*written) {
    const Result<void> arrived = checkPatterns(options.device, rank, windows.peers, *windows.window,
                                               *windows.copies, Deadline::afterMs(kTrialMs));
    if (*watch) {
      (*watch)->begin(importers(options, *cards, rank));
    }
    const Result<bool> seen = agreed(exchange, arrived, windows);
    if (!seen) {
      return seen.error();
    }
    if (!*seen && *watch) {
      (*watch)->begin({});
    }
  }
  return windows;
}

}  // namespace peal::cuda
