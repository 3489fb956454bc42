#include "lib/base/forkwatch.h"

#include <pthread.h>

#include <mutex>
#include <vector>

namespace peal {
namespace {

struct Watch {
  std::mutex mutex;  // guards the list; held across a fork, so that the child sees a whole list
  std::vector<ForkListener*> listeners;
};

Watch& watch();

void beforeFork() { watch().mutex.lock(); }
void afterForkInParent() { watch().mutex.unlock(); }
void afterForkInChild() {
  for (ForkListener* listener : watch().listeners) {
    listener->inForkedChild();
  }
  watch().mutex.unlock();
}

// Never destroyed: the handlers stay as long as the process.
Watch& watch() {
  static Watch* const instance = [] {
    auto* made = new Watch;
    pthread_atfork(beforeFork, afterForkInParent, afterForkInChild);
    return made;
  }();
  return *instance;
}

}  // namespace

void watchForks(ForkListener& listener) {
  Watch& all = watch();
  const std::lock_guard lock(all.mutex);
  all.listeners.push_back(&listener);
}

void unwatchForks(ForkListener& listener) {
  Watch& all = watch();
  const std::lock_guard lock(all.mutex);
  std::erase(all.listeners, &listener);
}

}  // namespace peal
