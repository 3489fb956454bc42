#include "tests/cudasim/runtime/events.h"

#include <sys/mman.h>
#include <unistd.h>

#include "tests/cudasim/runtime/api.h"
#include "tests/cudasim/runtime/capture.h"
#include "tests/cudasim/runtime/ipc.h"

namespace peal::cudasim {
namespace {

std::shared_ptr<SharedEvent> mapShared(int fd) {
  void* data = mmap(nullptr, sizeof(SharedEvent), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (data == MAP_FAILED) {
    return nullptr;
  }
  return {static_cast<SharedEvent*>(data), [](SharedEvent* shared) { munmap(shared, sizeof *shared); }};
}

}  // namespace

Event::~Event() {
  if (fd >= 0) {
    close(fd);
  }
}

CompletionRef Event::pending() const {
  if (!shared) {
    return last;
  }
  auto completion = std::make_shared<Completion>();
  completion->remote = [counts = shared, ticket = shared->recorded.load()] {
    return counts->happened.load() >= ticket;
  };
  return completion;
}

EventRef EventTable::make(int device, unsigned flags) {
  auto event = std::make_shared<Event>();
  event->handle = runtime().nextHandle<cudaEvent_t>();
  event->device = device;
  event->flags = flags;
  if ((flags & cudaEventInterprocess) != 0) {
    event->fd = memfd_create("cudasim event", MFD_CLOEXEC);
    if (event->fd < 0 || ftruncate(event->fd, sizeof(SharedEvent)) != 0 ||
        !(event->shared = mapShared(event->fd))) {
      return nullptr;
    }
  }
  return events_[event->handle] = event;
}

EventRef EventTable::addOpened(int device, int fd) {
  auto event = std::make_shared<Event>();
  event->handle = runtime().nextHandle<cudaEvent_t>();
  event->device = device;
  event->flags = cudaEventInterprocess | cudaEventDisableTiming;
  event->isOpened = true;
  event->shared = mapShared(fd);
  return event->shared ? events_[event->handle] = event : nullptr;
}

EventRef EventTable::find(cudaEvent_t handle) const {
  const auto found = events_.find(handle);
  return found == events_.end() ? nullptr : found->second;
}

void EventTable::describe(std::vector<std::string>& lines) const {
  for (const auto& [handle, event] : events_) {
    lines.push_back((event->isOpened ? "cudaIpcOpenEventHandle: an event of device "
                                     : "cudaEventCreate: an event of device ") +
                    std::to_string(event->device));
  }
}

void recordOn(Lock& lock, const EventRef& event, const StreamRef& stream) {
  auto work = std::make_shared<Work>();
  work->type = cudaGraphNodeTypeEventRecord;
  work->device = stream->device;
  work->always = true;
  if (event->shared) {
    work->run = [shared = event->shared, ticket = ++event->shared->recorded] {
      uint64_t before = shared->happened.load();
      while (before < ticket && !shared->happened.compare_exchange_weak(before, ticket)) {
      }
    };
  }
  event->capture = nullptr;
  event->captureNodes.clear();
  event->last = runtime().engine.enqueue(lock, stream, std::move(work));
}

}  // namespace peal::cudasim

using namespace peal::cudasim;

namespace {

constexpr unsigned kEventFlags = cudaEventBlockingSync | cudaEventDisableTiming | cudaEventInterprocess;

cudaError_t create(cudaEvent_t* event, unsigned flags) {
  const bool untimed = (flags & cudaEventDisableTiming) != 0;
  const bool shared = (flags & cudaEventInterprocess) != 0;
  if (event == nullptr || (flags & ~kEventFlags) != 0 || (shared && !untimed)) {
    return cudaErrorInvalidValue;
  }
  if (shared && !runtime().machine.ipc) {
    return cudaErrorNotSupported;
  }
  const EventRef made = runtime().events.make(currentDevice(), flags);
  if (!made) {
    return cudaErrorMemoryAllocation;
  }
  *event = made->handle;
  return cudaSuccess;
}

cudaError_t record(Lock& lock, cudaEvent_t handle, cudaStream_t streamHandle, unsigned flags) {
  const EventRef event = runtime().events.find(handle);
  const StreamRef stream = runtime().engine.find(lock, streamHandle, currentDevice());
  if (!event || !stream || event->device != stream->device) {
    return cudaErrorInvalidResourceHandle;
  }
  if (flags != cudaEventRecordDefault && flags != cudaEventRecordExternal) {
    return cudaErrorInvalidValue;
  }
  if (const cudaError_t error = refuseUse(lock, stream); error != cudaSuccess) {
    return error;
  }
  if (!stream->capture) {
    recordOn(lock, event, stream);
  } else if (flags == cudaEventRecordExternal) {
    Work work;
    work.type = cudaGraphNodeTypeEventRecord;
    work.device = stream->device;
    work.event = handle;
    return issue(lock, stream, std::move(work));
  } else {
    event->capture = stream->capture;
    event->captureNodes = stream->captureTail;
  }
  return cudaSuccess;
}

// What cudaEventQuery and cudaEventSynchronize refuse of an event recorded in a capture.
cudaError_t refuseCaptured(Lock& lock, const EventRef& event) {
  if (!event) {
    return cudaErrorInvalidResourceHandle;
  }
  if (event->capture) {
    invalidate(lock, *event->capture);
    return cudaErrorCapturedEvent;
  }
  return cudaSuccess;
}

}  // namespace

cudaError_t cudaEventCreate(cudaEvent_t* event) {
  return call({"cudaEventCreate", cudaErrorMemoryAllocation},
              [&](Lock&) { return create(event, cudaEventDefault); });
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned int flags) {
  return call({"cudaEventCreateWithFlags", cudaErrorMemoryAllocation},
              [&](Lock&) { return create(event, flags); });
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  return call({"cudaEventRecord", cudaErrorUnknown},
              [&](Lock& lock) { return record(lock, event, stream, cudaEventRecordDefault); });
}

cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned int flags) {
  return call({"cudaEventRecordWithFlags", cudaErrorUnknown},
              [&](Lock& lock) { return record(lock, event, stream, flags); });
}

