#include "tools/common/local_ranks.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <utility>
#include <vector>

#include "tools/common/error.h"

namespace peal::tools {
namespace {

using Clock = std::chrono::steady_clock;

// After Ctrl-C nobody wants to wait for the ordinary grace.
constexpr std::chrono::milliseconds kInterruptGrace{2000};
// Ranks that somebody stopped (SIGSTOP) cannot end by themselves, however long they are given.
constexpr std::chrono::milliseconds kStoppedGrace{1000};

struct Child {
  int rank = 0;
  pid_t pid = 0;
  bool running = false;
  int stoppedBy = 0;  // the signal, while it is stopped
};

struct Failure {
  int rank = 0;
  int status = 0;  // of waitpid
};

bool bySignal(const Failure& failure) { return WIFSIGNALED(failure.status); }

int exitCode(const Failure& failure) {
  return bySignal(failure) ? 128 + WTERMSIG(failure.status) : WEXITSTATUS(failure.status);
}

std::string describe(const Failure& failure) {
  if (bySignal(failure)) {
    const int number = WTERMSIG(failure.status);
    return fmt::format("rank {} was killed by signal {} ({})", failure.rank, number, strsignal(number));
  }
  return fmt::format("rank {} ended with exit code {}", failure.rank, WEXITSTATUS(failure.status));
}

bool isIgnored(int number) {
  struct sigaction action {};
  return sigaction(number, nullptr, &action) == 0 && action.sa_handler == SIG_IGN;
}

// The signals that the parent waits for; blocked in it so that sigtimedwait sees them. What the caller's
// caller chose to ignore (nohup, a background job) stays ignored.
sigset_t watchedSignals() {
  signal(SIGCHLD, SIG_DFL);  // were it ignored, the system would throw the exit codes away
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGCHLD);
  for (const int number : {SIGINT, SIGTERM, SIGHUP}) {
    if (!isIgnored(number)) {
      sigaddset(&set, number);
    }
  }
  return set;
}

// Owns the children from fork to the last waitpid.
class Family {
 public:
  explicit Family(const LocalRanksOptions& options) : options_(options) {}
  ~Family() {
    signalAll(SIGKILL);
    for (Child& child : children_) {
      if (child.running) {
        waitpid(child.pid, nullptr, 0);
      }
    }
  }
  Family(const Family&) = delete;
  Family& operator=(const Family&) = delete;

  void add(int rank, pid_t pid) { children_.push_back({rank, pid, true}); }

  // Returns the first failure, or nothing; `interruption` is the signal that ended the wait, or 0.
  std::optional<Failure> wait(const sigset_t& watched, int* interruption) {
    std::optional<Clock::time_point> killAt, stoppedKillAt;
    while (reap()) {
      if (firstFailure_ && !killAt) {
        killAt = Clock::now() + std::chrono::milliseconds(options_.graceMs);
      }
      if (!firstFailure_ || !onlyStopped()) {
        stoppedKillAt.reset();
      } else if (!stoppedKillAt) {
        stoppedKillAt = Clock::now() + kStoppedGrace;
      }
      const int number = nextSignal(watched, stoppedKillAt ? std::min(*stoppedKillAt, *killAt) : killAt);
      if (number > 0 && number != SIGCHLD) {
        *interruption = number;
        signalAll(SIGTERM);
        killAt = Clock::now() + kInterruptGrace;
      }
      if ((killAt && Clock::now() >= *killAt) || (stoppedKillAt && Clock::now() >= *stoppedKillAt)) {
        tellStopped();
        signalAll(SIGKILL);
      }
    }
    return firstFailure_;
  }

 private:
  // Collects those that have ended; false when none is left. Of several that ended since the last look, one
  // that a signal killed is the likelier cause.
  bool reap() {
    bool anyRunning = false;
    std::optional<Failure> seen;
    for (Child& child : children_) {
      int status = 0;
      while (child.running && waitpid(child.pid, &status, WNOHANG | WUNTRACED | WCONTINUED) == child.pid) {
        child.stoppedBy = WIFSTOPPED(status) ? WSTOPSIG(status) : 0;
        if (WIFSTOPPED(status) || WIFCONTINUED(status)) {
          continue;
        }
        child.running = false;
        const Failure ended{child.rank, status};
        if (exitCode(ended) != 0 && (!seen || (bySignal(ended) && !bySignal(*seen)))) {
          seen = ended;
        }
      }
      anyRunning = anyRunning || child.running;
    }
    // A rank's sockets close before it has ended, so one that noticed can have ended earlier.
    const bool likelier =
        seen && firstFailure_ && bySignal(*seen) && !bySignal(*firstFailure_) && !signalled_;
    if (seen && (!firstFailure_ || likelier)) {
      firstFailure_ = seen;
    }
    return anyRunning;
  }

  // Whether all that still run are stopped.
  bool onlyStopped() const {
    return std::all_of(children_.begin(), children_.end(),
                       [](const Child& child) { return !child.running || child.stoppedBy != 0; });
  }

