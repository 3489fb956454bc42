#include "transports/network/meeting.h"

#include <fmt/format.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <list>

#include "lib/base/log.h"
#include "lib/bootstrap/open_root.h"
#include "lib/bootstrap/roster.h"
#include "lib/bootstrap/wire.h"
#include "transports/network/card.h"
#include "transports/network/vote.h"

namespace peal::network {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kStagger{200};  // between the starts of a peer's addresses
constexpr int kMeetMostMs = 20000;     // all listeners were open before anybody called
constexpr int kAfterFailureMs = 1000;  // for the rest, once one peer is known to be out of reach
constexpr int kCallerMostMs = 10000;   // an accepted connection proves itself within
constexpr int kSilentMostMs = 1000;    // and says its first word within, where others wait for its place
constexpr size_t kStrangersBeyondPeers = 16;

// The parts of the handshake have fixed lengths: reads exactly so many bytes and not one of what follows.
enum class Read { More, Whole, Ended };
Read readWhole(const Socket& socket, Bytes& into, size_t bytes) {
  std::array<std::byte, 128> buffer;
  while (into.size() < bytes) {
    const ssize_t got = ::recv(socket.fd(), buffer.data(), std::min(buffer.size(), bytes - into.size()), 0);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) {
      return Read::More;
    }
    if (got <= 0) {
      return Read::Ended;
    }
    append(into, ByteView(buffer).first(static_cast<size_t>(got)));
  }
  return Read::Whole;
}

