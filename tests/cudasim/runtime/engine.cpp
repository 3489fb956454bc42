#include "tests/cudasim/runtime/engine.h"

#include <fmt/format.h>

#include <algorithm>

#include "tests/cudasim/runtime/kernels.h"
#include "tests/cudasim/runtime/state.h"

namespace peal::cudasim {
namespace {

// Operations of other processes are looked at this often.
constexpr auto kRemotePoll = std::chrono::microseconds(200);

const char* nameOf(cudaGraphNodeType type) {
  switch (type) {
    case cudaGraphNodeTypeKernel:
      return "kernel";
    case cudaGraphNodeTypeMemcpy:
      return "copy";
    case cudaGraphNodeTypeMemset:
      return "fill";
    case cudaGraphNodeTypeHost:
      return "host function";
    case cudaGraphNodeTypeWaitEvent:
      return "wait for an event";
    case cudaGraphNodeTypeEventRecord:
      return "record of an event";
    default:
      return "step of a graph launch";
  }
}

}  // namespace

// ---- streams ----

StreamRef Engine::makeStream(Lock& lock, int device, unsigned flags, int priority) {
  reap(lock);
  auto stream = std::make_shared<Stream>();
  stream->handle = runtime().nextHandle<cudaStream_t>();
  stream->id = nextId_++;
  stream->device = device;
  stream->flags = flags;
  stream->priority = priority;
  streams_.push_back(stream);
  return stream;
}

StreamRef Engine::legacy(Lock& lock, int device) {
  for (const StreamRef& stream : streams_) {
    if (stream->isLegacy && stream->device == device) {
      return stream;
    }
  }
  StreamRef stream = makeStream(lock, device, cudaStreamDefault, 0);
  stream->isLegacy = stream->isInternal = true;
  return stream;
}

StreamRef Engine::find(Lock& lock, cudaStream_t handle, int currentDevice) {
  if (handle == nullptr || handle == cudaStreamLegacy) {
    return legacy(lock, currentDevice);
  }
  if (handle == cudaStreamPerThread) {
    const std::pair key(std::this_thread::get_id(), currentDevice);
    StreamRef& stream = perThread_[key];
    if (!stream) {
      stream = makeStream(lock, currentDevice, cudaStreamDefault, 0);
      stream->isInternal = true;
    }
    return stream;
  }
  for (const StreamRef& stream : streams_) {
    if (stream->handle == handle && !stream->closed && !stream->isInternal) {
      return stream;
    }
  }
  return nullptr;
}

void Engine::close(Lock& lock, const StreamRef& stream) {
  stream->closed = true;
  stream->wake.notify_all();
  reap(lock);
}

std::vector<StreamRef> Engine::userStreams(Lock&) const {
  std::vector<StreamRef> found;
  std::copy_if(streams_.begin(), streams_.end(), std::back_inserter(found),
               [](const StreamRef& s) { return !s->isInternal && !s->closed; });
  return found;
}

// Forgets closed streams that have nothing left to do. A worker says `workerLeft` as the last thing it does
// under the lock, so joining it does not wait for anything that needs the lock.
void Engine::reap(Lock&) {
  std::erase_if(streams_, [](const StreamRef& stream) {
    const bool over = stream->closed && stream->queue.empty() && !stream->running &&
                      (!stream->worker.joinable() || stream->workerLeft);
    if (over && stream->worker.joinable()) {
      stream->worker.join();
    }
    return over;
  });
}

StreamRef Engine::leaseLane(Lock& lock, int device) {
  for (const StreamRef& stream : streams_) {
    const bool isLane = stream->isInternal && !stream->isBlocking();
    if (isLane && !stream->leased && stream->device == device && stream->queue.empty() && !stream->running) {
      stream->leased = true;
      return stream;
    }
  }
  StreamRef lane = makeStream(lock, device, cudaStreamNonBlocking, 0);
  lane->isInternal = lane->leased = true;
  return lane;
}

// ---- operations ----

CompletionRef Engine::enqueue(Lock&, const StreamRef& stream, WorkRef work,
                              std::vector<CompletionRef> waits) {
  // The legacy stream comes after everything in the device's blocking streams, and they after it.
  for (const StreamRef& other : streams_) {
    const bool ordered =
        other->device == stream->device && other != stream && other->tail && !other->tail->done &&
        ((stream->isLegacy && other->isBlocking()) || (other->isLegacy && stream->isBlocking()));
    if (ordered) {
      waits.push_back(other->tail);
    }
  }
  std::erase_if(waits, hasEnded);
  auto done = std::make_shared<Completion>();
  stream->queue.push_back({std::move(work), std::move(waits), done});
  stream->tail = done;
  if (!held_) {
    startWorker(stream);
  }
  return done;
}

bool Engine::hasEnded(const CompletionRef& completion) {
  if (!completion->done && completion->remote && completion->remote()) {
    completion->done = true;
    completion->at = std::chrono::steady_clock::now();
  }
  return completion->done;
}

std::vector<CompletionRef> Engine::pending(Lock& lock, const StreamRef& stream) const {
  if (stream->isLegacy) {
    std::vector<CompletionRef> found;
    for (const StreamRef& other : streams_) {
      if (other->device == stream->device && other->isBlocking() && other->tail && !hasEnded(other->tail)) {
        found.push_back(other->tail);
      }
    }
    return found;
  }
  (void)lock;
  return stream->tail && !hasEnded(stream->tail) ? std::vector{stream->tail} : std::vector<CompletionRef>{};
}

std::vector<CompletionRef> Engine::pendingOnDevice(Lock&, int device) const {
  std::vector<CompletionRef> found;
  for (const StreamRef& stream : streams_) {
    if (stream->device == device && stream->tail && !hasEnded(stream->tail)) {
      found.push_back(stream->tail);
    }
  }
  return found;
}

void Engine::await(Lock& lock, const std::vector<CompletionRef>& completions) {
  if (held_ && !flushing_ && holder_ == std::this_thread::get_id()) {
    flush(lock);
  }
  for (const CompletionRef& completion : completions) {
    while (!hasEnded(completion)) {
      if (completion->remote) {
        ended_.wait_for(lock, kRemotePoll);
      } else {
        ended_.wait(lock);
      }
    }
  }
}

// ---- running ----

bool Engine::canRun(const Stream& stream) const {
  return !stream.running && !stream.queue.empty() &&
         std::all_of(stream.queue.front().waits.begin(), stream.queue.front().waits.end(), hasEnded);
}

bool Engine::waitsForOtherProcess(const Stream& stream) {
  return !stream.queue.empty() &&
         std::any_of(stream.queue.front().waits.begin(), stream.queue.front().waits.end(),
                     [](const CompletionRef& wait) { return wait->remote && !wait->done; });
}

void Engine::startWorker(const StreamRef& stream) {
  if (!stream->worker.joinable()) {
    stream->worker = std::thread([this, stream] { serve(stream); });
  } else {
    stream->wake.notify_all();
  }
}

void Engine::serve(const StreamRef& stream) {
  Lock lock(runtime().mutex);
  while (!(stream->closed && stream->queue.empty())) {
    if (!held_ && canRun(*stream)) {
      runHead(lock, *stream);
    } else if (!held_ && waitsForOtherProcess(*stream)) {
      stream->wake.wait_for(lock, kRemotePoll);
    } else {
      stream->wake.wait(lock);
    }
  }
  stream->workerLeft = true;
}

void Engine::runHead(Lock& lock, Stream& stream) {
  const WorkRef work = stream.queue.front().work;
  stream.running = true;
  if (work->always || runtime().lost.count(work->device) == 0) {
    lock.unlock();
    if (work->launch) {
      runLaunches({work->launch.get()}, World::Shared);
    } else if (work->run) {
      work->run();
    }
    lock.lock();
  }
  finish(lock, stream);
}

void Engine::finish(Lock&, Stream& stream) {
  const CompletionRef done = stream.queue.front().done;
  stream.queue.pop_front();
  stream.running = false;
  done->done = true;
  done->at = std::chrono::steady_clock::now();
  ended_.notify_all();
  for (const StreamRef& other : streams_) {
    if (!other->queue.empty()) {
      other->wake.notify_all();
    }
  }
}

// ---- restart, reports ----

void Engine::stop(Lock& lock) {
  for (const StreamRef& stream : streams_) {
    stream->closed = true;
    stream->wake.notify_all();
  }
  std::vector<std::thread> workers;
  for (const StreamRef& stream : streams_) {
    if (stream->worker.joinable()) {
      workers.push_back(std::move(stream->worker));
    }
  }
  lock.unlock();
  for (std::thread& worker : workers) {
    worker.join();
  }
  lock.lock();
  streams_.clear();
  perThread_.clear();
}

std::string Engine::describe(Lock&) const {
  std::string text;
  for (const StreamRef& stream : streams_) {
    if (stream->queue.empty()) {
      continue;
    }
    const Stream::Operation& head = stream->queue.front();
    const bool waits = !stream->running && !canRun(*stream);
    const std::string kernel = head.work->launch ? ": " + head.work->launch->name : "";
    text += fmt::format("stream {} of device {}: {} queued, the first a {}{}, {}\n", stream->id,
                        stream->device, stream->queue.size(), nameOf(head.work->type), kernel,
                        stream->running ? "running"
                        : waits         ? "waiting for another stream"
                                        : "ready");
  }
  return text;
}

}  // namespace peal::cudasim
