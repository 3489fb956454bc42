// peal for C++20: the C API of peal.h with ownership, spans and exceptions. Header-only.
//
//     #include <peal/peal.hpp>
//     int main() {
//       peal::Communicator comm = peal::Communicator::fromLaunch();
//       peal::Buffer<float> gradients(1 << 20, static_cast<float>(comm.rank()));
//       comm.allReduce(gradients);  // in place, summed over all ranks
//     }
//
// Rules that hold for everything here:
//  - a failed call throws peal::Error, which carries the code and the sentence. Destructors never throw.
//  - owners (Communicator, Stream, Event) move and do not copy; handle() gives what the C API takes, so both
//    mix freely. A moved-from owner may only be assigned to or destroyed.
//  - data is any contiguous range that outlives the expression: a vector, array or span, but no temporary
//    vector. Its element type gives the data type. Sizes are checked before anything is sent.
//  - with a stream, a range belongs to the call until the stream has passed it, as in peal.h:
//        comm.allReduce(x, pealSum, stream); x[0] = 1;   // wrong: the call may still read or write x
//  - on a GPU (Options::device) a range is memory of that device, such as a DeviceBuffer, and a stream is a
//    cudaStream_t; without one the call goes to the default stream and returns at once.
//  - threads: as in peal.h, one thread at a time uses a communicator; abort() alone may come from another.
//
// Inside the project only tools, benches and tests include this header, and never together with headers of
// lib/: both have a peal::Error.
#ifndef PEAL_PEAL_HPP
#define PEAL_PEAL_HPP

#if __cplusplus < 202002L
#error "peal.hpp needs C++20: compile with -std=c++20 or newer. peal.h is for C and any C++."
#endif

#include <chrono>
#include <concepts>
#include <cstddef>
#include <functional>
#include <limits>
#include <memory>
#include <new>
#include <optional>
#include <ranges>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "peal/element.hpp"
#include "peal/peal.h"

struct CUstream_st;  // a cudaStream_t points to one

