#include "lib/executor/cuda/executor.h"

#include <fmt/format.h>

#include <algorithm>
#include <thread>

#include "lib/base/log.h"
#include "lib/executor/cuda/arguments.h"
#include "lib/executor/cuda/faults.h"
#include "lib/executor/cuda/kernels.h"
#include "lib/executor/cuda/launch.h"
#include "lib/executor/cuda/retired.h"
#include "lib/executor/cuda/window_notes.h"

namespace peal::cuda {
namespace {

// Between two looks at an event.
constexpr auto kLook = std::chrono::microseconds(100);
// How long kernels that were told to leave are waited for, at most the communicator's timeout, and how long
// the word that refuses later ones may take.
constexpr int64_t kLeaveMs = 10000;
constexpr int64_t kRefuseMs = 2000;
// How long a look into a peer's window may take.
constexpr int64_t kSeenMs = 500;

CommView viewOf(const DeviceOptions& options, const Resources& resources) {
  const WindowShape& window = resources.window;
  const auto inboxFrom = [&](int rank) { return window.inbox(resources.localOf[static_cast<size_t>(rank)]); };
  CommView view{};
  view.rank = options.rank;
  view.ranks = options.size;
  view.nodes = resources.nodes.nodes;
  view.nodeTable = reinterpret_cast<const int32_t*>(resources.nodeTable.data());
  view.shape = window.box;
  view.channels = reinterpret_cast<ChannelState*>(resources.channels.data());
  view.stopped = reinterpret_cast<uint64_t*>(resources.memory->window());
  view.board = reinterpret_cast<HostBoard*>(resources.board.deviceData());
  view.timeoutNs = static_cast<uint64_t>(options.timeoutMs) * 1'000'000;
  view.slotsApart = resources.proxy ? resources.proxy->slotsApart() : SlotsApart{};
  for (int peer = 0; peer < options.size; ++peer) {
    if (peer == options.rank) {
      continue;
    }
    if (std::byte* const theirs = resources.memory->peerWindow(peer); theirs != nullptr) {
      view.inbox[peer] = resources.memory->window() + inboxFrom(peer);
      view.outbox[peer] = theirs + inboxFrom(options.rank);
      view.peerStopped[peer] = reinterpret_cast<uint64_t*>(theirs);
    } else {
      view.inbox[peer] = resources.proxy->inbox(peer);
      view.outbox[peer] = resources.proxy->outbox(peer);
      view.peerStopped[peer] = resources.proxy->peerStopped(peer);
    }
  }
  return view;
}

}  // namespace

// ---- what kernels use ----

void Resources::raiseStop() const {
  // Pairs with the relaxed load in wait.cuh: nothing else is handed over with it.
  std::atomic_ref<uint64_t>(host().stop).store(1, std::memory_order_release);
}

void Resources::leaveNetwork() const {
  if (proxy) {
    proxy->end();
  }
}

// Both copy from or to a word of their own in the board's last line. Not on the side stream: a capture that
// has not ended yet may hold it.
Result<void> Resources::refuseLaunches(int culpritRank, cudaStream_t stream, Deadline deadline) const {
  // The word that kernels read when they start; peers write the same.
  auto* const word = reinterpret_cast<uint64_t*>(board.data() + sizeof(HostBoard));
  *word = static_cast<uint64_t>(culpritRank) + 1;
  PEAL_TRY(cudaResult(cudaMemcpyAsync(memory->window(), word, sizeof *word, cudaMemcpyDefault, stream),
                      "stopping the communicator's kernels"));
  return awaitStream(stream, deadline, "stopping the communicator's kernels");
}

Result<uint64_t> Resources::readingBlocks(cudaStream_t stream, Deadline deadline) const {
  auto* const word = reinterpret_cast<uint64_t*>(board.data() + sizeof(HostBoard)) + 1;
  const auto* const states = reinterpret_cast<const ChannelState*>(channels.data());
  PEAL_TRY(cudaResult(cudaMemcpyAsync(word, &states->reading, sizeof *word, cudaMemcpyDefault, stream),
                      "looking for running kernels"));
  PEAL_TRY(awaitStream(stream, deadline, "looking for running kernels"));
  return *word;
}

// A call that fails says nothing of the kernels, and may not fail again.
Result<void> Resources::endKernels(int culpritRank, Deadline deadline) {
  raiseStop();
  const std::lock_guard lock(endMutex_);
  Result<void> ended;
  for (int attempt = 0; !ended_ && attempt < 2; ++attempt) {
    ended = tryToEndKernels(culpritRank, deadline);
    if (!ended && ended.error().code == pealTimeout) {
      break;
    }
  }
  return ended;
}

Result<void> Resources::tryToEndKernels(int culpritRank, Deadline deadline) {
  const RelaxedCapture relaxed;
  const CurrentDevice current(device);
  PEAL_TRY(current.status());
  Result<StreamHolder> stream = StreamHolder::make(device);
  if (!stream) {
    return stream.error();
  }
  PEAL_TRY(refuseLaunches(culpritRank, stream->get(), deadline));
  for (;;) {  // pairs with beginReading and endReading in wait.cuh
    Result<uint64_t> blocks = readingBlocks(stream->get(), deadline);
    if (!blocks) {
      return blocks.error();
    }
    ended_ = *blocks == 0;
    if (ended_) {
      return {};
    }
    if (deadline.passed()) {
      return Error{pealTimeout, fmt::format("{} blocks of kernels on device {} had not left by the deadline",
                                            *blocks, device)};
    }
    std::this_thread::sleep_for(kLook);
  }
}

Resources::~Resources() {
  if (memory) {
    memory->onLoss(nullptr);
    memory->onWithdrawal(nullptr);
  }
}

// A sentence gets better by it: what fails is left out. Nothing is allocated, since freeing would wait for
// the device's kernels.
std::optional<DigestWords> Resources::seen(const FaultRecord& record) const {
  const auto peer = static_cast<int>(record.peerRank);
  std::byte* const theirs = memory->peerWindow(peer);
  const RelaxedCapture relaxed;
  const CurrentDevice current(device);
  if (theirs == nullptr || theirs == memory->window() || !current.status()) {
    return std::nullopt;
  }
  Result<StreamHolder> stream = StreamHolder::make(device);
  if (!stream) {
    return std::nullopt;
  }
  std::byte* const page = board.data() + sizeof(HostBoard) + kLineBytes;
  const auto copy = [&](std::byte* to, const void* from, size_t bytes) {
    return static_cast<bool>(cudaResult(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream->get()),
                                        "looking into a window"));
  };
  const bool read = copy(page, theirs, kWindowNotesBytes) &&
                    copy(page + kOwnSequenceAt, channels.data(), sizeof(uint64_t)) &&
                    awaitStream(stream->get(), Deadline::afterMs(kSeenMs), "looking into a window");
  return read ? seenIn(page, record) : std::nullopt;
}

