// Events: which operation each has recorded last, or where in a capture.
#pragma once
#include <cuda_runtime.h>

#include <atomic>
#include <map>
#include <memory>
#include <vector>

#include "tests/cudasim/runtime/engine.h"

namespace peal::cudasim {

// In a memory file: an event that several processes see.
struct SharedEvent {
  std::atomic<uint64_t> recorded,
      happened;  // counts of records issued; of those whose work has ended, at least
};

struct Event {
  cudaEvent_t handle = nullptr;
  int device = 0;
  unsigned flags = cudaEventDefault;
  CompletionRef last;  // null: never recorded
  // Recorded last in a capture, after these nodes.
  std::shared_ptr<CaptureSequence> capture;
  std::vector<size_t> captureNodes;
  // Of events with cudaEventInterprocess.
  std::shared_ptr<SharedEvent> shared;
  int fd = -1;
  bool isOpened = false;  // another process's

  ~Event();
  // What there is to wait for now; null: nothing.
  CompletionRef pending() const;
};
using EventRef = std::shared_ptr<Event>;

class EventTable {
 public:
  EventRef make(int device, unsigned flags);  // null: no memory for a shared one
  EventRef find(cudaEvent_t handle) const;
  void remove(cudaEvent_t handle) { events_.erase(handle); }
  void clear() { events_.clear(); }
  void describe(std::vector<std::string>& lines) const;
  EventRef addOpened(int device, int fd);

 private:
  std::map<cudaEvent_t, EventRef> events_;
};

// Makes the event happen after what `stream` holds now.
void recordOn(Lock& lock, const EventRef& event, const StreamRef& stream);

}  // namespace peal::cudasim
