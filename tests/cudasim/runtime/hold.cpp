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

// Kernels of a device that is lost are not run.
bool Engine::isLost(const Stream& stream) {
  return runtime().lost.count(stream.queue.front().work->device) > 0;
}

// Everything but kernels that is ready, in the order of the streams. False: nothing was.
bool Engine::drainUntilKernels(Lock& lock) {
  bool progress = false;
  for (const StreamRef& stream : std::vector(streams_)) {
    while (canRun(*stream) && (!stream->queue.front().work->launch || isLost(*stream))) {
      runHead(lock, *stream);
      progress = true;
    }
  }
  return progress;
}

// The kernels at the heads of the streams, which are theirs to finish now.
std::vector<const Launch*> Engine::takeReadyKernels(std::map<const Launch*, std::vector<StreamRef>>& taken) {
  std::vector<const Launch*> launches;
  for (const StreamRef& stream : streams_) {
    if (!canRun(*stream) || !stream->queue.front().work->launch) {
      continue;
    }
    const Launch* launch = stream->queue.front().work->launch.get();
    stream->running = true;
    taken[launch].push_back(stream);
    launches.push_back(launch);
  }
  return launches;
}

bool Engine::runReadyKernels(Lock& lock) {
  std::map<const Launch*, std::vector<StreamRef>> taken;  // graphs may launch one launch in several streams
  const auto finishOne = [&](const Launch& launch) {
    std::vector<StreamRef>& streams = taken[&launch];
    finish(lock, *streams.back());
    streams.pop_back();
  };
  const std::vector<const Launch*> first = takeReadyKernels(taken);
  if (first.empty()) {
    return false;
  }
  lock.unlock();
  runLaunches(first, world_, [&](const Launch& finished) {
    lock.lock();
    finishOne(finished);
    drainUntilKernels(lock);
    const std::vector<const Launch*> next = takeReadyKernels(taken);
    lock.unlock();
    return next;
  });
  lock.lock();
  // After a trap: those that did not end by themselves.
  for (auto& [launch, streams] : taken) {
    while (!streams.empty()) {
      finishOne(*launch);
    }
  }
  return true;
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
