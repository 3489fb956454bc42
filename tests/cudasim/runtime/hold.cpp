// Deterministic runs: operations wait until the holder runs them, all on its thread.
#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "tests/cudasim/runtime/kernels.h"
#include "tests/cudasim/runtime/state.h"

namespace peal::cudasim {

void Engine::hold(Lock& lock, World world) {
  if (held_) {
    std::fprintf(stderr, "cudasim: a second Hold while there is one\n");
    std::abort();
  }
  // What is running ends first, on its threads.
  for (const StreamRef& stream : std::vector(streams_)) {
    await(lock, pending(lock, stream));
  }
  held_ = true;
  holder_ = std::this_thread::get_id();
  world_ = world;
}

// Everything but kernels that is ready, in the order of the streams. False: nothing was.
bool Engine::drainUntilKernels(Lock& lock) {
  bool progress = false;
  for (const StreamRef& stream : std::vector(streams_)) {
    while (canRun(*stream) && !stream->queue.front().work->launch) {
      runHead(lock, *stream);
      progress = true;
    }
  }
  return progress;
}

bool Engine::runReadyKernels(Lock& lock) {
  std::vector<StreamRef> ready;
  std::vector<const Launch*> launches;
  for (const StreamRef& stream : streams_) {
    if (canRun(*stream) && stream->queue.front().work->launch) {
      ready.push_back(stream);
      launches.push_back(stream->queue.front().work->launch.get());
      stream->running = true;
    }
  }
  std::erase_if(launches, [](const Launch* launch) { return runtime().lost.count(launch->device) > 0; });
  if (!launches.empty()) {
    lock.unlock();
    runLaunches(launches, world_);
    lock.lock();
  }
  for (const StreamRef& stream : ready) {
    finish(lock, *stream);
  }
  return !ready.empty();
}

bool Engine::waitForOtherProcesses(Lock& lock) {
  const bool any = std::any_of(streams_.begin(), streams_.end(),
                               [](const StreamRef& stream) { return waitsForOtherProcess(*stream); });
  if (any) {
    ended_.wait_for(lock, std::chrono::microseconds(200));
  }
  return any;
}

void Engine::flush(Lock& lock) {
  flushing_ = true;
  while (drainUntilKernels(lock) || runReadyKernels(lock) || waitForOtherProcesses(lock)) {
  }
  flushing_ = false;
  reap(lock);
}

void Engine::endHold(Lock& lock) {
  flush(lock);
  held_ = false;
}

Hold::Hold(World world) {
  Lock lock(runtime().mutex);
  runtime().engine.hold(lock, world);
}

void Hold::run() {
  Lock lock(runtime().mutex);
  runtime().engine.flush(lock);
}

Hold::~Hold() {
  Lock lock(runtime().mutex);
  runtime().engine.endHold(lock);
}

}  // namespace peal::cudasim
