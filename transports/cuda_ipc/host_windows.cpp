// Windows in pinned host memory: memory files that the ranks of one machine open through /proc. For ranks
// whose devices cannot reach each other's memory.
#include <fcntl.h>
#include <fmt/format.h>

#include <cerrno>

#include "transports/cuda_ipc/connect.h"
#include "transports/gather.h"

namespace peal::cuda {
namespace {

Result<PeerWindow> open(int device, const HostCard& mine, const HostCard& theirs) {
  PeerWindow view;
  view.reach = Reach::HostStaging;
  if (sameProcess(mine.process, theirs.process)) {
    view.shared = Window::find(theirs.window);
    if (!view.shared) {
      return Error{pealInternalError, "it is gone"};
    }
    view.address = view.shared->data();
    return view;
  }
  if (mine.process.pidNamespace != theirs.process.pidNamespace) {
    return Error{pealSystemError,
                 "its process is in another pid namespace. Start the containers with a common "
                 "one (--pid=host)"};
  }
  const std::string path = fmt::format("/proc/{}/fd/{}", theirs.process.pid, theirs.file);
  const OwnedFd file(::open(path.c_str(), O_RDWR | O_CLOEXEC));
  if (!file) {
    return systemError(fmt::format("opening {}", path), errno);
  }
  PEAL_TRY(checkMemoryFile(file.get(), theirs.windowBytes));
  Result<PinnedMapping> mapping = PinnedMapping::make(device, file.get(), theirs.windowBytes);
  if (!mapping) {
    return mapping.error();
  }
  view.pinned = std::move(*mapping);
  view.address = view.pinned.onDevice();
  return view;
}

Result<void> openAll(const DeviceMemoryOptions& options, int rank, const std::vector<HostCard>& cards,
                     HostWindows& windows) {
  windows.peers.resize(cards.size());
  for (size_t peer = 0; peer < cards.size(); ++peer) {
    if (static_cast<int>(peer) == rank) {
      windows.peers[peer].address = windows.window->data();
      continue;
    }
    if (!options.onThisNode(static_cast<int>(peer))) {
      windows.peers[peer].reach = Reach::OtherNode;
      continue;
    }
    Result<PeerWindow> view = open(options.device, cards[static_cast<size_t>(rank)], cards[peer]);
    if (!view) {
      return Error{view.error().code, fmt::format("the window of rank {} (pid {}): {}", peer,
                                                  cards[peer].process.pid, view.error().message)};
    }
    windows.peers[peer] = std::move(*view);
  }
  return {};
}

}  // namespace

Result<HostWindows> connectHostWindows(Exchange& exchange, const DeviceMemoryOptions& options) {
  HostWindows windows;
  HostCard mine;
  mine.process = processIdentity();
  Result<std::shared_ptr<Window>> window =
      Window::onHost(options.device, std::max<size_t>(options.windowBytes, 1));
  if (window) {
    windows.window = std::move(*window);
    mine.windowBytes = windows.window->bytes();
    mine.window = windows.window->token();
    mine.file = windows.window->file();
  } else {
    mine.failure.set(window.error().message);
  }
  const Result<std::vector<HostCard>> cards = gather(exchange, mine);
  if (!cards) {
    return cards.error();
  }
  if (const std::string failure = firstReason(*cards, &HostCard::failure); !failure.empty()) {
    return Error{pealSystemError, failure};
  }
  const Result<void> opened = openAll(options, exchange.rank(), *cards, windows);
  Vote vote;
  if (!opened) {
    vote.against.set(opened.error().message);
  }
  const Result<std::vector<Vote>> votes = gather(exchange, vote);
  if (!votes) {
    return votes.error();
  }
  if (const std::string against = firstReason(*votes, &Vote::against); !against.empty()) {
    return Error{pealSystemError, against};
  }
  return windows;
}

}  // namespace peal::cuda
