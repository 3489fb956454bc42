#include "tests/cuda/kernel_ranks.h"

#include <fmt/format.h>

#include <cstring>

#include "tests/cudasim/core/memory.h"

namespace peal::cuda::test {
namespace {

constexpr size_t kFrontBytes = 48;
constexpr uint8_t kFrontByte = 0xa5;

}  // namespace

KernelRanks::KernelRanks(const RanksOptions& options) : options_(options) {
  shape_.box = {options.channels, options.slots, options.slotBytes, options.lowSlotBytes};
  shape_.ranks = options.ranks;
  options_.nodes.resize(static_cast<size_t>(options.ranks));
  table_.resize(groupingTableSize(options_.nodes.size()));
  grouping_ = groupRanks(options_.nodes, table_);
  for (int rank = 0; rank < options.ranks; ++rank) {
    windows_.emplace_back(shape_.bytes(), rank);
    windows_.back().fill(0);
    cudasim::setExported(windows_.back().base());
    channels_.emplace_back(sizeof(ChannelState) * static_cast<size_t>(options.channels), rank);
    channels_.back().fill(0);
    boards_.emplace_back(sizeof(HostBoard), 0, cudasim::MemoryKind::PinnedHost);
    boards_.back().fill(0);
    tables_.emplace_back(table_.size() * sizeof(int), rank);
    std::memcpy(tables_.back().host(), table_.data(), table_.size() * sizeof(int));
  }
  const uint64_t before = options.messagesBefore;
  for (int rank = 0; rank < options.ranks; ++rank) {
    std::byte* window = windows_[static_cast<size_t>(rank)].host();
    for (int channel = 0; channel < options.channels; ++channel) {
      auto* state = channels_[static_cast<size_t>(rank)].host<ChannelState>() + channel;
      for (int peer = 0; peer < options.ranks; ++peer) {
        std::byte* inbox = window + shape_.inbox(peer);
        std::memcpy(inbox + shape_.box.tail(channel), &before, sizeof before);
        for (int protocol = 0; protocol < kProtocols; ++protocol) {
          std::memcpy(inbox + shape_.box.heads(channel) + sizeof before * static_cast<size_t>(protocol),
                      &before, sizeof before);
          state->links[peer].sent[protocol] = before;
          state->links[peer].received[protocol] = before;
        }
      }
    }
  }
}

CommView KernelRanks::view(int rank) const {
  const auto at = [](const std::vector<cudasim::DeviceBuffer>& buffers,
                     int i) -> const cudasim::DeviceBuffer& { return buffers[static_cast<size_t>(i)]; };
  CommView view{};
  view.rank = rank;
  view.ranks = options_.ranks;
  view.nodes = grouping_.nodes;
  view.nodeTable = at(tables_, rank).device<int>();
  view.shape = shape_.box;
  view.channels = at(channels_, rank).device<ChannelState>();
  view.stopped = at(windows_, rank).device<uint64_t>();
  view.board = at(boards_, rank).device<HostBoard>();
  view.timeoutNs = options_.timeoutMs * 1000000;
  for (int peer = 0; peer < options_.ranks; ++peer) {
    if (peer != rank) {
      view.inbox[peer] = at(windows_, rank).device(shape_.inbox(peer));
      view.outbox[peer] = at(windows_, peer).device(shape_.inbox(rank));
      view.peerStopped[peer] = at(windows_, peer).device<uint64_t>();
    }
  }
  return view;
}

cudasim::RunResult KernelRanks::run(const std::vector<std::function<void()>>& kernels) {
  std::vector<cudasim::Grid> grids;
  for (size_t rank = 0; rank < kernels.size(); ++rank) {
    if (kernels[rank]) {
      cudasim::Grid grid;
      grid.grid = dim3(static_cast<unsigned>(options_.channels));
      grid.block = dim3(options_.threads);
      grid.body = kernels[rank];
      grid.device = static_cast<int>(rank);
      grid.name = fmt::format("rank {}", rank);
      grids.push_back(std::move(grid));
    }
  }
  std::vector<cudasim::Grid*> pointers;
  for (cudasim::Grid& grid : grids) {
    pointers.push_back(&grid);
  }
  return cudasim::run(pointers, cudasim::World::Alone, cudasim::OnTrap::Return);
}

std::string KernelRanks::complaint(const cudasim::RunResult& result) {
  if (!result.ok()) {
    return result.text;
  }
  for (int rank = 0; rank < size(); ++rank) {
    if (fault(rank).kind != static_cast<uint64_t>(FaultKind::None)) {
      return fmt::format("rank {} reports: {}", rank, describe(fault(rank)));
    }
    if (const uint64_t blocks = channels_[static_cast<size_t>(rank)].host<ChannelState>()->reading;
        blocks != 0) {
      return fmt::format("rank {} counts {} blocks that read, when all have ended", rank, blocks);
    }
  }
  return {};
}

Array::Array(int rank, size_t bytes, size_t misalignment)
    : front_(kFrontBytes + misalignment), buffer_(front_ + bytes, rank) {
  std::memset(buffer_.host(), kFrontByte, front_);
}

bool Array::frontIntact() const {
  for (size_t i = 0; i < front_; ++i) {
    if (buffer_.host<uint8_t>()[i] != kFrontByte) {
      return false;
    }
  }
  return true;
}

std::string describe(const FaultRecord& fault) {
  static const char* const kNames[] = {"none", "stopped", "deadline", "digest", "bytes"};
  return fmt::format(
      "{} (complete {}), peer {}, channel {}, expected {} bytes of collective {} #{} count {}, arrived {} "
      "bytes of "
      "collective {} #{} count {}",
      fault.kind < 5 ? kNames[fault.kind] : "?", fault.complete, fault.peerRank, fault.channel,
      fault.expectedBytes, fault.expected.collective, fault.expected.sequence, fault.expected.count,
      fault.arrivedBytes, fault.arrived.collective, fault.arrived.sequence, fault.arrived.count);
}

const char* protocolName(Protocol protocol) {
  return protocol == Protocol::Simple ? "Simple" : protocol == Protocol::LL ? "LL" : "LL128";
}

}  // namespace peal::cuda::test
