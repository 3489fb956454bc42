// Where the engine's memory is, and the two queues that work on it: the caller's, in which the trainer
// computes, and the stream, in which collectives run. One interface for host memory (device_host.cpp) and
// GPUs (cuda/device.cpp), so that the engine is one text for both.
//
// On host memory the caller's queue is its thread: what is queued there has been done when the call returns,
// and to go on after a mark is to wait for it. On a GPU the caller's queue is its CUDA stream, the calling
// thread waits for nothing unless a function says so, and every edge between the queues is an event of its
// own: streamAfterCaller() in one direction, callerAfter() in the other.
//
// Owned by Collectives and by the arenas; used by one thread at a time. Knows no rank, stage or bucket.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "lib/base/result.h"
#include "lib/zero/elements.h"
#include "lib/zero/norm.h"
#include "peal/peal.h"

namespace peal::zero {

// Shared: other ranks may read it in place during collectives. Private: only this rank does.
enum class ArenaMemory { Shared, Private };

enum class Queue { Caller, Stream };

// A pass over values and as many fp32 sums: startSums, addToSums, finishSums or storeSums (elements.h).
struct Pass {
  enum class Kind { Start, Add, Finish, Store };
  Kind kind;
  Elements values;
  float* sums;
  size_t count;
};

// AdamW over one stretch of elements with the same numbers. On a GPU not of bf16 gradients and weights with
// fp32 masters, which are pealAdamwStep's (device_steps.h).
struct Update {
  AdamwScalars scalars;
  Elements gradient, weight;
  void* master;  // fp32, or int16_t remainders; nullptr: the weights are
  float *moment1, *moment2;
  uint64_t count;
  bool hasRemainders;
  bool isStochastic;
  StochasticKey key;
};

// A place in the stream, recorded again and again.
class StreamEvent {
 public:
  virtual ~StreamEvent() = default;
};

class Device {
 public:
  virtual ~Device() = default;
  // PEAL_DEVICE_HOST, or a GPU's number.
  virtual int number() const = 0;
  bool isHost() const { return number() == PEAL_DEVICE_HOST; }

  // ---- queues ----
  // For peal's calls. caller(): the stream to pass for work in the caller's queue; nullptr on host memory.
  virtual pealStream_t stream() const = 0;
  virtual pealStream_t caller() const = 0;
  // A CUDA stream, before anything is queued.
  virtual Result<void> setCaller(pealStream_t stream) = 0;
  // Queues task(argument) on the stream; it runs on a host thread.
  virtual Result<void> run(void (*task)(void*), void* argument) = 0;
  // What is queued on the stream from now on runs after what is in the caller's queue now.
  virtual Result<void> streamAfterCaller() = 0;
  virtual Result<std::unique_ptr<StreamEvent>> makeEvent() = 0;
  virtual Result<void> record(StreamEvent& event) = 0;
  // What is queued in the caller's queue from now on runs after the event's last record.
  virtual Result<void> callerAfter(StreamEvent& event) = 0;
  // Waits, on this thread, until the caller's queue is empty.
  virtual Result<void> finishCaller() = 0;
  // Waits until what is queued on the stream has run, whatever becomes of it.
  virtual void settle() noexcept = 0;
  // Runs what is queued on the stream, waits for it and ends the stream. Nothing is queued afterwards.
  virtual void endStream() = 0;

  // ---- memory ----
  // At least one byte, aligned to 64, zeroed in the caller's queue.
  virtual Result<void*> allocate(ArenaMemory memory, size_t bytes) = 0;
  virtual void free(ArenaMemory memory, void* data) = 0;
  // Between this memory and the host's, after what is in the caller's queue. Waits.
  virtual Result<void> download(void* to, const void* from, size_t bytes) = 0;
  virtual Result<void> upload(void* to, const void* from, size_t bytes) = 0;
  // The same without waiting; `from` may be changed at once. For a few bytes.
  virtual Result<void> send(void* to, const void* from, size_t bytes) = 0;

  // Elements that the host computes: fill(address) writes `count` of them, to where they belong or to a copy.
  template <class T, class Fill>
  Result<void> write(T* to, size_t count, Fill&& fill) {
    if (isHost()) {
      fill(to);
      return {};
    }
    std::vector<T> room(count);
    fill(room.data());
    return upload(to, room.data(), count * sizeof(T));
  }
  // Elements for the host to read: where they are, or a copy in `room`. Never null.
  template <class T>
  Result<const T*> view(const T* from, size_t count, std::vector<T>& room) {
    if (isHost()) {
      return from;
    }
    room.resize(count + 1);  // one more: an empty vector has no address
    PEAL_TRY(download(room.data(), from, count * sizeof(T)));
    return static_cast<const T*>(room.data());
  }

  // ---- passes ----
  virtual Result<void> pass(Queue queue, const Pass& pass) = 0;
  // Zeros, in the caller's queue.
  virtual Result<void> clear(void* data, size_t bytes) = 0;
  // From one of its places to another, in the caller's queue; they do not overlap.
  virtual Result<void> move(void* to, const void* from, size_t bytes) = 0;
  // Adds the squares of values to a sum, in the caller's queue; all values of a sum have one type.
  // finishSquares: `sum` has all of them; waits.
  virtual Result<void> addSquares(Elements values, size_t count, SquareSum& sum) = 0;
  virtual Result<void> finishSquares(SquareSum& sum) = 0;
  // In the caller's queue; on host memory on any thread.
  virtual Result<void> update(const Update& update) = 0;
};

Result<std::shared_ptr<Device>> makeHostDevice();
// In cuda/device.cpp, or device_absent.cpp in a library without CUDA.
Result<std::shared_ptr<Device>> makeCudaDevice(int device);

}  // namespace peal::zero