  // Those may be why the others failed.
  void tellStopped() {
    for (Child& child : children_) {
      if (const int number = child.running ? std::exchange(child.stoppedBy, 0) : 0; number != 0) {
        fmt::print(stderr, "rank {} was stopped by signal {} ({}), and is killed\n", child.rank, number,
                   strsignal(number));
      }
    }
  }

  // 0 when killAt has come, else the signal that arrived. Without killAt it waits as long as it takes: the
  // ranks' own deadlines end them.
  static int nextSignal(const sigset_t& watched, const std::optional<Clock::time_point>& killAt) {
    timespec timeout{1, 0};
    if (killAt) {
      const auto left = std::chrono::duration_cast<std::chrono::nanoseconds>(*killAt - Clock::now()).count();
      const long bounded = static_cast<long>(std::min<int64_t>(std::max<int64_t>(left, 1000000), 1000000000));
      timeout = {bounded / 1000000000, bounded % 1000000000};
    }
    const int number = sigtimedwait(&watched, nullptr, &timeout);
    return number > 0 ? number : 0;
  }

  void signalAll(int number) {
    signalled_ = true;
    for (const Child& child : children_) {
      if (child.running) {
        kill(child.pid, number);
      }
    }
  }

  LocalRanksOptions options_;
  std::vector<Child> children_;
  std::optional<Failure> firstFailure_;
  bool signalled_ = false;  // what ends by a signal now may have ended by ours
};

[[noreturn]] void runChild(LocalRank local, pid_t parent, const sigset_t& mask,
                           const std::function<int(LocalRank&)>& body) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) {
    _exit(kExitFailure);  // the parent died before prctl could see it
  }
  sigprocmask(SIG_SETMASK, &mask, nullptr);
  const int code = guard(fmt::format("rank {}", local.rank()), [&] { return body(local); });
  std::exit(code);
}

}  // namespace

pealUniqueId LocalRank::takeUniqueId() {
  pealUniqueId id{};
  if (rank_ == 0) {
    check(pealGetUniqueId(&id), "pealGetUniqueId");
    for (int reader = 1; reader < size_; ++reader) {
      // Shorter than PIPE_BUF: written whole. This process holds a read end too, so no SIGPIPE.
      if (write(idWriteFd_, &id, sizeof(id)) != static_cast<ssize_t>(sizeof(id))) {
        throw ToolError(fmt::format("cannot hand the unique id to the other ranks: {}", strerror(errno)));
      }
    }
    close(idWriteFd_);
  } else {
    // Copies are written whole and read whole: a reader never gets parts of two.
    ssize_t got = 0;
    do {
      got = read(idReadFd_, &id, sizeof(id));
    } while (got < 0 && errno == EINTR);
    if (got != static_cast<ssize_t>(sizeof(id))) {
      throw ToolError("rank 0 ended before it made the unique id.");
    }
  }
  close(idReadFd_);
  return id;
}

int runLocalRanks(int ranks, const std::function<int(LocalRank&)>& body, const LocalRanksOptions& options) {
  if (ranks < 1) {
    throw UsageError(fmt::format("{} ranks: at least 1 is needed.", ranks));
  }
  // Default capacity 64 KiB holds 511 ids, so that rank 0 need not wait for its readers.
  int idPipe[2];
  if (pipe2(idPipe, O_CLOEXEC) != 0) {
    throw ToolError(fmt::format("cannot make a pipe: {}", strerror(errno)));
  }
  std::fflush(nullptr);  // or every child would print what is buffered again
  const sigset_t watched = watchedSignals();
  sigset_t mask;
  sigprocmask(SIG_BLOCK, &watched, &mask);
  const pid_t parent = getpid();

  int interruption = 0;
  std::optional<Failure> failure;
  int forkErrno = 0;
  {
    Family family(options);
    for (int rank = 0; rank < ranks; ++rank) {
      const pid_t pid = fork();
      if (pid == 0) {
        if (rank != 0) {
          close(idPipe[1]);  // so that the others see rank 0's end of it close
        }
        runChild(LocalRank(rank, ranks, idPipe[0], idPipe[1]), parent, mask, body);
      }
      if (pid < 0) {
        forkErrno = errno;
        break;
      }
      family.add(rank, pid);
    }
    close(idPipe[0]);
    close(idPipe[1]);
    if (forkErrno == 0) {
      failure = family.wait(watched, &interruption);
    }
  }
  sigprocmask(SIG_SETMASK, &mask, nullptr);
  if (forkErrno != 0) {
    throw ToolError(
        fmt::format("cannot start {} processes: {}. See `ulimit -u`.", ranks, strerror(forkErrno)));
  }
  if (interruption != 0) {
    fmt::print(stderr, "interrupted by signal {} ({}): all ranks ended.\n", interruption,
               strsignal(interruption));
    signal(interruption, SIG_DFL);
    raise(interruption);
  }
  if (failure) {
    fmt::print(stderr, "{}\n", describe(*failure));
    return exitCode(*failure);
  }
  return 0;
}

}  // namespace peal::tools