// ---- life ----

CudaExecutor::CudaExecutor(const DeviceOptions& options, const Agreement& agreement,
                           std::unique_ptr<Resources> resources)
    : options_(options),
      threads_(agreement.threads),
      resources_(std::move(resources)),
      view_(viewOf(options_, *resources_)),
      facts_{.channels = agreement.shape.channels,
             .slotBytes = agreement.shape.payloadBytes(Protocol::Simple),
             .llBytes = agreement.shape.payloadBytes(Protocol::LL),
             .ll128Bytes = agreement.shape.payloadBytes(Protocol::LL128),
             .path = resources_->memory->path(),
             .simpleOnly = resources_->proxy != nullptr} {
  // Kernels that wait for a lost peer are told by the thread that noticed, whatever this one does.
  resources_->memory->onLoss([resources = resources_.get()] { resources->raiseStop(); });
  resources_->memory->onWithdrawal([resources = resources_.get()](int culpritRank, Deadline deadline) {
    return resources->endKernels(culpritRank, deadline);
  });
}

CudaExecutor::~CudaExecutor() {
  const RelaxedCapture relaxed;
  Resources& resources = *resources_;
  resources.memory->onLoss(nullptr);
  if (!stopped_.load(std::memory_order_acquire)) {
    if (const std::optional<Fault> unnoticed = fault()) {
      stop(unnoticed->culpritRank >= 0 ? unnoticed->culpritRank : options_.rank, unnoticed->error.message);
    } else {
      resources.memory->farewell(-1, "");
    }
  }
  const Deadline deadline = Deadline::afterMs(std::min(kLeaveMs, options_.timeoutMs));
  bool areLate = unmarked_;
  if (const Result<void> left = awaitKernels(deadline); !left) {
    leaveInNeed(left.error());
    areLate = areLate || left.error().code == pealTimeout;
  } else if (const Result<void> flushed = flushProxy(deadline); !flushed) {
    leaveInNeed(flushed.error());
  }
  resources.leaveNetwork();
  if (areLate || resources.order->liveGraphs() > 0) {
    endGraphs(areLate ? Deadline::afterMs(kRefuseMs) : deadline);
    retire(std::move(resources_));
  }
  freeRetired();
}

