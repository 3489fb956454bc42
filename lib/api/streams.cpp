// C entry points: host streams and events.
#include <fmt/format.h>

#include <system_error>

#include "lib/api/api.h"

using namespace peal;
using namespace peal::api;

pealResult_t pealStreamCreate(pealStream_t* stream) {
  return guarded([&]() -> Result<void> {
    if (stream == nullptr) {
      return nullArgument("pealStreamCreate", "stream");
    }
    auto made = std::make_unique<pealStream>();
    try {
      made->stream = std::make_shared<HostStream>();
    } catch (const std::system_error& failure) {
      return Error{
          pealSystemError,
          fmt::format("pealStreamCreate: the stream's thread did not start: {}. Raise the limit on processes "
                      "(ulimit -u) or on memory (ulimit -v).",
                      failure.what())};
    }
    noteStream(made.get());
    *stream = made.release();
    return {};
  });
}

pealResult_t pealStreamDestroy(pealStream_t stream) {
  return guarded([&]() -> Result<void> {
    if (stream == nullptr) {
      return {};
    }
    PEAL_TRY(checkStream("pealStreamDestroy", stream));
    Result<void> result = stream->stream->synchronize();
    forgetStream(stream);
    delete stream;
    return result;
  });
}

pealResult_t pealStreamSynchronize(pealStream_t stream) {
  return guarded([&]() -> Result<void> {
    if (stream == nullptr) {
      return {};  // what ran on the null stream has ended
    }
    PEAL_TRY(checkStream("pealStreamSynchronize", stream));
    return stream->stream->synchronize();
  });
}

pealResult_t pealStreamQuery(pealStream_t stream) {
  bool idle = true;
  const pealResult_t result = guarded([&]() -> Result<void> {
    if (stream != nullptr) {
      PEAL_TRY(checkStream("pealStreamQuery", stream));
      idle = stream->stream->idle();
    }
    return {};
  });
  return result == pealSuccess && !idle ? pealInProgress : result;
}

pealResult_t pealStreamLaunchHostFunc(pealStream_t stream, void (*fn)(void*), void* arg) {
  return guarded([&]() -> Result<void> {
    if (fn == nullptr) {
      return nullArgument("pealStreamLaunchHostFunc", "fn");
    }
    if (stream == nullptr) {
      fn(arg);
      return {};
    }
    PEAL_TRY(checkStream("pealStreamLaunchHostFunc", stream));
    stream->stream->enqueue([fn, arg]() -> Result<void> {
      fn(arg);
      return {};
    });
    return {};
  });
}

pealResult_t pealStreamWaitEvent(pealStream_t stream, pealEvent_t event) {
  return guarded([&]() -> Result<void> {
    PEAL_TRY(checkEvent("pealStreamWaitEvent", event));
    const uint64_t generation = event->event->recorded();
    if (stream == nullptr) {
      event->event->waitFor(generation);
      return {};
    }
    PEAL_TRY(checkStream("pealStreamWaitEvent", stream));
    stream->stream->enqueue([shared = event->event, generation]() -> Result<void> {
      shared->waitFor(generation);
      return {};
    });
    return {};
  });
}

pealResult_t pealEventCreate(pealEvent_t* event) {
  return guarded([&]() -> Result<void> {
    if (event == nullptr) {
      return nullArgument("pealEventCreate", "event");
    }
    auto made = std::make_unique<pealEvent>();
    made->event = std::make_shared<HostEvent>();
    *event = made.release();
    return {};
  });
}

pealResult_t pealEventDestroy(pealEvent_t event) {
  return guarded([&]() -> Result<void> {
    if (event == nullptr) {
      return {};
    }
    PEAL_TRY(checkEvent("pealEventDestroy", event));
    event->magic = 0;
    delete event;
    return {};
  });
}

pealResult_t pealEventRecord(pealEvent_t event, pealStream_t stream) {
  return guarded([&]() -> Result<void> {
    PEAL_TRY(checkEvent("pealEventRecord", event));
    if (stream != nullptr) {
      PEAL_TRY(checkStream("pealEventRecord", stream));
    }
    const uint64_t generation = event->event->record();
    if (stream == nullptr) {
      event->event->complete(generation);
      return {};
    }
    stream->stream->enqueue([shared = event->event, generation]() -> Result<void> {
      shared->complete(generation);
      return {};
    });
    return {};
  });
}

pealResult_t pealEventQuery(pealEvent_t event) {
  bool complete = true;
  const pealResult_t result = guarded([&]() -> Result<void> {
    PEAL_TRY(checkEvent("pealEventQuery", event));
    complete = event->event->isComplete();
    return {};
  });
  return result == pealSuccess && !complete ? pealInProgress : result;
}

pealResult_t pealEventSynchronize(pealEvent_t event) {
  return guarded([&]() -> Result<void> {
    PEAL_TRY(checkEvent("pealEventSynchronize", event));
    event->event->waitFor(event->event->recorded());
    return {};
  });
}

pealResult_t pealEventElapsedTime(float* ms, pealEvent_t start, pealEvent_t end) {
  return guarded([&]() -> Result<void> {
    if (ms == nullptr) {
      return nullArgument("pealEventElapsedTime", "ms");
    }
    PEAL_TRY(checkEvent("pealEventElapsedTime", start));
    PEAL_TRY(checkEvent("pealEventElapsedTime", end));
    const auto from = start->event->completedAt();
    const auto to = end->event->completedAt();
    if (!from || !to) {
      return Error{pealInvalidUsage,
                   "pealEventElapsedTime: both events must have been recorded and be complete."};
    }
    *ms = std::chrono::duration<float, std::milli>(*to - *from).count();
    return {};
  });
}
