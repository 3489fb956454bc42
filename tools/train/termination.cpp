#include "tools/train/termination.h"

#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdint>
#include <utility>

namespace peal::train {
namespace {

volatile int askedEvent = -1;  // of the handler; written before it is installed

void tell(int event) {
  const uint64_t one = 1;
  const int before = errno;
  static_cast<void>(!write(event, &one, sizeof one));
  errno = before;
}

void onTermination(int /*number*/) { tell(askedEvent); }

}  // namespace

LastWords::LastWords(int momentMs, std::function<void()> speak)
    : momentMs_(momentMs), speak_(std::move(speak)) {
  struct sigaction before {};
  sigaction(SIGTERM, nullptr, &before);
  if (before.sa_handler == SIG_IGN) {
    return;
  }
  ended_ = eventfd(0, EFD_CLOEXEC);
  askedEvent = eventfd(0, EFD_CLOEXEC);
  if (ended_ < 0 || askedEvent < 0) {
    return;  // a run without last words
  }
  watcher_ = std::thread([this] { watch(); });
  struct sigaction action {};
  action.sa_handler = onTermination;
  action.sa_flags = SA_RESTART;
  sigaction(SIGTERM, &action, nullptr);
}

LastWords::~LastWords() {
  if (watcher_.joinable()) {
    tell(ended_);
    watcher_.join();
    signal(SIGTERM, SIG_DFL);
  }
  const int asked = askedEvent;
  askedEvent = -1;  // a handler that still runs writes nowhere
  for (const int event : {ended_, asked}) {
    if (event >= 0) {
      close(event);
    }
  }
}

void LastWords::watch() {
  // Signals are for the other threads: here one would end the second wait, and nobody would wait again.
  sigset_t all;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, nullptr);
  std::array<pollfd, 2> events{{{ended_, POLLIN, 0}, {askedEvent, POLLIN, 0}}};
  while (poll(events.data(), events.size(), -1) < 0 && errno == EINTR) {
  }
  if (events[0].revents == 0 && poll(events.data(), 1, momentMs_) == 0) {
    speak_();
    signal(SIGTERM, SIG_DFL);
    kill(getpid(), SIGTERM);
  }
}

}  // namespace peal::train