// Graphs that hold operations may be launched for a long time yet. Their kernels leave, and this rank's
// buffers are its caller's again.
void CudaExecutor::endGraphs(Deadline deadline) {
  if (const Result<void> ended = resources_->endKernels(options_.rank, deadline); !ended) {
    log(LogLevel::Warn, fmt::format("{}: {}", options_.name, ended.error().message));
  }
  if (const Result<void> left = resources_->memory->deregisterAll(deadline); !left) {
    log(LogLevel::Warn, left.error().message);
  }
}

// ---- issuing ----

// One that no other capture holds: a capture that goes on takes the streams that joined it along. There are
// as many as captures at the same time, and one.
Result<cudaStream_t> CudaExecutor::sideFor(const StreamState& user) {
  for (const StreamHolder& side : resources_->sides) {
    const Result<StreamState> state = stateOf(options_.name, options_.device, side.get());
    if (!state && state.error().code != pealInvalidUsage) {  // that: its capture is broken
      return state.error();
    }
    if (state && (state->capture == 0 || state->capture == user.capture)) {
      return side.get();
    }
  }
  Result<StreamHolder> made = StreamHolder::make(options_.device);
  if (!made) {
    return made.error();
  }
  return resources_->sides.emplace_back(std::move(*made)).get();
}

Result<void> CudaExecutor::fork(void* stream) {
  const CurrentDevice current(options_.device);
  PEAL_TRY(current.status());
  auto* const user = static_cast<cudaStream_t>(stream);
  Result<StreamState> state = stateOf(options_.name, options_.device, user);
  if (!state) {
    return state.error();
  }
  Result<cudaStream_t> side = sideFor(*state);
  if (!side) {
    return side.error();
  }
  PEAL_TRY(cudaResult(cudaEventRecord(resources_->forked.get(), user), "{}: cudaEventRecord", options_.name));
  PEAL_TRY(cudaResult(cudaStreamWaitEvent(*side, resources_->forked.get(), 0), "{}: cudaStreamWaitEvent",
                      options_.name));
  forked_.push_back({stream, *side});
  return {};
}

Result<void> CudaExecutor::join(void* stream) {
  const auto forked = std::find_if(forked_.begin(), forked_.end(),
                                   [stream](const Forked& one) { return one.stream == stream; });
  if (forked == forked_.end()) {
    return Error{pealInternalError, fmt::format("{}: a stream joins that was not forked", options_.name)};
  }
  cudaStream_t const side = forked->side;
  forked_.erase(forked);
  const CurrentDevice current(options_.device);
  PEAL_TRY(current.status());
  PEAL_TRY(cudaResult(cudaEventRecord(resources_->joined.get(), side), "{}: cudaEventRecord", options_.name));
  return cudaResult(cudaStreamWaitEvent(static_cast<cudaStream_t>(stream), resources_->joined.get(), 0),
                    "{}: cudaStreamWaitEvent", options_.name);
}

Result<StreamState> CudaExecutor::streamFor(void* stream) const {
  const auto forked = std::find_if(forked_.begin(), forked_.end(),
                                   [stream](const Forked& one) { return one.stream == stream; });
  return stateOf(options_.name, options_.device,
                 forked != forked_.end() ? forked->side : static_cast<cudaStream_t>(stream));
}

