#include "lib/bootstrap/connect.h"

#include <fmt/format.h>
#include <netinet/in.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>

namespace peal {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kStagger{30};  // between the starts of two addresses
constexpr int64_t kFirstPauseMs = 1;  // between passes over all addresses, doubled each time
constexpr int64_t kMostPauseMs = 50;
constexpr milliseconds kRejectedMost{3000};  // somebody answers there, but not with our secret
constexpr int kHungUpPassesMost = 8;         // the root is busy with strangers

enum class Outcome { Pending, Unreachable, HungUp, Rejected };

struct Attempt {
  Address address;
  Socket socket;
  bool started = false;
  bool opened = false;  // connected, and our Open is on its way
  Nonces nonces;
  Bytes challenge;
  Outcome outcome = Outcome::Pending;
  std::string reason;

  void end(Outcome how, std::string why) {
    outcome = how;
    reason = std::move(why);
    socket.close();
  }
};

std::vector<Address> candidates(const IdContent& content) {
  return content.place == RootPlace::Unix ? std::vector<Address>{unixAddress(content.name)}
                                          : asSeenFromHere(content.addresses);
}

// One pass: every address once.
class Pass {
 public:
  Pass(const std::vector<Address>& addresses, const Key& key) : key_(key) {
    for (const Address& address : addresses) {
      attempts_.emplace_back().address = address;
    }
  }

  // The attempt that reached the root, or nullptr: all have ended, or the deadline has passed.
  Attempt* run(Deadline deadline) {
    size_t begun = 0;
    Clock::time_point nextStart = Clock::now();
    while (!deadline.passed()) {
      while (begun < attempts_.size() && (Clock::now() >= nextStart || !anyPending())) {
        begin(attempts_[begun++]);
        nextStart = Clock::now() + kStagger;
      }
      if (!anyPending()) {
        return nullptr;
      }
      const int64_t waitMs = begun < attempts_.size() ? kStagger.count() : deadline.leftMs();
      if (Attempt* winner = pollOnce(static_cast<int>(std::min<int64_t>(waitMs, deadline.leftMs())))) {
        return winner;
      }
    }
    cut_ = true;
    for (Attempt& attempt : attempts_) {
      if (attempt.outcome == Outcome::Pending) {
        attempt.end(Outcome::Unreachable, attempt.opened    ? "connected, but no answer came"
                                          : attempt.started ? "no answer"
                                                            : "the deadline passed before it was tried");
      }
    }
    return nullptr;
  }

  // Whether the deadline ended it before all addresses had their answer.
  bool cut() const { return cut_; }

  bool any(Outcome outcome) const {
    return std::any_of(attempts_.begin(), attempts_.end(),
                       [&](const Attempt& attempt) { return attempt.outcome == outcome; });
  }

  std::string reasons() const {
    std::string text;
    for (const Attempt& attempt : attempts_) {
      text += fmt::format("{}{}: {}", text.empty() ? "" : "; ", attempt.address.text(), attempt.reason);
    }
    return text;
  }

 private:
  bool anyPending() const {
    return std::any_of(attempts_.begin(), attempts_.end(), [](const Attempt& attempt) {
      return attempt.started && attempt.outcome == Outcome::Pending;
    });
  }