cudaError_t cudaEventQuery(cudaEvent_t handle) {
  return call({"cudaEventQuery", cudaErrorUnknown, true}, [&](Lock& lock) {
    const EventRef event = runtime().events.find(handle);
    if (const cudaError_t error = refuseCaptured(lock, event); error != cudaSuccess) {
      return error;
    }
    const CompletionRef pending = event->pending();
    return !pending || Engine::hasEnded(pending) ? cudaSuccess : cudaErrorNotReady;
  });
}

cudaError_t cudaEventSynchronize(cudaEvent_t handle) {
  return call({"cudaEventSynchronize", cudaErrorUnknown, true}, [&](Lock& lock) {
    const EventRef event = runtime().events.find(handle);
    if (const cudaError_t error = refuseCaptured(lock, event); error != cudaSuccess) {
      return error;
    }
    if (const CompletionRef pending = event->pending()) {
      runtime().engine.await(lock, {pending});
    }
    return runtime().lostOr(event->device, cudaSuccess);
  });
}

cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t start, cudaEvent_t end) {
  return call({"cudaEventElapsedTime", cudaErrorUnknown}, [&](Lock& lock) {
    const EventRef first = runtime().events.find(start);
    const EventRef last = runtime().events.find(end);
    for (const EventRef& event : {first, last}) {
      if (const cudaError_t error = refuseCaptured(lock, event); error != cudaSuccess) {
        return error;
      }
    }
    const auto isTimed = [](const EventRef& event) {
      return (event->flags & cudaEventDisableTiming) == 0 && event->last;
    };
    if (ms == nullptr) {
      return cudaErrorInvalidValue;
    }
    if (!isTimed(first) || !isTimed(last) || first->device != last->device) {
      return cudaErrorInvalidResourceHandle;
    }
    if (!first->last->done || !last->last->done) {
      return cudaErrorNotReady;
    }
    *ms = std::chrono::duration<float, std::milli>(last->last->at - first->last->at).count();
    return cudaSuccess;
  });
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
  const Function function{.name = "cudaEventDestroy", .usualError = cudaErrorUnknown, .releases = true};
  return call(function, [&](Lock&) {
    if (!runtime().events.find(event)) {
      return cudaErrorInvalidResourceHandle;
    }
    runtime().events.remove(event);
    return cudaSuccess;
  });
}

cudaError_t cudaIpcGetEventHandle(cudaIpcEventHandle_t* handle, cudaEvent_t event) {
  return call({"cudaIpcGetEventHandle", cudaErrorMemoryAllocation, true}, [&](Lock&) {
    const EventRef found = runtime().events.find(event);
    if (!runtime().machine.ipc) {
      return cudaErrorNotSupported;
    }
    if (handle == nullptr) {
      return cudaErrorInvalidValue;
    }
    if (!found || found->fd < 0) {
      return cudaErrorInvalidResourceHandle;
    }
    const FileName name{kEventMagic,        getpid(), found->fd,           runtime().physical(found->device),
                        inodeOf(found->fd), 0,        sizeof(SharedEvent), sizeof(SharedEvent)};
    *handle = packHandle<cudaIpcEventHandle_t>(name);
    return cudaSuccess;
  });
}

cudaError_t cudaIpcOpenEventHandle(cudaEvent_t* event, cudaIpcEventHandle_t handle) {
  return call({"cudaIpcOpenEventHandle", cudaErrorMapBufferObjectFailed, true}, [&](Lock&) {
    const FileName name = unpackHandle(handle);
    if (!runtime().machine.ipc) {
      return cudaErrorNotSupported;
    }
    if (event == nullptr || name.magic != kEventMagic) {
      return cudaErrorInvalidValue;
    }
    if (name.process == getpid()) {
      return cudaErrorDeviceUninitialized;
    }
    const int fd = openNamedFile(name);
    const EventRef opened = fd >= 0 ? runtime().events.addOpened(currentDevice(), fd) : nullptr;
    if (fd >= 0) {
      close(fd);
    }
    if (!opened) {
      return cudaErrorMapBufferObjectFailed;
    }
    *event = opened->handle;
    return cudaSuccess;
  });
}