Result<void> CudaExecutor::check(const Collective& call, const void* deferredScalar) const {
  const Extents extents = extentsOf(call, options_.rank, options_.size);
  const std::string where = fmt::format("{} on {}", collectiveName(call.kind), options_.name);
  PEAL_TRY(checkBuffer(where, options_.device, "sendbuff", call.send, extents.send));
  if (call.recv != call.send || extents.recv > extents.send) {
    PEAL_TRY(checkBuffer(where, options_.device, "recvbuff", call.recv, extents.recv));
  }
  return deferredScalar == nullptr
             ? Result<void>()
             : checkScalar(where, options_.device, deferredScalar, elementBytes(call.type));
}

Result<void> CudaExecutor::check(const std::vector<PointToPoint>& calls) const {
  if (calls.size() > kMostTransfers) {
    return Error{
        pealInvalidUsage,
        fmt::format("{}: the group has {} sends and receives on one stream; at most {} fit one launch. "
                    "Make several groups.",
                    options_.name, calls.size(), kMostTransfers)};
  }
  for (const PointToPoint& call : calls) {
    const std::string where = fmt::format("{} {} rank {} on {}", call.isSend ? "send" : "recv",
                                          call.isSend ? "to" : "from", call.peer, options_.name);
    const void* data = call.isSend ? static_cast<const void*>(call.send) : call.recv;
    PEAL_TRY(checkBuffer(where, options_.device, call.isSend ? "sendbuff" : "recvbuff", data,
                         call.count * elementBytes(call.type)));
  }
  return {};
}

template <class Kernel, class Args>
Result<void> CudaExecutor::launch(const StreamState& state, Kernel kernel, int channels, int threads,
                                  Args& args) {
  PEAL_TRY(resources_->order->before(state));
  void* pointers[] = {&args};
  PEAL_TRY(cudaResult(cudaLaunchKernel(kernel, dim3(static_cast<unsigned>(channels)),
                                       dim3(static_cast<unsigned>(threads)), pointers, 0, state.stream),
                      "{}: launching {} blocks of {} threads", options_.name, channels, threads));
  Result<void> marked = resources_->order->after(state);
  unmarked_ = unmarked_ || !marked;
  return marked;
}

Result<void> CudaExecutor::issue(const Collective& call, const void* deferredScalar, void* stream) {
  const CurrentDevice current(options_.device);
  PEAL_TRY(current.status());
  Result<StreamState> state = streamFor(stream);
  if (!state) {
    return state.error();
  }
  PEAL_TRY(check(call, deferredScalar));
  CollectiveArgs args = argumentsOf(view_, call, deferredScalar, *resources_->memory);
  const Algorithm algorithm = call.choice.algorithm;
  if (algorithm == Algorithm::Hierarchical || algorithm == Algorithm::Tree) {
    PEAL_TRY(
        launch(*state, levelsKernel(), call.choice.channels, std::min(threads_, kMostLevelsThreads), args));
  } else {
    PEAL_TRY(launch(*state, collectiveKernelFor(call.kind, call.choice.protocol), call.choice.channels,
                    threads_, args));
  }
  if (state->capture == 0) {
    const std::lock_guard lock(statsMutex_);
    count(stats_, view_, resources_->nodes, call);
  }
  return {};
}

Result<void> CudaExecutor::issue(const std::vector<PointToPoint>& calls, void* stream) {
  const CurrentDevice current(options_.device);
  PEAL_TRY(current.status());
  Result<StreamState> state = streamFor(stream);
  if (!state) {
    return state.error();
  }
  PEAL_TRY(check(calls));
  PointToPointArgs args = argumentsOf(view_, calls, *resources_->memory);
  PEAL_TRY(launch(*state, pointToPointKernel(), facts_.channels, threads_, args));
  if (state->capture == 0) {
    const std::lock_guard lock(statsMutex_);
    for (const PointToPoint& call : calls) {
      count(stats_, view_, call);
    }
  }
  return {};
}

