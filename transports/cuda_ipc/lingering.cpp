#include "transports/cuda_ipc/lingering.h"

#include <unistd.h>

#include <chrono>
#include <mutex>
#include <thread>
#include <vector>

namespace peal::cuda {
namespace {

class Lingering {
 public:
  Lingering() = default;
  Lingering(const Lingering&) = delete;
  Lingering& operator=(const Lingering&) = delete;
  // At the end of the process: no window is freed any more, the driver does that. In a forked child there is
  // nothing to end: the threads stayed with the parent.
  ~Lingering() {
    if (getpid() != pid_) {
      for (std::unique_ptr<Watch>& watch : watches_) {
        static_cast<void>(watch.release());
      }
    }
  }

  void keep(std::unique_ptr<Watch> watch) {
    const std::lock_guard lock(mutex_);
    std::erase_if(watches_, [](const std::unique_ptr<Watch>& other) { return other->through(); });
    watches_.push_back(std::move(watch));
  }

  bool empty() {
    const std::lock_guard lock(mutex_);
    std::erase_if(watches_, [](const std::unique_ptr<Watch>& other) { return other->through(); });
    return watches_.empty();
  }

 private:
  const pid_t pid_ = getpid();
  std::mutex mutex_;  // guards watches_
  std::vector<std::unique_ptr<Watch>> watches_;
};

// Made by the first communicator that leaves, so after whatever its endpoint needs, and destroyed before
// that.
Lingering& lingering() {
  static Lingering all;
  return all;
}

}  // namespace

void keepLingering(std::unique_ptr<Watch> watch) { lingering().keep(std::move(watch)); }

bool lingeringEnded(Deadline deadline) {
  while (!lingering().empty()) {
    if (deadline.passed()) {
      return false;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

}  // namespace peal::cuda