  void begin(Attempt& attempt) {
    attempt.started = true;
    attempt.socket =
        Socket(::socket(attempt.address.family(), SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (attempt.socket.fd() < 0) {
      const int errnum = errno;
      const std::string shortage = shortageText(errnum);
      attempt.end(Outcome::Unreachable, shortage.empty() ? "socket: " + errnoText(errnum)
                                                         : "this process cannot open a socket: " + shortage);
      return;
    }
    sendAtOnce(attempt.socket);
    if (::connect(attempt.socket.fd(), attempt.address.pointer(), attempt.address.length) == 0) {
      sendOpen(attempt);
    } else if (errno != EINPROGRESS) {
      attempt.end(Outcome::Unreachable, errnoText(errno));
    }
  }

  void sendOpen(Attempt& attempt) {
    if (attempt.address.family() == AF_UNIX) {
      ucred credentials{};
      socklen_t length = sizeof credentials;
      if (getsockopt(attempt.socket.fd(), SOL_SOCKET, SO_PEERCRED, &credentials, &length) != 0 ||
          credentials.uid != geteuid()) {
        attempt.end(Outcome::Rejected, fmt::format("it belongs to user {}, not to user {} as this process",
                                                   credentials.uid, geteuid()));
        return;
      }
    }
    attempt.nonces.rank = freshNonce();
    const Bytes open = makeOpen(key_, attempt.nonces.rank);
    // A fresh connection's send buffer holds far more than these few bytes.
    const ssize_t sent = ::send(attempt.socket.fd(), open.data(), open.size(), MSG_NOSIGNAL);
    if (sent != static_cast<ssize_t>(open.size())) {
      attempt.end(Outcome::HungUp, "hung up at once");
      return;
    }
    attempt.opened = true;
  }

  Attempt* pollOnce(int timeoutMs) {
    std::vector<pollfd> polled;
    std::vector<Attempt*> waiting;
    for (Attempt& attempt : attempts_) {
      if (attempt.started && attempt.outcome == Outcome::Pending) {
        polled.push_back({attempt.socket.fd(), static_cast<short>(attempt.opened ? POLLIN : POLLOUT), 0});
        waiting.push_back(&attempt);
      }
    }
    if (poll(polled.data(), polled.size(), timeoutMs) <= 0) {
      return nullptr;
    }
    for (size_t i = 0; i < waiting.size(); ++i) {
      if (polled[i].revents == 0) {
        continue;
      }
      if (!waiting[i]->opened) {
        connected(*waiting[i]);
      } else if (answered(*waiting[i])) {
        return waiting[i];
      }
    }
    return nullptr;
  }

  void connected(Attempt& attempt) {
    int fault = 0;
    socklen_t length = sizeof fault;
    if (getsockopt(attempt.socket.fd(), SOL_SOCKET, SO_ERROR, &fault, &length) != 0) {
      fault = errno;
    }
    if (fault != 0) {
      attempt.end(Outcome::Unreachable, errnoText(fault));
      return;
    }
    sendOpen(attempt);
  }

  // Whether the root has proved the secret.
  bool answered(Attempt& attempt) {
    std::array<std::byte, kChallengeBytes> buffer;
    const ssize_t got =
        ::recv(attempt.socket.fd(), buffer.data(), kChallengeBytes - attempt.challenge.size(), 0);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) {
      return false;
    }
    if (got <= 0) {
      attempt.end(Outcome::HungUp,
                  "it hung up when it saw this rank's hello: another secret, or another program");
      return false;
    }
    append(attempt.challenge, ByteView(buffer).first(static_cast<size_t>(got)));
    if (attempt.challenge.size() < kChallengeBytes) {
      return false;
    }
    const std::optional<Nonce> rootNonce = readChallenge(key_, attempt.nonces.rank, attempt.challenge);
    if (!rootNonce) {
      attempt.end(Outcome::Rejected, "what answers there does not know the secret: another program");
      return false;
    }
    attempt.nonces.root = *rootNonce;
    return true;
  }

  const Key& key_;
  std::vector<Attempt> attempts_;
  bool cut_ = false;
};

std::string remedy(const IdContent& content) {
  if (content.start == RootStart::Before) {
    return "The process that made the unique id has ended, its rendezvous is over (all ranks had joined, or "
           "PEAL_INIT_TIMEOUT_MS had passed), or a firewall stands between; PEAL_INTERFACE chooses which "
           "addresses it offers.";
  }
  if (content.place == RootPlace::Unix) {
    return "Rank 0 has not started, or has given up. Ranks that were started from different shells or "
           "machines "
           "need PEAL_ROOT=host:port.";
  }
  return "Rank 0 has not started, has given up, or listens elsewhere. PEAL_ROOT=host:port names its place, "
         "and PEAL_SECRET must be the same on every rank.";
}

}  // namespace

Result<RootConnection> reachRoot(const IdContent& content, const Key& key, Deadline deadline) {
  const std::vector<Address> addresses = candidates(content);
  if (addresses.empty()) {
    return Error{pealSystemError,
                 "the unique id has only link-local IPv6 addresses, and this machine has no interface with "
                 "one. Give the first rank's machine an address that others can route to."};
  }
  int64_t pauseMs = kFirstPauseMs;
  int hungUpPasses = 0;
  // Of the last pass in which somebody answered, else of the last that was not cut: a root that has gone
  // since then must not hide why it refused this rank.
  std::string reasons;
  bool answered = false;
  constexpr auto kNever = Clock::time_point::max();
  Clock::time_point rejectedSince = kNever;
  while (true) {
    Pass pass(addresses, key);
    if (Attempt* winner = pass.run(deadline)) {
      return RootConnection{std::move(winner->socket), winner->nonces, winner->address.text()};
    }
    const bool hungUp = pass.any(Outcome::HungUp);
    const bool rejected = pass.any(Outcome::Rejected);
    if (reasons.empty() || (!pass.cut() && (hungUp || rejected || !answered))) {
      reasons = pass.reasons();
    }
    answered = answered || ((hungUp || rejected) && !pass.cut());
    if (!hungUp && !rejected) {
      rejectedSince = kNever;
    } else if (rejectedSince == kNever) {
      rejectedSince = Clock::now();
    }
    hungUpPasses += hungUp ? 1 : 0;
    const bool again = content.start == RootStart::Maybe
                           ? rejectedSince == kNever || Clock::now() < rejectedSince + kRejectedMost
                           : hungUp && hungUpPasses < kHungUpPassesMost;
    if (!again || deadline.passed()) {
      return Error{deadline.passed() ? pealTimeout : pealRemoteError,
                   fmt::format("cannot reach the rendezvous. Tried {}. {}", reasons, remedy(content))};
    }
    // Nothing tells when a listener appears, so this one wait is a pause.
    (void)poll(nullptr, 0, static_cast<int>(std::min<int64_t>(pauseMs, deadline.leftMs())));
    pauseMs = std::min(2 * pauseMs, kMostPauseMs);
  }
}

}  // namespace peal
