// Streams as queues of operations, and who runs them: a worker thread for each stream, or the holder of a
// Hold. The API files make operations; nothing here knows CUDA's functions, captures or errors.
//
// Everything is guarded by the runtime's mutex, which functions get as a held Lock and release only while an
// operation runs or they wait.
#pragma once
#include <cuda_runtime.h>

#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "tests/cudasim/core/run.h"

namespace peal::cudasim {

using Lock = std::unique_lock<std::mutex>;

// That an operation has ended. Shared by the operation, events that recorded it and those who wait for it.
struct Completion {
  bool done = false;
  std::chrono::steady_clock::time_point at{};
  std::function<bool()> remote;  // of another process's operation: looks whether it has ended
};
using CompletionRef = std::shared_ptr<Completion>;

// A kernel with its arguments and shape.
struct Launch {
  const void* kernel = nullptr;
  KernelBody body;
  dim3 grid, block;
  size_t sharedBytes = 0;
  int device = 0;
  std::string name;
};

// What an operation does; a graph's nodes share theirs with every launch of it.
struct Work {
  cudaGraphNodeType type = cudaGraphNodeTypeEmpty;
  int device = 0;
  std::shared_ptr<const Launch> launch;  // of a kernel
  std::function<void()> run;             // of anything else; empty: nothing to do
  cudaEvent_t event = nullptr;           // of event nodes in graphs
  bool always = false;                   // runs on a lost device too: bookkeeping of the runtime
};
using WorkRef = std::shared_ptr<const Work>;

struct CaptureSequence;

struct Stream {
  struct Operation {
    WorkRef work;
    std::vector<CompletionRef> waits;  // besides the operation before it in the stream
    CompletionRef done;
  };

  cudaStream_t handle = nullptr;
  uint64_t id = 0;  // in order of creation
  int device = 0;
  unsigned flags = cudaStreamDefault;
  int priority = 0;
  bool isLegacy = false;
  bool isInternal = false;  // a lane of graph launches, or a default stream: not the user's

  std::deque<Operation> queue;
  bool running = false;  // the head is being run
  bool closed = false;   // destroyed; what is queued still runs
  bool leased = false;   // a lane: in use by a graph launch
  CompletionRef tail;    // of the last operation ever queued; null: none yet
  std::thread worker;    // started with the first operation
  bool workerLeft = false;
  std::condition_variable wake;

  std::shared_ptr<CaptureSequence> capture;  // not null: being captured (capture.h)
  std::vector<size_t> captureTail;           // nodes that the next one depends on
  std::vector<cudaGraphNode_t> tailHandles;  // what cudaStreamGetCaptureInfo handed out
  std::vector<cudaGraphEdgeData> tailEdges;

  bool isBlocking() const { return (flags & cudaStreamNonBlocking) == 0; }
};
using StreamRef = std::shared_ptr<Stream>;

class Engine {
 public:
  StreamRef makeStream(Lock& lock, int device, unsigned flags, int priority);
  // The user's stream or a default stream (nullptr, cudaStreamLegacy, cudaStreamPerThread); null: unknown.
  StreamRef find(Lock& lock, cudaStream_t handle, int currentDevice);
  StreamRef legacy(Lock& lock, int device);
  void close(Lock& lock, const StreamRef& stream);
  // The user's, in order of creation.
  std::vector<StreamRef> userStreams(Lock& lock) const;

  // Queues an operation behind what the stream holds, and `waits`; legacy ordering is added.
  CompletionRef enqueue(Lock& lock, const StreamRef& stream, WorkRef work,
                        std::vector<CompletionRef> waits = {});
  // What must have ended for the stream, or the whole device, to be idle now.
  std::vector<CompletionRef> pending(Lock& lock, const StreamRef& stream) const;
  std::vector<CompletionRef> pendingOnDevice(Lock& lock, int device) const;
  static bool hasEnded(const CompletionRef& completion);
  void await(Lock& lock, const std::vector<CompletionRef>& completions);

  // A lane for a branch of a graph launch, until giveBack.
  StreamRef leaseLane(Lock& lock, int device);

  // Hold (cudasim/runtime.h); in hold.cpp.
  void hold(Lock& lock, World world);
  void flush(Lock& lock);
  void endHold(Lock& lock);

  // Ends all streams after what they have queued; the runtime is being restarted.
  void stop(Lock& lock);
  std::string describe(Lock& lock) const;

 private:
  void startWorker(const StreamRef& stream);
  void serve(const StreamRef& stream);
  bool canRun(const Stream& stream) const;
  static bool waitsForOtherProcess(const Stream& stream);
  void runHead(Lock& lock, Stream& stream);
  void finish(Lock& lock, Stream& stream);
  void reap(Lock& lock);
  bool drainUntilKernels(Lock& lock);
  static bool isLost(const Stream& stream);
  std::vector<const Launch*> takeReadyKernels(std::map<const Launch*, std::vector<StreamRef>>& taken);
  bool runReadyKernels(Lock& lock);
  bool waitForOtherProcesses(Lock& lock);

  std::vector<StreamRef> streams_;  // closed ones too while they have work; by id
  std::map<std::pair<std::thread::id, int>, StreamRef> perThread_;  // cudaStreamPerThread, by device
  std::condition_variable ended_;                                   // for threads that wait for completions
  uint64_t nextId_ = 1;
  bool held_ = false;
  bool flushing_ = false;
  std::thread::id holder_;
  World world_ = World::Alone;
};

}  // namespace peal::cudasim
