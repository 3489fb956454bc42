// A communicator: N ranks, their links, a deadline, an abort flag. Orders the operations of its rank,
// resolves and runs them, and remembers its first error.
//
// On host memory operations run here, in the order of their tickets. On a GPU they go to the device executor,
// which orders them by streams; the host links then serve making, splitting and noticing that a peer is gone.
//
// Made by lib/comm/create.cpp; owned by the C API's handles and by queued operations (shared_ptr), so that an
// aborted communicator lives until the last of them has left.
#pragma once
#include <array>
#include <atomic>
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "lib/base/fences.h"
#include "lib/bootstrap/bootstrap.h"
#include "lib/comm/claim.h"
#include "lib/executor/device_executor.h"
#include "lib/executor/host/operation.h"
#include "lib/tuner/tuner.h"

namespace peal {

// The options of one communicator, defaults filled in from the configuration table.
struct CommOptions {
  bool deterministic = false;
  int64_t timeoutMs = 0;
  std::string name;
  int device = PEAL_DEVICE_HOST;
};

// A user's reduction: built in, or made by pealRedOpCreatePreMulSum.
struct UserOp {
  pealDataType_t type = pealFloat32;
  std::array<std::byte, 8> scalar{};
  const void* deferred = nullptr;  // read when the operation runs; nullptr: scalar holds the value
};

// A collective as the API passes it on: arguments checked, nothing resolved.
struct CollectiveCall {
  int kind = pealStatAllReduce;
  const void* send = nullptr;
  void* recv = nullptr;
  size_t count = 0;
  std::vector<size_t> counts;  // v-forms
  pealDataType_t type = pealInt8;
  pealRedOp_t op = pealSum;
  bool hasOp = false;
  int root = -1;

  // Whether that call is this one with other buffers; not asked of v-forms.
  bool repeatedBy(const CollectiveCall& other) const {
    return kind == other.kind && count == other.count && type == other.type && op == other.op &&
           hasOp == other.hasOp && root == other.root && other.counts.empty();
  }
};

class Communicator : public std::enable_shared_from_this<Communicator> {
 public:
  // A place in the order of this rank's operations on this communicator.
  using Ticket = uint64_t;
  struct Prepared {
    Ticket ticket = 0;
    std::optional<Collective> collective;
    std::vector<PointToPoint> pointToPoint;
    const void* deferredScalar = nullptr;
    int64_t leastTimeoutMs = 0;  // for an operation that may rightly take longer than the communicator's
  };

  // Collective over the exchange. Ends with an error on every rank if ranks disagree on what must agree.
  static Result<std::shared_ptr<Communicator>> create(Exchange& exchange, const Secret& secret,
                                                      const CommOptions& options, Deadline deadline);
  ~Communicator();
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  int rank() const { return context_.rank; }
  int size() const { return context_.size; }
  const std::string& name() const { return context_.name; }
  const CommOptions& options() const { return options_; }
  const Secret& secret() const { return secret_; }
  int device() const { return options_.device; }
  bool onDevice() const { return device_ != nullptr; }
  // Tells communicators apart; the same on all ranks of one.
  uint64_t number() const { return number_; }
  uint32_t nextSplit() { return splits_++; }

  // Issues: takes the place in the order. Called by the thread that uses the communicator.
  Result<Prepared> prepare(const CollectiveCall& call);
  Result<Prepared> prepare(std::vector<PointToPoint> calls);
  // On host memory: an all-reduce with one block per rank (counts of the call) and an epilogue, with the bits
  // of this communicator's reduce-scatter of the same blocks. The epilogue outlives run().
  Result<Prepared> prepare(const CollectiveCall& call, HostEpilogue& epilogue);
  // Runs what was issued, when its turn has come. On any thread; each Prepared exactly once.
  Result<void> run(Prepared& prepared);
  // Issue and run. leastTimeoutMs as in Prepared.
  Result<void> runNow(const CollectiveCall& call, int64_t leastTimeoutMs = 0);
  // The calls are used up.
  Result<void> runNow(std::vector<PointToPoint>& calls, int64_t leastTimeoutMs = 0);

  // On a GPU: issue onto a CUDA stream, which runs it. fork and join as in lib/executor/device_executor.h.
  Result<void> issueOnDevice(const CollectiveCall& call, void* stream);
  Result<void> issueOnDevice(std::vector<PointToPoint> calls, void* stream);
  // The fused step of peal/adamw.h; counts of the call: elements of each rank's block.
  Result<void> issueOnDevice(const CollectiveCall& call, const pealAdamw_t& state, void* stream);
  Result<void> forkOnDevice(void* stream);
  Result<void> joinOnDevice(void* stream);
  Result<uint64_t> registerBuffer(void* data, size_t bytes);
  Result<void> deregisterBuffer(uint64_t id);
  // An error if CUDA graphs would outlive what they use; `what` is about to end.
  Result<void> checkNoGraphs(const char* what);

