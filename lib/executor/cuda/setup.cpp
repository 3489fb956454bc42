// Making the executor: every step that can fail on one rank ends with an exchange, so that all ranks fail or
// none.
#include <fmt/format.h>

#include <algorithm>

#include "lib/base/config.h"
#include "lib/base/log.h"
#include "lib/executor/cuda/agreement.h"
#include "lib/executor/cuda/executor.h"
#include "lib/executor/cuda/gpu_direct.h"
#include "lib/executor/cuda/retired.h"
#include "lib/executor/cuda/window_notes.h"

namespace peal {
namespace cuda {
namespace {

// Of a network's link to one peer: bounds its staging memory. Credits are between the kernels, so fewer never
// hang.
constexpr int kNetworkSlots = 8;

// Where ranks lie, for the host and for kernels.
Result<void> makeGroups(const DeviceOptions& options, Resources& resources) {
  if (resources.nodes.nodes <= 1) {
    return {};
  }
  const size_t bytes = resources.groups.size() * sizeof(int);
  Result<DeviceBuffer> table = DeviceBuffer::make(options.device, bytes);
  if (!table) {
    return table.error();
  }
  resources.nodeTable = std::move(*table);
  return cudaResult(cudaMemcpyAsync(resources.nodeTable.data(), resources.groups.data(), bytes,
                                    cudaMemcpyDefault, resources.sides.front().get()),
                    "telling kernels where ranks lie");
}

Result<void> makeOwn(const DeviceOptions& options, const BoxShape& shape, Deadline deadline,
                     Resources& resources) {
  const CurrentDevice current(options.device);
  PEAL_TRY(current.status());
  const auto keep = [](auto made, auto& to) -> Result<void> {
    if (!made) {
      return made.error();
    }
    to = std::move(*made);
    return {};
  };
  const size_t channelBytes = static_cast<size_t>(shape.channels) * sizeof(ChannelState);
  PEAL_TRY(keep(DeviceBuffer::make(options.device, channelBytes), resources.channels));
  PEAL_TRY(keep(PinnedBuffer::make(options.device, sizeof(HostBoard) + kLineBytes + kNotesPageBytes),
                resources.board));
  PEAL_TRY(keep(StreamHolder::make(options.device), resources.sides.emplace_back()));
  PEAL_TRY(keep(Event::make(options.device), resources.forked));
  PEAL_TRY(keep(Event::make(options.device), resources.joined));
  PEAL_TRY(keep(LaunchOrder::make(options.device, options.communicator), resources.order));
  PEAL_TRY(
      cudaResult(cudaMemsetAsync(resources.channels.data(), 0, channelBytes, resources.sides.front().get()),
                 "zeroing the channels' counters"));
  PEAL_TRY(makeGroups(options, resources));
  return awaitStream(resources.sides.front().get(), deadline, "zeroing the channels' counters");
}

// nodes: nullptr for one node.
void placeRanks(const DeviceOptions& options, const Grouping* nodes, Resources& resources) {
  std::vector<int> labels;
  for (int rank = 0; rank < options.size; ++rank) {
    labels.push_back(nodes == nullptr ? 0 : nodes->node(rank));
  }
  resources.groups.resize(groupingTableSize(labels.size()));
  resources.nodes = groupRanks(labels, resources.groups);
  for (int rank = 0; rank < options.size; ++rank) {
    const bool here = resources.nodes.sameNode(rank, options.rank);
    resources.localOf.push_back(here ? resources.nodes.local(rank) : -1);
  }
}

GpuDirect configuredGpuDirect() {
  const std::string& text = configuration()->text(Knob::GpuDirect);
  return text == "on" ? GpuDirect::On : text == "off" ? GpuDirect::Off : GpuDirect::Auto;
}

// Collective, if there are several nodes.
Result<void> startProxy(Exchange& exchange, const DeviceLinks& links, const DeviceOptions& options,
                        Deadline deadline, Resources& resources, std::string& sentence) {
  if (links.nodes == nullptr) {
    return {};
  }
  const BoxShape& shape = resources.window.box;
  const auto connect = [&] {
    return links.connectNetwork(Proxy::networkSlotBytes(shape),
                                std::min(shape.channels * shape.slots, kNetworkSlots));
  };
  Result<std::unique_ptr<Endpoint>> network = connect();
  if (!network) {
    return network.error();
  }
  std::vector<int> peers;
  for (int rank = 0; rank < options.size; ++rank) {
    if (resources.localOf[static_cast<size_t>(rank)] < 0) {
      peers.push_back(rank);
    }
  }
  const ProxyOptions proxied{.rank = options.rank,
                             .size = options.size,
                             .device = options.device,
                             .shape = shape,
                             .name = options.name,
                             .timeoutMs = options.timeoutMs,
                             .board = &resources.host()};
  const GpuDirect wish = configuredGpuDirect();
  std::string why;
  Result<std::optional<ProxySlots>> slots =
      placeSlots(exchange, *network, peers, proxied, {wish, deadline, connect}, why);
  if (!slots) {
    return slots.error();
  }
  if (!why.empty() && wish == GpuDirect::Auto && (*network)->mayReachGpus()) {
    log(LogLevel::Warn,
        fmt::format("{}: messages to other nodes go through host memory: {}", options.name, why));
  }
  sentence = fmt::format("; a proxy over {} to {} rank{} on other nodes, {}", (*network)->name(),
                         peers.size(), peers.size() > 1 ? "s" : "",
                         *slots ? "between memory of GPUs" : fmt::format("through host memory ({})", why));
  Result<std::unique_ptr<Proxy>> proxy = Proxy::start(std::move(*network), peers, proxied, std::move(*slots));
  if (proxy) {
    resources.proxy = std::move(*proxy);
  }
  return agreeOn(exchange, proxy ? Result<void>() : Result<void>(proxy.error()));
}

}  // namespace
}  // namespace cuda

Result<std::unique_ptr<DeviceExecutor>> makeDeviceExecutor(Exchange& exchange, DeviceLinks links,
                                                           const DeviceOptions& options, Deadline deadline) {
  const cuda::RelaxedCapture relaxed;
  cuda::freeRetired();
  Result<cuda::Agreement> agreement = cuda::agree(exchange, options);
  if (!agreement) {
    return agreement.error();
  }
  auto resources = std::make_unique<cuda::Resources>();
  resources->device = options.device;
  cuda::placeRanks(options, links.nodes, *resources);
  resources->window = {agreement->shape, resources->nodes.largestNode()};
  Result<std::unique_ptr<DeviceMemory>> memory =
      connectDeviceMemory(exchange, std::move(links.control),
                          {.device = options.device,
                           .windowBytes = resources->window.bytes(),
                           .name = options.name,
                           .localOf = resources->localOf,
                           .deadline = deadline});
  if (!memory) {
    return memory.error();
  }
  resources->memory = std::move(*memory);
  PEAL_TRY(cuda::agreeOn(exchange, cuda::makeOwn(options, agreement->shape, deadline, *resources)));
  std::string proxied;
  PEAL_TRY(cuda::startProxy(exchange, links, options, deadline, *resources, proxied));
  log(LogLevel::Info, fmt::format("{}: {}{}; {} channels of {} threads, {} slots of {} bytes", options.name,
                                  resources->memory->sentence(), proxied, agreement->shape.channels,
                                  agreement->threads, agreement->shape.slots, agreement->shape.slotBytes));
  return std::unique_ptr<DeviceExecutor>(
      std::make_unique<cuda::CudaExecutor>(options, *agreement, std::move(resources)));
}

}  // namespace peal
