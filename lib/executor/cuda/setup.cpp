// Making the executor: every step that can fail on one rank ends with an exchange, so that all ranks fail or
// none.
#include <fmt/format.h>

#include "lib/base/log.h"
#include "lib/executor/cuda/agreement.h"
#include "lib/executor/cuda/executor.h"
#include "lib/executor/cuda/retired.h"

namespace peal {
namespace cuda {
namespace {

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
  // One line more: refuseLaunches' word.
  PEAL_TRY(keep(PinnedBuffer::make(options.device, sizeof(HostBoard) + kLineBytes), resources.board));
  PEAL_TRY(keep(StreamHolder::make(options.device), resources.side));
  PEAL_TRY(keep(Event::make(options.device), resources.forked));
  PEAL_TRY(keep(Event::make(options.device), resources.joined));
  PEAL_TRY(keep(LaunchOrder::make(options.device, options.communicator), resources.order));
  PEAL_TRY(cudaResult(cudaMemsetAsync(resources.channels.data(), 0, channelBytes, resources.side.get()),
                      "zeroing the channels' counters"));
  return resources.await(resources.side.get(), deadline, "zeroing the channels' counters");
}

}  // namespace
}  // namespace cuda

Result<std::unique_ptr<DeviceExecutor>> makeDeviceExecutor(Exchange& exchange,
                                                           std::unique_ptr<Endpoint> control,
                                                           const DeviceOptions& options, Deadline deadline) {
  const cuda::RelaxedCapture relaxed;
  cuda::freeRetired();
  Result<cuda::Agreement> agreement = cuda::agree(exchange, options);
  if (!agreement) {
    return agreement.error();
  }
  auto resources = std::make_unique<cuda::Resources>();
  resources->device = options.device;
  Result<std::unique_ptr<DeviceMemory>> memory =
      connectDeviceMemory(exchange, std::move(control),
                          {.device = options.device,
                           .windowBytes = cuda::WindowShape{agreement->shape, options.size}.bytes(),
                           .name = options.name,
                           .deadline = deadline});
  if (!memory) {
    return memory.error();
  }
  resources->memory = std::move(*memory);
  PEAL_TRY(cuda::agreeOn(exchange, cuda::makeOwn(options, agreement->shape, deadline, *resources)));
  log(LogLevel::Info, fmt::format("{}: {}; {} channels of {} threads, {} slots of {} bytes", options.name,
                                  resources->memory->sentence(), agreement->shape.channels,
                                  agreement->threads, agreement->shape.slots, agreement->shape.slotBytes));
  return std::unique_ptr<DeviceExecutor>(
      std::make_unique<cuda::CudaExecutor>(options, *agreement, std::move(resources)));
}

}  // namespace peal
