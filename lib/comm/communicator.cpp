#include "lib/comm/communicator.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "lib/base/config.h"
#include "lib/base/log.h"
#include "lib/tuner/tuner.h"

namespace peal {
namespace {

constexpr size_t kMostChoicesKept = 1024;

}  // namespace

Communicator::~Communicator() {
  if (endpoint_ == nullptr || failed_.load(std::memory_order_acquire)) {
    return;
  }
  // abort() left it to an operation to tell the others, and that one ended well all the same.
  if (abortAsked_.load(std::memory_order_acquire)) {
    static_cast<void>(settle(abortedHere()));
  } else {
    endpoint_->farewell(-1, "");
  }
}

// ---- issuing ------------------------------------------------------------------------------------------

Result<void> Communicator::usable() {
  noticeDeviceFault();
  if (failed_.load(std::memory_order_acquire)) {  // pairs with the store in settle
    const std::lock_guard lock(errorMutex_);
    return *error_;
  }
  if (finalized_.load(std::memory_order_acquire)) {
    return Error{
        pealInvalidUsage,
        fmt::format("{}: finalized; only pealCommDestroy and pealCommAbort may follow.", context_.name)};
  }
  return {};
}

Result<void> Communicator::resolveOp(const CollectiveCall& call, Collective& collective,
                                     const void*& deferred) {
  collective.hasOp = call.hasOp;
  collective.op.ranks = size();
  if (!call.hasOp) {
    return {};
  }
  if (call.op < pealNumOps) {
    collective.op.kind = call.op;
    return {};
  }
  PEAL_TRY(checkOp(call.op, call.type));
  const std::lock_guard lock(opsMutex_);
  const UserOp& op = *ops_[static_cast<size_t>(call.op) - pealNumOps];
  collective.op.kind = pealSum;
  collective.op.preMultiply = true;
  collective.op.scalar = op.scalar;
  deferred = op.deferred;
  return {};
}

Result<Collective> Communicator::resolve(const CollectiveCall& call, const void*& deferred,
                                         size_t& elements) {
  Collective collective;
  collective.kind = call.kind;
  collective.send = call.send;
  collective.recv = call.recv;
  collective.count = call.count;
  collective.type = call.type;
  collective.root = call.root;
  elements = call.count;
  if (!call.counts.empty()) {
    collective.starts.reserve(call.counts.size() + 1);
    collective.starts.push_back(0);
    for (const size_t count : call.counts) {
      collective.starts.push_back(collective.starts.back() + count);
    }
    elements = collective.starts.back();
    collective.count = elements;  // what the digest compares
  } else if (call.kind == pealStatReduceScatter || call.kind == pealStatAllGather) {
    elements *= static_cast<size_t>(size());
  }
  PEAL_TRY(resolveOp(call, collective, deferred));
  return collective;
}

TunerQuestion Communicator::question(const Collective& collective, size_t elements) const {
  return {.kind = collective.kind,
          .bytes = elements * elementBytes(collective.type),
          .size = size(),
          .deterministic = options_.deterministic,
          .slotBytes = endpoint_ != nullptr ? endpoint_->slotBytes() : size_t{1} << 30,
          .reachesAll = context_.reachesAll && !collective.op.preMultiply && collective.epilogue == nullptr &&
                        !(context_.crowded && collective.kind == pealStatAllReduce),
          .forced = forced_.empty() ? configuration()->text(Knob::Algorithm) : forced_,
          .crowded = context_.crowded,
          .nodes = context_.grouping,
          .slots = static_cast<int>(configuration()->integer(Knob::Slots)),
          .burst = endpoint_ != nullptr ? endpoint_->burst() : 1,
          .links = links_ ? &*links_ : nullptr};
}

Result<void> Communicator::forceAlgorithm(const char* algorithm) {
  if (algorithm != nullptr && !isAlgorithmName(algorithm)) {
    return Error{pealInvalidArgument,
                 fmt::format("pealCommForceAlgorithm: \"{}\" is no algorithm; there are: {}.", algorithm,
                             algorithmNames())};
  }
  forced_ = algorithm != nullptr ? algorithm : "";
  for (Known& known : known_) {  // of what was asked for before
    known.collective.reset();
  }
  return {};
}

// On several nodes and on GPUs predictions are asked once for each size.
template <class Ask>
Result<Choice> Communicator::remembered(const TunerQuestion& question, std::string_view protocol, Ask&& ask) {
  const std::tuple key(question.kind, question.bytes, std::string(question.forced), std::string(protocol));
  if (const auto known = choices_.find(key); known != choices_.end()) {
    return known->second;
  }
  Result<Choice> choice = std::forward<Ask>(ask)();
  if (choice) {
    if (choices_.size() >= kMostChoicesKept) {
      choices_.clear();
    }
    choices_.emplace(key, *choice);
  }
  return choice;
}

Result<Choice> Communicator::chosen(const TunerQuestion& question) {
  return links_ ? remembered(question, "", [&] { return choose(question); }) : choose(question);
}

Result<Choice> Communicator::chosenOnDevice(const DeviceQuestion& question) {
  return remembered(question.call, question.forced, [&] { return chooseOnDevice(question); });
}

Communicator::Known& Communicator::knownFor(const CollectiveCall& call) {
  return known_[(call.count + static_cast<size_t>(call.kind)) % known_.size()];
}

Result<Communicator::Prepared> Communicator::prepare(const CollectiveCall& call) {
  PEAL_TRY(usable());
  Prepared prepared;
  size_t elements = 0;
  Result<Collective> resolved = resolve(call, prepared.deferredScalar, elements);
  if (!resolved) {
    return resolved.error();
  }
  Collective& collective = prepared.collective.emplace(std::move(*resolved));
  Result<Choice> choice = chosen(question(collective, elements));
  if (!choice) {
    return choice.error();
  }
  collective.choice = *choice;
  if (call.counts.empty() && call.op < pealNumOps) {
    knownFor(call) = {call, collective};
  }
  return issue(std::move(prepared), *choice);
}

Result<Communicator::Prepared> Communicator::issue(Prepared prepared, const Choice& choice) {
  prepared.collective->choice = choice;
  prepared.collective->sequence = ++sequence_;
  prepared.ticket = issued_++;
  return prepared;
}

// The all-reduce whose first half is the reduce-scatter that the tuner would choose: the sums' bits are its.
Result<Choice> Communicator::chosenWithEpilogue(TunerQuestion question) {
  question.kind = pealStatReduceScatter;
  Result<Choice> choice = chosen(question);
  if (!choice) {
    return choice;
  }
  if (choice->algorithm == Algorithm::OneShot) {
    choice->algorithm = Algorithm::TwoShot;
  }
  choice->ahead = stagesAhead(choice->algorithm, question.slots);
  // Stages that run ahead of each other have slots for a message each, not for a burst.
  choice->chunkBytes = std::min(choice->chunkBytes, question.slotBytes);
  return choice;
}

Result<Communicator::Prepared> Communicator::prepare(const CollectiveCall& call, HostEpilogue& epilogue) {
  PEAL_TRY(usable());
  Prepared prepared;
  size_t elements = 0;
  Result<Collective> resolved = resolve(call, prepared.deferredScalar, elements);
  if (!resolved) {
    return resolved.error();
  }
  Collective& collective = prepared.collective.emplace(std::move(*resolved));
  collective.epilogue = &epilogue;
  Result<Choice> choice = chosenWithEpilogue(question(collective, elements));
  if (!choice) {
    return choice.error();
  }
  return issue(std::move(prepared), *choice);
}

void Communicator::number(std::vector<PointToPoint>& calls) {
  for (PointToPoint& call : calls) {
    std::vector<uint32_t>& sequences = call.isSend ? sendSequence_ : recvSequence_;
    call.sequence = ++sequences[static_cast<size_t>(call.peer)];
  }
}

Result<Communicator::Prepared> Communicator::prepare(std::vector<PointToPoint> calls) {
  PEAL_TRY(usable());
  Prepared prepared;
  number(calls);
  prepared.pointToPoint = std::move(calls);
  prepared.ticket = issued_++;
  return prepared;
}

// ---- running ------------------------------------------------------------------------------------------

Result<void> Communicator::awaitTurn(Ticket ticket) {
  // Earlier operations have deadlines of their own, but a stream in front of one may wait for this caller.
  const auto deadline = Clock::now() + std::chrono::milliseconds(options_.timeoutMs);
  std::unique_lock lock(turnMutex_);
  noteWaiter();
  const bool came = turnChanged_.wait_until(lock, deadline, [&] { return done_.load() == ticket; });
  turnWaiters_.fetch_sub(1);
  if (!came) {
    return Error{
        pealTimeout,
        fmt::format("{}: operation {} of this rank could not start within {} ms, since operation {} that was "
                    "issued before it has not run. Does its stream wait for something that comes later?",
                    context_.name, ticket, options_.timeoutMs, done_.load())};
  }
  return {};
}

// Before the look at done_: either that sees endTurn's store, or endTurn sees this.
void Communicator::noteWaiter() {
  turnWaiters_.fetch_add(1);
  fenceAll();
}

void Communicator::endTurn(Ticket ticket) {
  done_.store(ticket + 1, std::memory_order_release);
  fenceForSlowSide(everybodyFences_);  // pairs with the fence in noteWaiter()
  if (turnWaiters_.load(std::memory_order_relaxed) > 0) [[unlikely]] {
    const std::lock_guard lock(turnMutex_);
    turnChanged_.notify_all();
  }
}

// Remembers the first fault and tells the peers, so that they need not find out by their deadline.
Result<void> Communicator::settle(std::optional<Fault> fault) {
  if (!fault) {
    return {};
  }
  {
    const std::lock_guard lock(errorMutex_);
    if (error_) {
      return fault->error;  // the peers were told of the first
    }
    error_ = fault->error;
    // Who asked for it need not be told on the error output as of a fault.
    log(abortAsked_.load(std::memory_order_relaxed) ? LogLevel::Info : LogLevel::Error, fault->error.message);
  }
  failed_.store(true, std::memory_order_release);  // pairs with usable's load
  const int culpritRank = fault->culpritRank >= 0 ? fault->culpritRank : rank();
  if (device_ != nullptr) {
    device_->stop(culpritRank, fault->error.message);
  }
  if (endpoint_ != nullptr) {
    endpoint_->farewell(culpritRank, fault->error.message);
  }
  return fault->error;
}

// After a failed operation, whose messages peers may not have seen yet: until this returns, ranks of this
// process may be reading the caller's buffers.
void Communicator::takeBuffersBack() {
  if (endpoint_ == nullptr) {
    return;
  }
  if (const int late = endpoint_->withdraw(options_.timeoutMs); late >= 0) {
    log(LogLevel::Error,
        fmt::format(
            "{}: rank {} of this process still uses buffers of rank {}, whose operation failed {} ms ago. "
            "Do not free them before rank {} has ended its call.",
            context_.name, late, rank(), options_.timeoutMs, late));
  }
}

// Runs an operation, a callable that gives its fault, when those issued before it have run.
template <class Operation>
Result<void> Communicator::runInTurn(Ticket ticket, Operation&& operation) {
  if (done_.load(std::memory_order_acquire) != ticket) [[unlikely]] {  // pairs with the store in endTurn
    if (Result<void> turn = awaitTurn(ticket); !turn) {
      // The order is lost: nothing of this communicator can run any more.
      abort_.store(true, std::memory_order_release);
      return settle(Fault{turn.error(), rank()});
    }
  }
  claim_.beginOperation();
  std::optional<Fault> fault;
  if (failed_.load(std::memory_order_acquire)) [[unlikely]] {
    fault = Fault{usable().error(), -1};
  } else if (abort_.load(std::memory_order_acquire)) [[unlikely]] {
    fault = Fault{{pealRemoteError, fmt::format("{}: aborted by pealCommAbort on this rank.", context_.name)},
                  rank()};
  } else {
    fault = operation();
  }
  const bool known = failed_.load(std::memory_order_relaxed);
  Result<void> result = !fault  ? Result<void>()
                        : known ? Result<void>(fault->error)
                                : settle(std::move(fault));
  if (!result) [[unlikely]] {
    takeBuffersBack();
  }
  claim_.endOperation();
  endTurn(ticket);
  return result;
}

std::optional<Fault> Communicator::runTransfers(std::vector<PointToPoint>& calls) {
  std::optional<Fault> fault = runPointToPoint(context_, calls);
  for (const PointToPoint& call : calls) {
    ++context_.stats.calls[call.isSend ? pealStatSend : pealStatRecv];
  }
  return fault;
}

Result<void> Communicator::run(Prepared& prepared) {
  return runInTurn(prepared.ticket, [&] {
    const int64_t usualTimeoutMs = context_.timeoutMs;
    context_.timeoutMs = std::max(usualTimeoutMs, prepared.leastTimeoutMs);
    std::optional<Fault> fault;
    if (prepared.collective) {
      if (prepared.deferredScalar != nullptr) {
        std::memcpy(prepared.collective->op.scalar.data(), prepared.deferredScalar,
                    elementBytes(prepared.collective->type));
      }
      fault = runCollective(context_, *prepared.collective);
      ++context_.stats.calls[prepared.collective->kind];
    } else {
      fault = runTransfers(prepared.pointToPoint);
    }
    context_.timeoutMs = usualTimeoutMs;
    return fault;
  });
}

Result<void> Communicator::runNow(const CollectiveCall& call, int64_t leastTimeoutMs) {
  if (Known& known = knownFor(call); known.collective && known.call.repeatedBy(call) && leastTimeoutMs == 0) {
    PEAL_TRY(usable());
    // In place: nobody else looks at it before the next call is issued.
    Collective& collective = *known.collective;
    collective.send = call.send;
    collective.recv = call.recv;
    collective.sequence = ++sequence_;
    return runInTurn(issued_++, [&] {
      std::optional<Fault> fault = runCollective(context_, collective);
      ++context_.stats.calls[collective.kind];
      return fault;
    });
  }
  Result<Prepared> prepared = prepare(call);
  if (!prepared) {
    return prepared.error();
  }
  prepared->leastTimeoutMs = leastTimeoutMs;
  return run(*prepared);
}

Result<void> Communicator::runNow(std::vector<PointToPoint>& calls, int64_t leastTimeoutMs) {
  PEAL_TRY(usable());
  number(calls);
  return runInTurn(issued_++, [&] {
    const int64_t usualTimeoutMs = context_.timeoutMs;
    context_.timeoutMs = std::max(usualTimeoutMs, leastTimeoutMs);
    std::optional<Fault> fault = runTransfers(calls);
    context_.timeoutMs = usualTimeoutMs;
    return fault;
  });
}

// ---- life cycle -----------------------------------------------------------------------------------------

Result<void> Communicator::finalize() {
  const Ticket last = issued_;
  if (done_.load(std::memory_order_acquire) != last) {
    const auto deadline = Clock::now() + std::chrono::milliseconds(options_.timeoutMs);
    std::unique_lock lock(turnMutex_);
    noteWaiter();
    const bool came = turnChanged_.wait_until(lock, deadline, [&] { return done_.load() >= last; });
    turnWaiters_.fetch_sub(1);
    if (!came) {
      return Error{pealTimeout, fmt::format("{}: {} of {} operations had run after {} ms of finalizing.",
                                            context_.name, done_.load(), last, options_.timeoutMs)};
    }
  }
  if (device_ != nullptr) {
    PEAL_TRY(checkNoGraphs("pealCommFinalize"));
    const bool known = failed_.load(std::memory_order_acquire);
    PEAL_TRY(settleIssue(device_->drain(Deadline::afterMs(options_.timeoutMs))));
    noticeDeviceFault();
    if (!known && failed_.load(std::memory_order_acquire)) {
      finalized_.store(true, std::memory_order_release);
      const std::lock_guard lock(errorMutex_);
      return *error_;
    }
  }
  finalized_.store(true, std::memory_order_release);
  return {};
}

Fault Communicator::abortedHere() const {
  return {{pealRemoteError, fmt::format("{}: aborted by pealCommAbort on rank {}.", context_.name, rank())},
          rank()};
}

void Communicator::abort() {
  abortAsked_.store(true, std::memory_order_relaxed);  // published by the store below
  abort_.store(true, std::memory_order_release);       // pairs with the loads in Waiter and run
  if (endpoint_ != nullptr) {
    endpoint_->wake();
  }
  if (device_ != nullptr && !failed_.load(std::memory_order_acquire)) {
    // Kernels run by themselves: tell them now. The result is the fault just made.
    static_cast<void>(settle(abortedHere()));
  }
  // Claims nothing: the running operation sees the flag, fails, and its settle says farewell (or the
  // destructor, if it waits for nothing any more). If none runs, say it here, so that the others notice at
  // once.
  if (claim_.tryInspect()) {
    if (!failed_.load(std::memory_order_acquire)) {
      // The result is the fault just made.
      static_cast<void>(settle(abortedHere()));
    }
    claim_.endInspection();
  }
}

pealResult_t Communicator::asyncError() {
  noticeDeviceFault();
  if (!failed_.load(std::memory_order_acquire) && endpoint_ != nullptr && !finalized_.load() &&
      claim_.tryInspect()) {
    if (Result<void> health = endpoint_->progress(Endpoint::kAnybody); !health) {
      static_cast<void>(
          settle(Fault{{health.error().code, fmt::format("{}: {}", context_.name, health.error().message)},
                       endpoint_->culpritRank()}));
    }
    claim_.endInspection();
  }
  const std::lock_guard lock(errorMutex_);
  return error_ ? error_->code : pealSuccess;
}

std::string Communicator::lastMessage() {
  const std::lock_guard lock(errorMutex_);
  return error_ ? error_->message : std::string();
}

Result<pealCommStats_t> Communicator::stats() {
  if (device_ != nullptr) {
    return device_->stats();
  }
  if (!claim_.inspect(Deadline::afterMs(options_.timeoutMs))) {
    return Error{pealTimeout, fmt::format("{}: an operation has been running for {} ms, and its counters are "
                                          "read when it has ended. Is it the caller's own?",
                                          context_.name, options_.timeoutMs)};
  }
  const pealCommStats_t stats = context_.stats;
  claim_.endInspection();
  return stats;
}

// ---- user operations ------------------------------------------------------------------------------------

Result<pealRedOp_t> Communicator::addOp(const UserOp& op) {
  const std::lock_guard lock(opsMutex_);
  auto slot = std::find(ops_.begin(), ops_.end(), std::nullopt);
  if (slot == ops_.end()) {
    slot = ops_.insert(ops_.end(), std::nullopt);
  }
  *slot = op;
  return static_cast<pealRedOp_t>(pealNumOps + (slot - ops_.begin()));
}

Result<void> Communicator::removeOp(pealRedOp_t op) {
  const std::lock_guard lock(opsMutex_);
  const size_t index = static_cast<size_t>(op) - pealNumOps;
  if (op < pealNumOps || index >= ops_.size() || !ops_[index]) {
    return Error{
        pealInvalidArgument,
        fmt::format("{}: operation {} was not made by pealRedOpCreatePreMulSum on this communicator, or "
                    "was destroyed already.",
                    context_.name, static_cast<int>(op))};
  }
  ops_[index].reset();
  return {};
}

Result<void> Communicator::checkOp(pealRedOp_t op, pealDataType_t type) {
  const std::lock_guard lock(opsMutex_);
  const size_t index = static_cast<size_t>(op) - pealNumOps;
  if (op < pealNumOps || index >= ops_.size() || !ops_[index]) {
    return Error{pealInvalidArgument,
                 fmt::format("{}: reduction {} is neither a built-in one (0 to {}) nor one made by "
                             "pealRedOpCreatePreMulSum on this communicator.",
                             context_.name, static_cast<int>(op), pealNumOps - 1)};
  }
  if (ops_[index]->type != type) {
    return Error{pealInvalidArgument,
                 fmt::format("{}: reduction {} was made for {}, the call has {}.", context_.name,
                             static_cast<int>(op), typeName(ops_[index]->type), typeName(type))};
  }
  return {};
}

}  // namespace peal