// A fresh connection's send buffer holds far more than the handshake's few bytes.
bool sendWhole(const Socket& socket, ByteView bytes) {
  return ::send(socket.fd(), bytes.data(), bytes.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(bytes.size());
}

// A host that vanishes sends no end: the kernel asks after 4 s of silence, and gives up 6 s later, or 10 s
// after bytes that nobody confirms.
void watchForSilence(const Socket& socket) {
  const auto set = [&](int level, int option, int value) {
    // Best effort: a death that sends an end is noticed anyway.
    static_cast<void>(setsockopt(socket.fd(), level, option, &value, sizeof value));
  };
  set(SOL_SOCKET, SO_KEEPALIVE, 1);
  set(IPPROTO_TCP, TCP_KEEPIDLE, 4);
  set(IPPROTO_TCP, TCP_KEEPINTVL, 2);
  set(IPPROTO_TCP, TCP_KEEPCNT, 3);
  set(IPPROTO_TCP, TCP_USER_TIMEOUT, 10000);
}

// One address of a peer that this rank calls.
struct Attempt {
  Address address;
  Socket socket;
  bool started = false;
  bool opened = false;  // connected, and our Open is on its way
  bool ended = false;
  Nonce nonce{};
  Bytes challenge;
  std::string reason;

  void end(std::string why) {
    ended = true;
    reason = std::move(why);
    socket.close();
  }
};

// A peer that this rank calls: all its addresses, a little apart; the first that proves the secret is kept.
struct Callee {
  int rank = -1;
  Key key{};
  std::list<Attempt> attempts;
  Clock::time_point nextStart = Clock::now();
  bool met = false;

  bool exhausted() const {
    return !met &&
           std::all_of(attempts.begin(), attempts.end(), [](const Attempt& one) { return one.ended; });
  }
  std::string reasons() const {
    std::string text;
    for (const Attempt& attempt : attempts) {
      const char* pending = attempt.opened    ? "connected, but nobody of this communicator answered"
                            : attempt.started ? "no answer"
                                              : "not tried in time";
      text += fmt::format("{}{}: {}", text.empty() ? "" : "; ", attempt.address.text(),
                          attempt.ended ? attempt.reason : pending);
    }
    return text.empty() ? "it offers no address" : text;
  }
};

// " (eth0)", or nothing if it has gone meanwhile.
std::string interfaceOf(const Address& address) {
  const Result<std::vector<InterfaceAddress>> locals = localAddresses();
  for (const InterfaceAddress& local : locals ? *locals : std::vector<InterfaceAddress>()) {
    if (local.address.sameHost(address)) {
      return fmt::format(" ({})", local.interface);
    }
  }
  return "";
}

// Somebody who called this rank.
struct Caller {
  Socket socket;
  Deadline deadline = Deadline::afterMs(kCallerMostMs);
  Deadline silence = Deadline::afterMs(kSilentMostMs);
  bool opened = false;
  Nonces nonces;
  Bytes received;
};

class Meeting {
 public:
  Meeting(int rank, int size, const Key& secret, const MeetingOptions& options, OpenedRoot opened,
          const std::vector<Card>& cards)
      : rank_(rank), size_(size), opened_(std::move(opened)) {
    const int mostMs = std::min(options.deadline.leftMs(), kMeetMostMs);
    deadline_ = Deadline::afterMs(mostMs);
    key_ = listenerKey(secret, rank, cards[static_cast<size_t>(rank)]);
    for (const int peer : options.peers) {
      if (peer < rank) {
        awaited_.push_back(peer);
        continue;
      }
      const Card& card = cards[static_cast<size_t>(peer)];
      Callee& callee = callees_.emplace_back();
      callee.rank = peer;
      callee.key = listenerKey(secret, peer, card);
      for (const Address& address : asSeenFromHere(card.addresses)) {
        callee.attempts.emplace_back().address = address;
      }
    }
  }

  Result<std::vector<Connection>> run() {
    while (!complete() && !deadline_.passed()) {
      callOthers();
      if (!failing_ && std::any_of(callees_.begin(), callees_.end(),
                                   [](const Callee& callee) { return callee.exhausted(); })) {
        failing_ = true;
        deadline_ = Deadline::afterMs(std::min(deadline_.leftMs(), kAfterFailureMs));
      }
      turn();
    }
    if (!complete()) {
      return failure();
    }
    return std::move(met_);
  }

 private:
  bool complete() const {
    return awaited_.empty() &&
           std::all_of(callees_.begin(), callees_.end(), [](const Callee& callee) { return callee.met; });
  }

  // ---- calling ----

  void callOthers() {
    for (Callee& callee : callees_) {
      if (callee.met) {
        continue;
      }
      const bool anyOpen = std::any_of(callee.attempts.begin(), callee.attempts.end(),
                                       [](const Attempt& one) { return one.started && !one.ended; });
      const auto next = std::find_if(callee.attempts.begin(), callee.attempts.end(),
                                     [](const Attempt& one) { return !one.started; });
      if (next != callee.attempts.end() && (!anyOpen || Clock::now() >= callee.nextStart)) {
        callee.nextStart = Clock::now() + kStagger;
        begin(callee, *next);
      }
    }
  }

  void begin(const Callee& callee, Attempt& attempt) {
    attempt.started = true;
    attempt.socket =
        Socket(::socket(attempt.address.family(), SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (attempt.socket.fd() < 0) {
      const int errnum = errno;
      const std::string shortage = shortageText(errnum);
      attempt.end(shortage.empty() ? "socket: " + errnoText(errnum)
                                   : "this process cannot open a socket: " + shortage);
      return;
    }
    sendAtOnce(attempt.socket);
    if (::connect(attempt.socket.fd(), attempt.address.pointer(), attempt.address.length) == 0) {
      sayOpen(callee, attempt);
    } else if (errno != EINPROGRESS) {
      attempt.end(errnoText(errno));
    }
  }

  void sayOpen(const Callee& callee, Attempt& attempt) {
    attempt.nonce = freshNonce();
    attempt.opened = true;
    if (!sendWhole(attempt.socket, makeOpen(callee.key, attempt.nonce))) {
      attempt.end("it hung up at once");
    }
  }

  void advance(Callee& callee, Attempt& attempt) {
    if (!attempt.opened) {
      int fault = 0;
      socklen_t length = sizeof fault;
      if (getsockopt(attempt.socket.fd(), SOL_SOCKET, SO_ERROR, &fault, &length) != 0) {
        fault = errno;
      }
      if (fault != 0) {
        attempt.end(errnoText(fault));
      } else {
        sayOpen(callee, attempt);
      }
      return;
    }
    const Read read = readWhole(attempt.socket, attempt.challenge, kChallengeBytes);
    if (read == Read::More) {
      return;
    }
    const std::optional<Nonce> theirs =
        read == Read::Whole ? readChallenge(callee.key, attempt.nonce, attempt.challenge) : std::nullopt;
    if (!theirs) {
      attempt.end(read == Read::Ended
                      ? "it hung up when it saw this rank's greeting: it is not that rank (another program, "
                        "another communicator, or an address that means another machine here)"
                      : "it answered, but not as that rank of this communicator");
      return;
    }
    const Nonces nonces{attempt.nonce, *theirs};
    const JoinRequest join{static_cast<uint32_t>(rank_), static_cast<uint32_t>(size_), 0};
    if (!sendWhole(attempt.socket, makeJoin(callee.key, nonces, join))) {
      attempt.end("it hung up during the greeting");
      return;
    }
    log(LogLevel::Info, fmt::format("rank {}: control connection to rank {} at {}", rank_, callee.rank,
                                    attempt.address.text()));
    callee.met = true;
    keep(callee.rank, std::move(attempt.socket), callee.key, nonces, Direction::RankToRoot);
    callee.attempts.clear();
  }

  // ---- being called ----

  // A peer may call over all addresses of this rank at once.
  bool hasRoom() const {
    return callers_.size() < awaited_.size() * opened_.offered.size() + kStrangersBeyondPeers;
  }

  // Where there is no room only those go who have long been silent. Of the others some may be peers, whose
  // greeting is on its way; who waits at the door meanwhile waits in the kernel's queue.
  bool canAccept() {
    if (hasRoom()) {
      return true;
    }
    const auto silent = std::find_if(callers_.begin(), callers_.end(),
                                     [](const Caller& one) { return !one.opened && one.silence.passed(); });
    if (silent == callers_.end()) {
      return false;
    }
    callers_.erase(silent);
    ++strangers_;
    return true;
  }

  void acceptCallers(const Socket& listener) {
    while (canAccept()) {
      Caller caller;
      caller.socket = Socket(::accept4(listener.fd(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
      if (caller.socket.fd() < 0) {
        return;  // nobody, or no descriptor: those who wait are accepted when there is one
      }
      sendAtOnce(caller.socket);
      callers_.push_back(std::move(caller));
    }
  }

  // Whether the conversation is over: met, or a stranger.
  bool listenTo(Caller& caller) {
    const Read read = readWhole(caller.socket, caller.received, caller.opened ? kJoinBytes : kOpenBytes);
    if (read == Read::More) {
      return false;
    }
    const bool good = read == Read::Whole && (caller.opened ? takeJoin(caller) : takeOpen(caller));
    if (!good) {
      ++strangers_;
    }
    return !good || caller.socket.fd() < 0;  // its socket has moved to the met
  }

  bool takeOpen(Caller& caller) {
    const std::optional<Nonce> theirs = readOpen(key_, caller.received);
    if (!theirs) {
      return false;
    }
    caller.nonces = {*theirs, freshNonce()};
    caller.received.clear();
    caller.opened = true;
    return sendWhole(caller.socket, makeChallenge(key_, caller.nonces));
  }

  bool takeJoin(Caller& caller) {
    const std::optional<JoinRequest> join = readJoin(key_, caller.nonces, caller.received);
    if (!join || join->size != static_cast<uint32_t>(size_)) {
      return false;
    }
    const auto peer = std::find(awaited_.begin(), awaited_.end(), static_cast<int>(join->rank));
    if (peer == awaited_.end()) {
      return false;
    }
    keep(*peer, std::move(caller.socket), key_, caller.nonces, Direction::RootToRank);
    awaited_.erase(peer);
    return true;
  }

  // ---- both ----

  void keep(int peer, Socket socket, const Key& key, const Nonces& nonces, Direction outgoing) {
    const Direction incoming =
        outgoing == Direction::RankToRoot ? Direction::RootToRank : Direction::RankToRoot;
    watchForSilence(socket);
    met_.push_back(
        {peer, std::move(socket), directionKey(key, nonces, outgoing), directionKey(key, nonces, incoming)});
  }

  void turn() {
    std::vector<pollfd> polled;
    const bool accepts = canAccept();  // if not, looking at the door would only spin
    for (const Socket& listener : opened_.listeners) {
      polled.push_back({listener.fd(), static_cast<short>(accepts ? POLLIN : 0), 0});
    }
    for (const Caller& caller : callers_) {
      polled.push_back({caller.socket.fd(), POLLIN, 0});
    }
    std::vector<std::pair<Callee*, Attempt*>> calls;
    for (Callee& callee : callees_) {
      for (Attempt& attempt : callee.attempts) {
        if (attempt.started && !attempt.ended) {
          polled.push_back({attempt.socket.fd(), static_cast<short>(attempt.opened ? POLLIN : POLLOUT), 0});
          calls.emplace_back(&callee, &attempt);
        }
      }
    }
    const int waitMs = std::min<int>(deadline_.leftMs(), static_cast<int>(kStagger.count()) / 4);
    if (::poll(polled.data(), polled.size(), waitMs) < 0) {
      return;
    }
    size_t index = opened_.listeners.size();
    for (auto caller = callers_.begin(); caller != callers_.end(); ++index) {
      const bool over = (polled[index].revents != 0 && listenTo(*caller)) ||
                        (caller->deadline.passed() && ++strangers_ > 0);
      caller = over ? callers_.erase(caller) : std::next(caller);
    }
    for (const auto& [callee, attempt] : calls) {
      // The callee may have been met over another address in this turn, which ended this attempt.
      if (polled[index++].revents != 0 && !callee->met) {
        advance(*callee, *attempt);
      }
    }
    for (size_t i = 0; i < opened_.listeners.size(); ++i) {
      if (polled[i].revents != 0) {
        acceptCallers(opened_.listeners[i]);
      }
    }
  }

  // Those who had not met this rank when it gave up because another is out of reach are not accused.
  Error failure() const {
    std::string text;
    std::vector<int> abandoned = failing_ ? awaited_ : std::vector<int>();
    for (const Callee& callee : callees_) {
      if (!callee.met && failing_ && !callee.exhausted()) {
        abandoned.push_back(callee.rank);
      } else if (!callee.met) {
        text += fmt::format("rank {} cannot reach rank {} for control messages: {}. ", rank_, callee.rank,
                            callee.reasons());
      }
    }
    if (!abandoned.empty()) {
      text += fmt::format("rank {} then waited no longer for {}. ", rank_, rankList(abandoned));
    } else if (!awaited_.empty()) {
      std::string where;
      for (const Address& address : opened_.offered) {
        where += (where.empty() ? "" : ", ") + address.text() + interfaceOf(address);
      }
      text += fmt::format(
          "rank {} got no control connection from {}; it listens at {}; {} strangers "
          "were turned away. ",
          rank_, rankList(awaited_), where, strangers_);
    }
    text += "PEAL_INTERFACE selects the interfaces; a firewall may be in between.";
    return {pealSystemError, text};
  }

  const int rank_;
  const int size_;
  OpenedRoot opened_;
  Deadline deadline_ = Deadline::afterMs(0);
  bool failing_ = false;  // a peer is out of reach: the others get a moment more
  Key key_{};
  std::list<Callee> callees_;
  std::list<Caller> callers_;
  std::vector<int> awaited_;
  std::vector<Connection> met_;
  int strangers_ = 0;
};

Result<OpenedRoot> openListeners(const MeetingOptions& options) {
  PEAL_TRY(startSodium());
  return options.peers.empty() ? OpenedRoot{} : openTcpRoot(0, options.interfaces, "");
}

Result<std::vector<Card>> exchangeCards(Exchange& exchange, const Result<OpenedRoot>& opened) {
  PEAL_TRY(agree(exchange, opened ? Result<void>() : Result<void>(opened.error())));
  const Result<std::vector<Bytes>> blobs = exchange.allGather(encode(Card{freshNonce(), opened->offered}));
  if (!blobs) {
    return blobs.error();
  }
  std::vector<Card> cards;
  for (size_t rank = 0; rank < blobs->size(); ++rank) {
    Result<Card> card = decodeCard((*blobs)[rank]);
    if (!card) {
      return Error{card.error().code, fmt::format("rank {} sent {}", rank, card.error().message)};
    }
    cards.push_back(std::move(*card));
  }
  return cards;
}

}  // namespace

Result<std::vector<Connection>> meetPeers(Exchange& exchange, const Key& secret,
                                          const MeetingOptions& options) {
  Result<OpenedRoot> opened = openListeners(options);
  if (opened) {
    for (Address& address : opened->offered) {
      address.setPort(opened->port);
    }
  }
  Result<std::vector<Card>> cards = exchangeCards(exchange, opened);
  if (!cards) {
    return cards.error();
  }
  Result<std::vector<Connection>> met =
      Meeting(exchange.rank(), exchange.size(), secret, options, std::move(*opened), *cards).run();
  PEAL_TRY(agree(exchange, met ? Result<void>() : Result<void>(met.error())));
  return met;
}

}  // namespace peal::network