namespace peal {
// Inline, so that users write peal::Communicator while the linker's names cannot meet those of the library.
inline namespace face {

// ---- memory -------------------------------------------------------------------------------------------

// Allocates with pealMemAlloc: peers on the node read such memory in place, with no copy into slots.
template <class T>
struct Allocator {
  using value_type = T;

  Allocator() = default;
  template <class U>
  Allocator(const Allocator<U>&) noexcept {}  // NOLINT(google-explicit-constructor): allocators rebind so

  T* allocate(size_t count) {
    static_assert(alignof(T) <= 4096, "pealMemAlloc aligns to a page");
    if (count > std::numeric_limits<size_t>::max() / sizeof(T)) {
      throw std::bad_array_new_length();
    }
    void* memory = nullptr;
    check(pealMemAlloc(&memory, count * sizeof(T)));
    return static_cast<T*>(memory);
  }
  // A failure would be a pointer that pealMemAlloc never gave: nothing to tell the caller of a destructor.
  void deallocate(T* memory, size_t) noexcept { (void)pealMemFree(memory); }

  template <class U>
  bool operator==(const Allocator<U>&) const noexcept {
    return true;
  }
};

// A vector whose elements peers can read in place.
template <Element T>
using Buffer = std::vector<T, Allocator<T>>;

// Elements in the memory of a GPU: what collectives of a communicator on that GPU take. Not initialised; the
// host may not touch them.
template <Element T>
class DeviceBuffer {
 public:
  using value_type = T;

  DeviceBuffer(size_t count, int device) : size_(count) {
    if (count > std::numeric_limits<size_t>::max() / sizeof(T)) {
      throw std::bad_array_new_length();
    }
    void* memory = nullptr;
    check(pealMemAllocDevice(&memory, count * sizeof(T), device));
    memory_.reset(static_cast<T*>(memory));
  }
  T* data() noexcept { return memory_.get(); }
  const T* data() const noexcept { return memory_.get(); }
  size_t size() const noexcept { return size_; }
  T* begin() noexcept { return data(); }
  T* end() noexcept { return data() + size_; }
  const T* begin() const noexcept { return data(); }
  const T* end() const noexcept { return data() + size_; }

 private:
  struct Freer {
    void operator()(T* memory) const noexcept { (void)pealMemFree(memory); }
  };
  std::unique_ptr<T, Freer> memory_;
  size_t size_;
};

// ---- streams and events -----------------------------------------------------------------------------

namespace detail {

// unique_ptr over an opaque C handle.
template <class Handle, pealResult_t (*destroy)(Handle)>
struct Destroyer {
  using pointer = Handle;
  void operator()(Handle handle) const noexcept { (void)destroy(handle); }
};
template <class Handle, pealResult_t (*destroy)(Handle)>
using Owner = std::unique_ptr<std::remove_pointer_t<Handle>, Destroyer<Handle, destroy>>;

// True if done, false if not yet; else throws.
inline bool isDone(pealResult_t result) {
  if (result == pealInProgress) {
    return false;
  }
  check(result);
  return true;
}

}  // namespace detail

class Stream;

// A mark in a stream.
class Event {
 public:
  Event() {
    pealEvent_t made = nullptr;
    check(pealEventCreate(&made));
    event_.reset(made);
  }
  pealEvent_t handle() const noexcept { return event_.get(); }
  bool isComplete() const { return detail::isDone(pealEventQuery(handle())); }
  void synchronize() const { check(pealEventSynchronize(handle())); }
  // Milliseconds from the completion of `start` to the completion of this one.
  float millisecondsSince(const Event& start) const {
    float ms = 0;
    check(pealEventElapsedTime(&ms, start.handle(), handle()));
    return ms;
  }

 private:
  detail::Owner<pealEvent_t, pealEventDestroy> event_;
};

// A worker thread that runs what is queued, in order. The destructor runs what is queued first; errors that
// nobody asked for with synchronize() are then lost.
class Stream {
 public:
  Stream() {
    pealStream_t made = nullptr;
    check(pealStreamCreate(&made));
    stream_.reset(made);
  }
  pealStream_t handle() const noexcept { return stream_.get(); }
  // Blocks until all that was queued is done; throws the first error of its operations, once.
  void synchronize() const { check(pealStreamSynchronize(handle())); }
  bool isIdle() const { return detail::isDone(pealStreamQuery(handle())); }
  // The event completes when all that is queued now is done.
  void record(const Event& event) const { check(pealEventRecord(event.handle(), handle())); }
  // What is queued from now on starts only after the event's last record.
  void waitFor(const Event& event) const { check(pealStreamWaitEvent(handle(), event.handle())); }
  // Queues a function. One that throws ends the program; it may not wait on this same stream.
  void launch(std::function<void()> function) const {
    auto queued = std::make_unique<std::function<void()>>(std::move(function));
    check(pealStreamLaunchHostFunc(
        handle(),
        [](void* argument) noexcept {
          const std::unique_ptr<std::function<void()>> owned(static_cast<std::function<void()>*>(argument));
          (*owned)();
        },
        queued.get()));
    (void)queued.release();  // now the stream's
  }

 private:
  detail::Owner<pealStream_t, pealStreamDestroy> stream_;
};

// Where a call runs: on the calling thread, to its end (the default; on a GPU: on the default stream), or on
// a stream.
class On {
 public:
  On() = default;
  On(const Stream& stream) : stream_(stream.handle()) {}  // NOLINT(google-explicit-constructor)
  On(pealStream_t stream) : stream_(stream) {}            // NOLINT(google-explicit-constructor)
#ifndef PEAL_STREAM_IS_CUDA
  On(CUstream_st* stream)  // NOLINT(google-explicit-constructor): a cudaStream_t
      : stream_(reinterpret_cast<pealStream_t>(stream)) {}
#endif
  On(Stream&&) = delete;  // a temporary stream would run the call at once
  pealStream_t handle() const noexcept { return stream_; }

 private:
  pealStream_t stream_ = nullptr;
};

// ---- communicators --------------------------------------------------------------------------------------

// Options of a communicator; what is left empty takes its default from the configuration table.
struct Options {
  std::optional<bool> deterministic = std::nullopt;  // sums in rank order, bit for bit a plain loop
  std::optional<std::chrono::milliseconds> deadline = std::nullopt;  // of every wait
  std::string name = {};                                             // appears in messages
  std::optional<int> device = std::nullopt;                          // a GPU's number, or PEAL_DEVICE_...

  // The C form; name must outlive its use.
  pealConfig_t config() const {
    pealConfig_t config = PEAL_CONFIG_INITIALIZER;
    if (deterministic) {
      config.deterministic = *deterministic ? 1 : 0;
    }
    if (deadline) {
      const auto ms = deadline->count();
      if (ms < 1 || ms > std::numeric_limits<int>::max()) {
        throw Error(pealInvalidArgument, "Options::deadline is " + std::to_string(ms) + " ms: give 1 to " +
                                             std::to_string(std::numeric_limits<int>::max()));
      }
      config.timeoutMs = static_cast<int>(ms);
    }
    if (device) {
      config.device = *device;
    }
    config.commName = name.empty() ? nullptr : name.c_str();
    return config;
  }
};

// Made by one process and given to the others by any means. A password: whoever holds it can join.
inline pealUniqueId makeUniqueId() {
  pealUniqueId id;
  check(pealGetUniqueId(&id));
  return id;
}

// Rank and size as the launcher gives them.
inline pealLaunch_t launch() {
  pealLaunch_t launch;
  check(pealGetLaunch(&launch));
  return launch;
}

// JSON: version, processor, devices, transports found or not and why, the configuration table.
inline std::string systemInfo() {
  const char* json = nullptr;
  check(pealSystemInfo(&json));
  return json;
}

// JSON: this machine, or the described ones: processors, memory, devices, networks, rails. file: see
// pealTopology.
inline std::string topology(const std::string& file = "") {
  const char* json = nullptr;
  check(pealTopology(file.empty() ? nullptr : file.c_str(), &json));
  return json;
}

// A pre-multiplied sum: each rank's input times its scalar, rounded, then summed. Give it where a pealRedOp_t
// is asked for. Must end before its communicator does.
template <Element T>
class PreMulSum {
 public:
  PreMulSum(T scalar, pealComm_t comm) : comm_(comm) {
    check(pealRedOpCreatePreMulSum(&op_, &scalar, dataType<T>, pealScalarHostImmediate, comm));
  }
  PreMulSum(PreMulSum&& other) noexcept : comm_(std::exchange(other.comm_, nullptr)), op_(other.op_) {}
  PreMulSum& operator=(PreMulSum&& other) noexcept {
    std::swap(comm_, other.comm_);
    std::swap(op_, other.op_);
    return *this;
  }
  ~PreMulSum() {
    if (comm_ != nullptr) {
      (void)pealRedOpDestroy(op_, comm_);
    }
  }
  operator pealRedOp_t() const noexcept { return op_; }  // NOLINT(google-explicit-constructor)

 private:
  pealComm_t comm_;
  pealRedOp_t op_ = pealSum;
};

// Memory that peers may read in place while this lives. Must end before the memory and the communicator do.
class Registration {
 public:
  Registration(std::span<std::byte> memory, pealComm_t comm) : comm_(comm) {
    check(pealCommRegister(comm, memory.data(), memory.size(), &handle_));
  }
  Registration(Registration&& other) noexcept
      : comm_(std::exchange(other.comm_, nullptr)), handle_(other.handle_) {}
  Registration& operator=(Registration&& other) noexcept {
    std::swap(comm_, other.comm_);
    std::swap(handle_, other.handle_);
    return *this;
  }
  ~Registration() {
    if (comm_ != nullptr) {
      (void)pealCommDeregister(comm_, handle_);
    }
  }

 private:
  pealComm_t comm_;
  void* handle_ = nullptr;
};

// One rank's membership. Every rank calls the same collectives in the same order. The destructor finalizes:
// it lets what is queued end.
class Communicator {
 public:
  // Takes over a handle of the C API.
  explicit Communicator(pealComm_t owned) noexcept : comm_(owned) {}

  // All processes of this launch (mpirun, srun, torchrun, PEAL_RANK ...). Alone without a launcher.
  static Communicator fromLaunch(const Options& options = {}) {
    pealConfig_t config = options.config();
    pealComm_t made = nullptr;
    check(pealCommInitLaunch(&made, &config));
    return Communicator(made);
  }
  static Communicator join(int rank, int size, const pealUniqueId& id, const Options& options = {}) {
    pealConfig_t config = options.config();
    pealComm_t made = nullptr;
    check(pealCommInitRankConfig(&made, size, id, rank, &config));
    return Communicator(made);
  }
  // `size` ranks in this process, on host memory: element i is rank i, for a thread of its own each.
  static std::vector<Communicator> all(int size) {
    std::vector<pealComm_t> made(size > 0 ? static_cast<size_t>(size) : 0);
    check(pealCommInitAll(made.data(), size, nullptr));
    return std::vector<Communicator>(made.begin(), made.end());
  }
  // The same on GPUs, one rank for each entry.
  static std::vector<Communicator> all(std::span<const int> devices) {
    std::vector<pealComm_t> made(devices.size());
    check(pealCommInitAll(made.data(), static_cast<int>(devices.size()), devices.data()));
    return std::vector<Communicator>(made.begin(), made.end());
  }
  // Ranks of equal color join, ordered by key, then by rank here; no color, no communicator. Collective.
  std::optional<Communicator> split(std::optional<int> color, int key = 0) {
    pealComm_t made = nullptr;
    check(pealCommSplit(handle(), color.value_or(PEAL_SPLIT_NOCOLOR), key, &made, nullptr));
    return made != nullptr ? std::optional<Communicator>(made) : std::nullopt;
  }

  pealComm_t handle() const noexcept { return comm_.get(); }
  int rank() const { return ask(pealCommUserRank); }
  int size() const { return ask(pealCommCount); }
  int device() const { return ask(pealCommCuDevice); }
  pealCommStats_t stats() const {
    pealCommStats_t stats;
    check(pealCommGetStats(handle(), &stats));
    return stats;
  }
  // Of the collectives from now on; nullptr: what PEAL_ALGO says.
  void forceAlgorithm(const char* algorithm) { check(pealCommForceAlgorithm(handle(), algorithm)); }
  // The first error that any operation met, those on streams included; pealInProgress while one runs.
  pealResult_t asyncError() const {
    pealResult_t state = pealSuccess;
    check(pealCommGetAsyncError(handle(), &state));
    return state;
  }
  std::string lastError() const { return pealGetLastError(handle()); }
  // Waits until all operations are done. After it only the destructor and abort() are legal.
  void finalize() { check(pealCommFinalize(handle())); }
  // Makes running and later operations fail, here at once and on the other ranks as they notice, and frees.
  // May be called while another thread is inside a call, which then throws; that thread is done with this
  // one.
  void abort() {
    const pealResult_t result = pealCommAbort(handle());
    (void)comm_.release();  // only now: the other thread has left the call that it read the handle for
    check(result);
  }

  template <Element T>
  PreMulSum<T> preMulSum(T scalar) const {
    return PreMulSum<T>(scalar, handle());
  }
  template <Output Range>
  Registration registerMemory(Range&& memory) const {
    return Registration(std::as_writable_bytes(std::span(memory)), handle());
  }

  // ---- collectives; n is size() ----

  // to[i] = op over ranks of from[i]. Equal sizes.
  template <Input From, Output To>
  requires SameElements<From, To>
  void allReduce(From&& from, To&& to, pealRedOp_t op = pealSum, On on = {}) {
    needSize("allReduce", "output", std::ranges::size(to), std::ranges::size(from));
    check(pealAllReduce(std::ranges::data(from), std::ranges::data(to), std::ranges::size(from), typeOf<To>(),
                        op, handle(), on.handle()));
  }
  // In place.
  template <Output Data>
  void allReduce(Data&& data, pealRedOp_t op = pealSum, On on = {}) {
    allReduce(data, data, op, on);
  }

  // Rank r gets elements [r * size(to), (r + 1) * size(to)) of the reduction. from: n * size(to) elements.
  template <Input From, Output To>
  requires SameElements<From, To>
  void reduceScatter(From&& from, To&& to, pealRedOp_t op = pealSum, On on = {}) {
    needSize("reduceScatter", "input", std::ranges::size(from), timesRanks(std::ranges::size(to)));
    check(pealReduceScatter(std::ranges::data(from), std::ranges::data(to), std::ranges::size(to),
                            typeOf<To>(), op, handle(), on.handle()));
  }

  // to: n * size(from) elements, rank r's input at r * size(from).
  template <Input From, Output To>
  requires SameElements<From, To>
  void allGather(From&& from, To&& to, On on = {}) {
    needSize("allGather", "output", std::ranges::size(to), timesRanks(std::ranges::size(from)));
    check(pealAllGather(std::ranges::data(from), std::ranges::data(to), std::ranges::size(from), typeOf<To>(),
                        handle(), on.handle()));
  }

  // The two above with a count per rank, the same counts on every rank; block r starts at their sum before r.
  template <Input From, Output To>
  requires SameElements<From, To>
  void reduceScatterV(From&& from, To&& to, std::span<const size_t> counts, pealRedOp_t op = pealSum,
                      On on = {}) {
    const size_t mine = needCounts("reduceScatterV", "input", std::ranges::size(from), counts);
    needSize("reduceScatterV", "output", std::ranges::size(to), mine);
    check(pealReduceScatterV(std::ranges::data(from), std::ranges::data(to), counts.data(), typeOf<To>(), op,
                             handle(), on.handle()));
  }
  template <Input From, Output To>
  requires SameElements<From, To>
  void allGatherV(From&& from, To&& to, std::span<const size_t> counts, On on = {}) {
    const size_t mine = needCounts("allGatherV", "output", std::ranges::size(to), counts);
    needSize("allGatherV", "input", std::ranges::size(from), mine);
    check(pealAllGatherV(std::ranges::data(from), std::ranges::data(to), counts.data(), typeOf<To>(),
                         handle(), on.handle()));
  }

  // data on every rank becomes the root's.
  template <Output Data>
  void broadcast(Data&& data, int root, On on = {}) {
    check(pealBcast(std::ranges::data(data), std::ranges::size(data), typeOf<Data>(), root, handle(),
                    on.handle()));
  }

  // As allReduce, but `to` is written on the root only, and may be empty elsewhere.
  template <Input From, Output To>
  requires SameElements<From, To>
  void reduce(From&& from, To&& to, int root, pealRedOp_t op = pealSum, On on = {}) {
    if (rank() == root || std::ranges::size(to) != 0) {
      needSize("reduce", "output", std::ranges::size(to), std::ranges::size(from));
    }
    check(pealReduce(std::ranges::data(from), std::ranges::data(to), std::ranges::size(from), typeOf<To>(),
                     op, root, handle(), on.handle()));
  }
  // In place: data is written on the root only.
  template <Output Data>
  void reduce(Data&& data, int root, pealRedOp_t op = pealSum, On on = {}) {
    reduce(data, data, root, op, on);
  }

  // Block until the peer has taken part: ranks that exchange put both calls in one group().
  template <Input Data>
  void send(Data&& data, int peer, On on = {}) {
    check(pealSend(std::ranges::data(data), std::ranges::size(data), typeOf<Data>(), peer, handle(),
                   on.handle()));
  }
  template <Output Data>
  void recv(Data&& data, int peer, On on = {}) {
    check(pealRecv(std::ranges::data(data), std::ranges::size(data), typeOf<Data>(), peer, handle(),
                   on.handle()));
  }

  // to's block s = rank s's block r of from, r this rank. Equal sizes, a multiple of n. Not in place.
  template <Input From, Output To>
  requires SameElements<From, To>
  void allToAll(From&& from, To&& to, On on = {}) {
    const size_t share = std::ranges::size(from) / static_cast<size_t>(size());
    needSize("allToAll", "input", std::ranges::size(from), timesRanks(share));
    needSize("allToAll", "output", std::ranges::size(to), timesRanks(share));
    check(pealAlltoAll(std::ranges::data(from), std::ranges::data(to), share, typeOf<To>(), handle(),
                       on.handle()));
  }
  // The root's block r of `to` = rank r's from. to: n * size(from) elements on the root; elsewhere it may be
  // empty.
  template <Input From, Output To>
  requires SameElements<From, To>
  void gather(From&& from, To&& to, int root, On on = {}) {
    if (rank() == root) {
      needSize("gather", "output", std::ranges::size(to), timesRanks(std::ranges::size(from)));
    }
    check(pealGather(std::ranges::data(from), std::ranges::data(to), std::ranges::size(from), typeOf<To>(),
                     root, handle(), on.handle()));
  }
  // to = the root's block r of from. from: n * size(to) elements on the root; elsewhere it may be empty.
  template <Input From, Output To>
  requires SameElements<From, To>
  void scatter(From&& from, To&& to, int root, On on = {}) {
    if (rank() == root) {
      needSize("scatter", "input", std::ranges::size(from), timesRanks(std::ranges::size(to)));
    }
    check(pealScatter(std::ranges::data(from), std::ranges::data(to), std::ranges::size(to), typeOf<To>(),
                      root, handle(), on.handle()));
  }

  // Returns (the stream passes) when all ranks have called it.
  void barrier(On on = {}) { check(pealBarrier(handle(), on.handle())); }

 private:
  template <class Range>
  static constexpr pealDataType_t typeOf() {
    return dataType<std::ranges::range_value_t<Range>>;
  }

  int ask(pealResult_t (*question)(pealComm_t, int*)) const {
    int answer = 0;
    check(question(handle(), &answer));
    return answer;
  }

  size_t timesRanks(size_t count) const { return count * static_cast<size_t>(size()); }

  static void needSize(std::string_view call, std::string_view what, size_t have, size_t need) {
    if (have != need) {
      throw Error(pealInvalidArgument, std::string(call) + ": the " + std::string(what) + " has " +
                                           std::to_string(have) + " elements, and " + std::to_string(need) +
                                           " are needed");
    }
  }

  // Checks the counts and the array that holds all blocks; returns this rank's count.
  size_t needCounts(std::string_view call, std::string_view what, size_t have,
                    std::span<const size_t> counts) const {
    needSize(call, "list of counts", counts.size(), timesRanks(1));
    size_t sum = 0;
    for (const size_t count : counts) {
      sum += count;
    }
    needSize(call, what, have, sum);
    return counts[static_cast<size_t>(rank())];
  }

  detail::Owner<pealComm_t, pealCommDestroy> comm_;
};

// Runs calls(), and issues what it called together at its end: sends and receives inside progress together,
// and one thread may drive several communicators. Groups nest. If calls() throws, the group ends all the same
// (what it had called is issued, as in the C API) and the exception goes on.
template <std::invocable Calls>
void group(Calls&& calls) {
  check(pealGroupStart());
  try {
    std::invoke(std::forward<Calls>(calls));
  } catch (...) {
    (void)pealGroupEnd();
    throw;
  }
  check(pealGroupEnd());
}

}  // namespace face
}  // namespace peal

#endif  // PEAL_PEAL_HPP