Result<void> CudaExecutor::issue(const Collective& call, const pealAdamw_t& state, void* stream) {
  const CurrentDevice current(options_.device);
  PEAL_TRY(current.status());
  Result<StreamState> target = streamFor(stream);
  if (!target) {
    return target.error();
  }
  PEAL_TRY(check(call, nullptr));
  PEAL_TRY(checkAdamw(fmt::format("pealReduceAdamwGather on {}", options_.name), options_.device, state));
  ReduceAdamwGatherArgs args{argumentsOf(view_, call, nullptr, *resources_->memory), state};
  args.collective.digest.op = Digest::kAdamw;
  PEAL_TRY(launch(*target, reduceAdamwGatherKernel(), call.choice.channels,
                  std::min(threads_, kMostFusedThreads), args));
  if (target->capture == 0) {
    const std::lock_guard lock(statsMutex_);
    count(stats_, view_, resources_->nodes, call);
  }
  return {};
}

// ---- faults and the end ----

std::optional<Fault> CudaExecutor::fault() {
  const std::optional<FaultRecord> record = readFault(resources_->host().fault);
  const bool stoppedByPeer = record && record->kind == static_cast<uint64_t>(FaultKind::Stopped);
  if (!record || stoppedByPeer) {
    // The transport knows more than the word that stopped the kernels.
    if (std::optional<DeviceMemory::Loss> loss = resources_->memory->loss()) {
      return Fault{{loss->error.code, fmt::format("{}: {}", options_.name, loss->error.message)},
                   loss->culpritRank};
    }
  }
  if (resources_->proxy && (!record || stoppedByPeer)) {
    if (std::optional<Fault> fault = resources_->proxy->fault()) {
      return fault;
    }
  }
  if (!record) {
    return std::nullopt;
  }
  FaultReader reader{.name = options_.name,
                     .rank = options_.rank,
                     .device = options_.device,
                     .timeoutMs = options_.timeoutMs};
  if (record->kind == static_cast<uint64_t>(FaultKind::Deadline)) {
    const std::lock_guard lock(seenMutex_);
    reader.seen = resources_->seen(*record);
  }
  return faultOf(*record, reader);
}

void CudaExecutor::stop(int culpritRank, const std::string& reason) {
  resources_->raiseStop();
  if (!stopped_.exchange(true, std::memory_order_acq_rel)) {
    resources_->memory->farewell(culpritRank, reason);
    if (resources_->proxy) {
      resources_->proxy->stop(culpritRank, reason);
    }
  }
}

Result<void> CudaExecutor::drain(Deadline deadline) {
  PEAL_TRY(awaitKernels(deadline));
  return flushProxy(deadline);
}

// After a fault nothing is waited for; fault() tells of it.
Result<void> CudaExecutor::flushProxy(Deadline deadline) {
  Proxy* const proxy = resources_->proxy.get();
  if (proxy == nullptr || stopped_.load(std::memory_order_acquire) || proxy->fault()) {
    return {};
  }
  const Result<void> closed = proxy->close(deadline);
  return closed || proxy->fault() ? Result<void>() : closed;
}

// At the end, when something went wrong that nobody was told of.
void CudaExecutor::leaveInNeed(const Error& error) {
  log(LogLevel::Warn, error.message);
  stop(options_.rank, error.message);
}

Result<void> CudaExecutor::awaitKernels(Deadline deadline) {
  const RelaxedCapture relaxed;
  for (;;) {
    Result<bool> idle = resources_->order->idle();
    if (!idle) {
      return idle.error();
    }
    if (*idle) {
      return {};
    }
    if (deadline.passed()) {
      return Error{
          pealTimeout,
          fmt::format("{}: operations on device {} had not ended by the deadline. Does their stream wait "
                      "for something that comes later?",
                      options_.name, options_.device)};
    }
    std::this_thread::sleep_for(kLook);
  }
}

Result<uint64_t> CudaExecutor::registerBuffer(const void* data, size_t bytes) {
  return resources_->memory->registerBuffer(data, bytes);
}

Result<void> CudaExecutor::deregisterBuffer(uint64_t id, Deadline deadline) {
  return resources_->memory->deregisterBuffer(id, deadline);
}

pealCommStats_t CudaExecutor::stats() {
  const std::lock_guard lock(statsMutex_);
  return stats_;
}

}  // namespace peal::cuda
