#include "transports/cuda_ipc/connect.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "lib/base/log.h"

namespace peal {
namespace cuda {
namespace {

const char* text(Reach reach) {
  switch (reach) {
    case Reach::Self:
      return "itself";
    case Reach::SameDevice:
      return "on the same device";
    case Reach::PeerAccess:
      return "by peer access";
    case Reach::Ipc:
      return "by CUDA IPC";
    case Reach::HostStaging:
      return "through host memory";
    case Reach::OtherNode:
      return "not at all";
  }
  return "";
}

// "rank 0 on device 1 reaches ranks 1, 2 on the same device and ranks 3 by CUDA IPC".
std::string describe(const Connected& connected) {
  std::string reached;
  for (const Reach reach : {Reach::SameDevice, Reach::PeerAccess, Reach::Ipc, Reach::HostStaging}) {
    std::vector<int> ranks;
    for (size_t peer = 0; peer < connected.peers.size(); ++peer) {
      if (connected.peers[peer].reach == reach) {
        ranks.push_back(static_cast<int>(peer));
      }
    }
    if (!ranks.empty()) {
      reached += fmt::format("{}rank{} {} {}", reached.empty() ? "" : ", ", ranks.size() > 1 ? "s" : "",
                             fmt::join(ranks, " "), text(reach));
    }
  }
  return fmt::format("rank {} on device {} reaches {}", connected.rank, connected.device,
                     reached.empty() ? "only itself" : reached);
}

Connected begin(int rank, const DeviceMemoryOptions& options, const std::string& otherName) {
  Connected connected;
  connected.rank = rank;
  connected.device = options.device;
  connected.name = options.name.empty() ? otherName : options.name;
  connected.regions = std::make_shared<Regions>();
  return connected;
}

Result<Connected> connectAlone(const DeviceMemoryOptions& options) {
  Connected connected = begin(0, options, "rank 0 of 1");
  Result<std::shared_ptr<Window>> window =
      Window::onDevice(options.device, std::max<size_t>(options.windowBytes, 1), options.deadline);
  if (!window) {
    return window.error();
  }
  connected.window = std::move(*window);
  connected.peers.resize(1);
  connected.peers[0].address = connected.window->data();
  connected.sentence = describe(connected);
  return connected;
}

// None for a rank that is alone on its node.
Result<std::unique_ptr<Watch>> startWatch(const Exchange& exchange, std::unique_ptr<Endpoint> control,
                                          const DeviceMemoryOptions& options, const Connected& connected) {
  WatchOptions watch{.rank = exchange.rank(),
                     .size = exchange.size(),
                     .device = options.device,
                     .name = connected.name,
                     .localOf = options.localOf};
  int here = 0;
  for (int rank = 0; rank < watch.size; ++rank) {
    here += options.onThisNode(rank) ? 1 : 0;
    if (options.localOf.empty()) {
      watch.localOf.push_back(rank);  // all of them are here
    }
  }
  if (here == 1) {
    return std::unique_ptr<Watch>();
  }
  if (!control) {
    return Error{pealInternalError, fmt::format("{} got no control endpoint", connected.name)};
  }
  return Watch::start(std::move(control), watch, connected.regions);
}

Result<Connected> connectTogether(Exchange& exchange, std::unique_ptr<Endpoint> control,
                                  const DeviceMemoryOptions& options) {
  Connected connected =
      begin(exchange.rank(), options, fmt::format("rank {} of {}", exchange.rank(), exchange.size()));
  Result<std::unique_ptr<Watch>> watch = startWatch(exchange, std::move(control), options, connected);
  Result<DeviceWindows> device = connectDeviceWindows(exchange, options, watch);
  if (!device) {
    return device.error();
  }
  connected.watch = std::move(*watch);
  connected.copies = std::move(device->copies);
  if (device->whyNot.empty()) {
    connected.window = std::move(device->window);
    connected.peers = std::move(device->peers);
    connected.path = device->path;
    connected.sentence =
        fmt::format("{}; lines of 128 bytes {}", describe(connected),
                    keepsLinesWhole(device->path) ? "stay whole on all paths" : "may be torn");
    return connected;
  }
  device->peers.clear();  // before the next exchange, after which the peers free their windows
  Result<HostWindows> host = connectHostWindows(exchange, options);
  if (!host) {
    return Error{host.error().code,
                 fmt::format("Device memory cannot be shared ({}), and neither can pinned host memory: {}",
                             device->whyNot, host.error().message)};
  }
  connected.window = std::move(host->window);
  connected.peers = std::move(host->peers);
  connected.path = GpuPath::HostMemory;
  connected.sentence = fmt::format("{}, because {}", describe(connected), device->whyNot);
  if (connected.rank == 0) {
    log(LogLevel::Warn, fmt::format("{}: {}", connected.name, connected.sentence));
  }
  return connected;
}

}  // namespace
}  // namespace cuda

Result<std::unique_ptr<DeviceMemory>> connectDeviceMemory(Exchange& exchange,
                                                          std::unique_ptr<Endpoint> control,
                                                          const DeviceMemoryOptions& options) {
  const cuda::RelaxedCapture relaxed;
  Result<cuda::Connected> connected = exchange.size() == 1
                                          ? cuda::connectAlone(options)
                                          : cuda::connectTogether(exchange, std::move(control), options);
  if (!connected) {
    return connected.error();
  }
  return std::unique_ptr<DeviceMemory>(std::make_unique<cuda::CudaIpcMemory>(std::move(*connected)));
}

}  // namespace peal
