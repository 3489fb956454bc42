// The communicator's side of a GPU: making the executor, issuing onto CUDA streams, noticing faults.
#include <fmt/format.h>

#include <thread>

#include "lib/base/config.h"
#include "lib/comm/communicator.h"
#include "lib/comm/host_links.h"

namespace peal {
namespace {

// The control endpoint carries news of buffers and of peers, not data.
constexpr size_t kControlSlotBytes = 4096;
constexpr int kControlSlots = 4;

// CUDA tells that a graph is gone on a thread of its own, some time after the application destroyed it.
constexpr int64_t kGraphGoneMs = 500;

// Errors after which ranks can no longer be in step: the call may have reached the GPU in part.
bool isBreakage(pealResult_t code) {
  return code == pealUnhandledCudaError || code == pealSystemError || code == pealInternalError;
}

}  // namespace

DeviceQuestion Communicator::questionForDevice(TunerQuestion call, std::string_view forcedProtocol) const {
  const DeviceFacts& facts = device_->facts();
  call.slotBytes = facts.slotBytes;
  return {.call = call,
          .llBytes = facts.llBytes,
          .ll128Bytes = facts.ll128Bytes,
          .channels = facts.channels,
          .path = facts.path,
          .simpleOnly = facts.simpleOnly,
          .forced = forcedProtocol};
}

Result<void> Communicator::connectDevice(Exchange& exchange, Deadline deadline) {
  DeviceLinks links{.nodes = context_.grouping};
  HostLinkOptions options{.slotBytes = kControlSlotBytes,
                          .slots = kControlSlots,
                          .directRead = false,
                          .interfaces = configuration()->text(Knob::Interface),
                          .fabrics = configuredFabrics(),
                          .deadline = deadline};
  if (size() > 1) {
    Result<std::unique_ptr<Endpoint>> control = connectNode(exchange, secret_, grouping_, options);
    if (!control) {
      return control.error();
    }
    if (grouping_.nodeSize(grouping_.node(rank())) > 1) {
      links.control = std::move(*control);
    }
  }
  links.connectNetwork = [&](size_t slotBytes, int slots) -> Result<std::unique_ptr<Endpoint>> {
    options.slotBytes = slotBytes;
    options.slots = slots;
    Result<std::unique_ptr<NetworkEndpoint>> network = connectNodes(exchange, secret_, grouping_, options);
    if (!network) {
      return network.error();
    }
    return std::unique_ptr<Endpoint>(std::move(*network));
  };
  Result<std::unique_ptr<DeviceExecutor>> made = makeDeviceExecutor(exchange, std::move(links),
                                                                    {.device = options_.device,
                                                                     .rank = rank(),
                                                                     .size = size(),
                                                                     .communicator = number_,
                                                                     .name = context_.name,
                                                                     .timeoutMs = options_.timeoutMs},
                                                                    deadline);
  if (!made) {
    return made.error();
  }
  device_ = std::move(*made);
  return {};
}

// A failed launch leaves the peers waiting for a kernel that will not come: they are told at once.
Result<void> Communicator::settleIssue(Result<void> issued) {
  if (issued || !isBreakage(issued.error().code)) {
    return issued;
  }
  return settle(Fault{issued.error(), rank()});
}

void Communicator::noticeDeviceFault() {
  if (device_ == nullptr || failed_.load(std::memory_order_acquire)) {
    return;
  }
  if (std::optional<Fault> fault = device_->fault()) {
    // The result is the fault just found.
    static_cast<void>(settle(std::move(fault)));
  }
}

Result<void> Communicator::issueOnDevice(const CollectiveCall& call, void* stream) {
  PEAL_TRY(usable());
  const void* deferred = nullptr;
  size_t elements = 0;
  Result<Collective> collective = resolve(call, deferred, elements);
  if (!collective) {
    return collective.error();
  }
  Result<Choice> choice = chosenOnDevice(
      questionForDevice(question(*collective, elements), configuration()->text(Knob::Protocol)));
  if (!choice) {
    return choice.error();
  }
  collective->choice = *choice;
  return settleIssue(device_->issue(*collective, deferred, stream));
}

Result<void> Communicator::issueOnDevice(const CollectiveCall& call, const pealAdamw_t& state, void* stream) {
  PEAL_TRY(usable());
  const void* deferred = nullptr;
  size_t elements = 0;
  Result<Collective> collective = resolve(call, deferred, elements);
  if (!collective) {
    return collective.error();
  }
  DeviceQuestion asked = questionForDevice(question(*collective, elements), "simple");
  // The all-reduce whose first half is the reduce-scatter that the tuner would choose: the sums' bits are
  // its. The protocol does not decide the algorithm of that: on one node only the direct one sums in the
  // order of ranks, and over nodes all is Simple.
  asked.call.kind = pealStatReduceScatter;
  Result<Choice> choice = chosenOnDevice(asked);
  if (!choice) {
    return choice.error();
  }
  if (choice->algorithm == Algorithm::OneShot) {
    choice->algorithm = Algorithm::TwoShot;
  }
  choice->ahead =
      choice->algorithm == Algorithm::Hierarchical ? stagesAhead(choice->algorithm, asked.call.slots) : 0;
  collective->choice = *choice;
  return settleIssue(device_->issue(*collective, state, stream));
}

Result<void> Communicator::issueOnDevice(std::vector<PointToPoint> calls, void* stream) {
  PEAL_TRY(usable());
  return settleIssue(device_->issue(calls, stream));
}

Result<void> Communicator::forkOnDevice(void* stream) {
  PEAL_TRY(usable());
  return settleIssue(device_->fork(stream));
}

Result<void> Communicator::joinOnDevice(void* stream) { return settleIssue(device_->join(stream)); }

Result<uint64_t> Communicator::registerBuffer(void* data, size_t bytes) {
  PEAL_TRY(usable());
  return device_->registerBuffer(data, bytes);
}

Result<void> Communicator::deregisterBuffer(uint64_t id) {
  // A captured operation may hold the address at which a peer reads the buffer.
  PEAL_TRY(checkNoGraphs("pealCommDeregister"));
  noticeDeviceFault();  // after a fault the peers' kernels are waited for
  return device_->deregisterBuffer(id, Deadline::afterMs(options_.timeoutMs));
}

Result<void> Communicator::checkNoGraphs(const char* what) {
  const auto live = [&] { return device_ != nullptr ? device_->liveGraphs() : 0; };
  int graphs = live();
  for (const Deadline patience = Deadline::afterMs(kGraphGoneMs); graphs > 0 && !patience.passed();) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    graphs = live();
  }
  if (graphs == 0) {
    return {};
  }
  return Error{
      pealInvalidUsage,
      fmt::format("{} on {}: {} CUDA graph{} still hold{} operations of this communicator. Destroy them "
                  "first (cudaGraphExecDestroy and cudaGraphDestroy, or let the capture end), or end the "
                  "communicator with pealCommAbort: launches of those graphs then do nothing.",
                  what, context_.name, graphs, graphs == 1 ? "" : "s", graphs == 1 ? "s" : "")};
}

}  // namespace peal