  // Waits until all that was issued has run. On a GPU also reports a fault that nobody was told of yet.
  Result<void> finalize();
  // Callable from any thread: every operation returns an error soon.
  void abort();
  // The first error, looking at the peers' health if no operation is running.
  pealResult_t asyncError();
  std::string lastMessage();
  Result<pealCommStats_t> stats();

  // Of the collectives that are issued from now on; nullptr: what PEAL_ALGO says. Called by the thread that
  // uses the communicator.
  Result<void> forceAlgorithm(const char* algorithm);

  Result<pealRedOp_t> addOp(const UserOp& op);
  Result<void> removeOp(pealRedOp_t op);
  // Whether a non built-in op exists and is of that type.
  Result<void> checkOp(pealRedOp_t op, pealDataType_t type);

 private:
  explicit Communicator(const CommOptions& options) : options_(options) {}
  Result<void> usable();
  Result<void> awaitTurn(Ticket ticket);
  void noteWaiter();
  void endTurn(Ticket ticket);
  void number(std::vector<PointToPoint>& calls);
  std::optional<Fault> runTransfers(std::vector<PointToPoint>& calls);
  Result<void> settle(std::optional<Fault> fault);
  Fault abortedHere() const;
  void takeBuffersBack();
  Result<void> resolveOp(const CollectiveCall& call, Collective& collective, const void*& deferred);
  // All of a call but the choice and the sequence number. elements: of the whole array.
  Result<Collective> resolve(const CollectiveCall& call, const void*& deferred, size_t& elements);
  TunerQuestion question(const Collective& collective, size_t elements) const;
  Result<Choice> chosen(const TunerQuestion& question);
  // forcedProtocol: as PEAL_PROTOCOL, outliving the question.
  DeviceQuestion questionForDevice(TunerQuestion call, std::string_view forcedProtocol) const;
  Result<Choice> chosenOnDevice(const DeviceQuestion& question);
  template <class Ask>
  Result<Choice> remembered(const TunerQuestion& question, std::string_view protocol, Ask&& ask);
  Result<Choice> chosenWithEpilogue(TunerQuestion question);
  Result<Prepared> issue(Prepared prepared, const Choice& choice);
  struct Known;
  Known& knownFor(const CollectiveCall& call);
  template <class Operation>
  Result<void> runInTurn(Ticket ticket, Operation&& operation);
  Result<void> connectHost(Exchange& exchange, Deadline deadline);
  Result<void> agreeOnReach(Exchange& exchange);
  Result<void> connectDevice(Exchange& exchange, Deadline deadline);
  Result<void> settleIssue(Result<void> issued);
  void noticeDeviceFault();

  CommOptions options_;
  Secret secret_{};
  std::vector<int> groupingTable_;  // what grouping_ is a view of
  Grouping grouping_;
  std::unique_ptr<Endpoint> endpoint_;
  std::unique_ptr<DeviceExecutor> device_;  // nullptr on host memory
  uint64_t number_ = 0;
  HostContext context_;
  std::atomic<bool> abort_{false};
  std::atomic<bool> abortAsked_{false};  // by abort(): what fails from then on is its doing
  std::atomic<bool> finalized_{false};
  uint32_t splits_ = 0;
  std::optional<LinkTable> links_;  // what links cost, if there are several nodes, or GPUs

  // Issue side: one thread at a time by contract.
  Ticket issued_ = 0;
  uint32_t sequence_ = 0;
  std::vector<uint32_t> sendSequence_;
  std::vector<uint32_t> recvSequence_;
  // Recent calls as prepare() resolved them, at a place that kind and count choose: most programs repeat a
  // few.
  struct Known {
    CollectiveCall call;
    std::optional<Collective> collective;
  };
  std::array<Known, 8> known_;
  std::string forced_;  // the algorithm that the caller asked for; empty: PEAL_ALGO's
  // Choices between nodes and on GPUs, which take the tuner many predictions; by collective, bytes, and the
  // algorithm and protocol that were asked for.
  std::map<std::tuple<int, size_t, std::string, std::string>, Choice> choices_;

  // The order. done_ counts finished operations; the next to run is the one whose ticket equals it.
  std::atomic<Ticket> done_{0};
  std::atomic<int> turnWaiters_{0};
  std::mutex turnMutex_;  // guards nothing but the sleep on turnChanged_
  std::condition_variable turnChanged_;
  const bool everybodyFences_ = registeredForFences();
  // Of endpoint_: the running operation's, or asyncError's for a look at the peers.
  Claim claim_;

  std::mutex errorMutex_;  // guards error_
  std::optional<Error> error_;
  std::atomic<bool> failed_{false};  // error_ is set
  std::mutex opsMutex_;              // guards ops_
  std::vector<std::optional<UserOp>> ops_;
};

// Collective over the parent, whose operations for this last as long as the deadline at least: while ranks
// make a child they are out of step, by far more than a small timeout of the parent allows. The child of this
// rank's color, or nullptr for PEAL_SPLIT_NOCOLOR.
Result<std::shared_ptr<Communicator>> split(Communicator& parent, int color, int key,
                                            const CommOptions& options, Deadline deadline);

}  // namespace peal
