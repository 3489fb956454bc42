// The root services that live in this process: kept until they have finished, ended with the process.
// See root.h.
#include <unistd.h>

#include <mutex>

#include "lib/bootstrap/root.h"

namespace peal {
namespace {

struct Hosted {
  std::unique_ptr<RootService> service;
  RootUse use;
};

// Services of this process. Never destroyed, so that a forked child, which has no such threads, does not
// wait for them.
struct Host {
  std::mutex mutex;  // guards all below
  pid_t owner = 0;
  std::vector<Hosted> all;
  std::vector<RootService*> inherited;  // the parent's, whose threads a forked child does not have to join

  // The mutex is held. In a forked child: sets aside what is the parent's.
  void takeOver() {
    if (owner == getpid()) {
      return;
    }
    for (Hosted& parents : all) {
      inherited.push_back(parents.service.release());
    }
    all.clear();
    owner = getpid();
  }
};

Host& host() {
  static auto* const instance = new Host;
  return *instance;
}

struct EndAtExit {
  ~EndAtExit() {
    if (host().owner == getpid()) {
      host().all.clear();
    }
  }
};

}  // namespace

void hostRoot(std::unique_ptr<RootService> service, RootUse use) {
  static const EndAtExit endAtExit;
  const std::lock_guard lock(host().mutex);
  host().takeOver();
  std::erase_if(host().all, [](const Hosted& hosted) { return hosted.service->finished(); });
  host().all.push_back({std::move(service), use});
}

void endLaunchRoots() {
  const std::lock_guard lock(host().mutex);
  host().takeOver();
  std::erase_if(host().all, [](const Hosted& hosted) {
    return hosted.use == RootUse::Launch && hosted.service->doorOpen();
  });
}

}  // namespace peal
