#include "lib/bootstrap/root.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <system_error>

#include "lib/base/log.h"

namespace peal {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kLinger{2000};    // a failure is told to late ranks for so long
constexpr milliseconds kFarewell{2000};  // for a peer to take its last message
constexpr milliseconds kDrain{500};      // for output at the end of the process

// While it lives, threads that this one starts run none of the application's signal handlers.
class SignalsBlocked {
 public:
  SignalsBlocked() {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~SignalsBlocked() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  SignalsBlocked(const SignalsBlocked&) = delete;
  SignalsBlocked& operator=(const SignalsBlocked&) = delete;

 private:
  sigset_t before_;
};

}  // namespace

Result<std::unique_ptr<RootService>> RootService::start(RootOptions options) {
  // The level is read now: the thread may run while exit() destroys the configuration.
  (void)logLevel();
  std::unique_ptr<RootService> service(new RootService(std::move(options)));
  service->wake_ = Socket(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (service->wake_.fd() < 0) {
    return Error{pealSystemError,
                 fmt::format("eventfd: {}. Raise the limit on open files (ulimit -n).", errnoText(errno))};
  }
  service->reserve_ = Socket(fcntl(service->wake_.fd(), F_DUPFD_CLOEXEC, 0));  // may do without it
  try {
    const SignalsBlocked blocked;
    service->thread_ = std::thread([raw = service.get()] { raw->run(); });
  } catch (const std::system_error& fault) {
    return Error{pealSystemError,
                 fmt::format("the root service's thread did not start: {}. Raise the limit on processes "
                             "(ulimit -u).",
                             fault.what())};
  }
  return service;
}

RootService::RootService(RootOptions options)
    : options_(std::move(options)),
      deadline_(Clock::now() + milliseconds(options_.joinMs)),
      deadlineWaitMs_(options_.joinMs) {}

RootService::~RootService() {
  if (thread_.joinable()) {
    const uint64_t one = 1;
    [[maybe_unused]] const ssize_t written = write(wake_.fd(), &one, sizeof one);
    thread_.join();
  }
}

bool RootService::finished() const {
  return finished_.load(std::memory_order_acquire);  // pairs with the store at the end of run()
}

bool RootService::doorOpen() const {
  return doorOpen_.load(std::memory_order_acquire);  // pairs with the store in closeDoor()
}

void RootService::run() {
  pthread_setname_np(pthread_self(), "peal-root");
  while (!done(Clock::now())) {
    pollOnce();
    checkDeadlines(Clock::now());
    std::erase_if(connections_, [](const auto& connection) { return connection->socket.fd() < 0; });
  }
  closeDoor();
  for (const auto& connection : connections_) {
    connection->socket.shutdownAndClose();
  }
  connections_.clear();
  if (strangers() > 0) {
    log(LogLevel::Warn, fmt::format("rendezvous: {} connections were dropped that did not prove the secret. "
                                    "Something else talks to this port, or a rank has another unique id or "
                                    "PEAL_SECRET.",
                                    strangers()));
  }
  if (!shortage_.empty()) {
    log(LogLevel::Warn, fmt::format("rendezvous: this process had to let ranks wait: {}", shortage_));
  }
  finished_.store(true, std::memory_order_release);  // pairs with finished()
}

bool RootService::done(Clock::time_point now) {
  const bool idle = std::all_of(connections_.begin(), connections_.end(),
                                [](const auto& connection) { return connection->output.empty(); });
  if (stopBy_) {
    return idle || now >= *stopBy_;
  }
  const bool anyProven = std::any_of(connections_.begin(), connections_.end(), [](const auto& connection) {
    return connection->stage == Stage::Member || connection->stage == Stage::Farewell;
  });
  if (anyProven) {
    return false;
  }
  if (failure_) {
    // Late ranks can still come while somebody listens for them.
    const bool allTold = roster_.started() && told_ >= static_cast<size_t>(roster_.size());
    return options_.listeners.empty() || now >= lingerUntil_ || allTold;
  }
  return roster_.complete() || (!roster_.started() && now >= deadline_);
}

int RootService::pollTimeoutMs(Clock::time_point now) const {
  Clock::time_point next = now + std::chrono::hours(1);
  if (stopBy_) {
    next = std::min(next, *stopBy_);
  }
  if (failure_) {
    next = lingerUntil_ > now ? std::min(next, lingerUntil_) : next;
  } else if (!roster_.complete() || roster_.gathering()) {
    next = std::min(next, deadline_);
  }
  if (acceptPausedUntil_ > now) {
    next = std::min(next, acceptPausedUntil_);
  }
  for (const auto& connection : connections_) {
    if (connection->stage != Stage::Member) {
      next = std::min(next, connection->deadline);
    }
  }
  // Rounded up, so that the loop does not spin through the last millisecond.
  const auto left = std::chrono::ceil<milliseconds>(next - now).count();
  return static_cast<int>(std::max<int64_t>(left, 0));
}

void RootService::pollOnce() {
  Clock::time_point now = Clock::now();
  const bool accepting = !stopBy_ && now >= acceptPausedUntil_ && makeRoom(now);
  std::vector<pollfd> polled;
  polled.push_back({wake_.fd(), static_cast<short>(stopBy_ ? 0 : POLLIN), 0});
  for (const Socket& listener : options_.listeners) {
    polled.push_back({listener.fd(), static_cast<short>(accepting ? POLLIN : 0), 0});
  }
  const size_t firstConnection = polled.size();
  for (const auto& connection : connections_) {
    polled.push_back({connection->socket.fd(),
                      static_cast<short>(connection->output.empty() ? POLLIN : POLLIN | POLLOUT), 0});
  }
  const size_t polledConnections = connections_.size();
  if (poll(polled.data(), polled.size(), pollTimeoutMs(now)) <= 0) {
    return;
  }
  if (polled[0].revents != 0) {
    stopBy_ = Clock::now() + kDrain;
  }
  // Members first: they must not wait behind a crowd at the door.
  for (size_t i = 0; i < polledConnections; ++i) {
    Connection& connection = *connections_[i];
    const short events = polled[firstConnection + i].revents;
    if ((events & POLLOUT) != 0) {
      flush(connection);
    }
    if ((events & (POLLIN | POLLHUP | POLLERR)) != 0 && connection.socket.fd() >= 0) {
      readFrom(connection);
    }
  }
  for (size_t i = 0; accepting && i < options_.listeners.size(); ++i) {
    if (polled[1 + i].revents != 0 && options_.listeners[i].fd() >= 0) {
      accept(options_.listeners[i]);
    }
  }
}

void RootService::checkDeadlines(Clock::time_point now) {
  for (const auto& connection : connections_) {
    if (connection->stage == Stage::Member || connection->socket.fd() < 0 || now < connection->deadline) {
      continue;
    }
    if (connection->stage == Stage::Farewell) {
      connection->socket.shutdownAndClose();
    } else {
      dropStranger(*connection, "it did not finish its hello in time");
    }
  }
  if (failure_ || now < deadline_) {
    return;
  }
  if (roster_.started() && !roster_.complete()) {
    fail(withShortage(roster_.joinTimeout(deadlineWaitMs_)));
  } else if (roster_.gathering()) {
    fail(roster_.exchangeTimeout(deadlineWaitMs_));
  }
}

void RootService::shortenDeadline(int64_t leftMs, Clock::time_point now) {
  const Clock::time_point at = now + milliseconds(leftMs);
  if (at < deadline_) {
    deadline_ = at;
    deadlineWaitMs_ = leftMs;
  }
}

// ---- membership --------------------------------------------------------------------------------------

void RootService::handleJoin(Connection& connection) {
  const std::optional<JoinRequest> request = readJoin(options_.key, connection.nonces, connection.hello);
  if (!request) {
    dropStranger(connection, "it did not prove the secret");
    return;
  }
  startMembership(connection);
  if (failure_) {
    tellFailure(connection);
    return;
  }
  if (Result<void> joined = roster_.join(request->rank, request->size, connection.from); !joined) {
    fail(joined.error());
    return;
  }
  connection.rank = static_cast<int>(request->rank);
  shortenDeadline(request->leftMs, Clock::now());
  if (roster_.complete()) {
    welcomeAll();
  }
}

void RootService::startMembership(Connection& connection) {
  connection.stage = Stage::Member;
  connection.hello.clear();
  connection.reader.emplace(directionKey(options_.key, connection.nonces, Direction::RankToRoot),
                            4 + kBlobMostBytes);
  connection.writer.emplace(directionKey(options_.key, connection.nonces, Direction::RootToRank));
}

void RootService::welcomeAll() {
  closeDoor();
  const Key fresh = freshKey();
  for (const auto& connection : connections_) {
    if (connection->stage == Stage::Opening || connection->stage == Stage::Joining) {
      connection->socket.shutdownAndClose();
    }
  }
  for (Connection* member : membersInOrder()) {
    queue(*member, std::make_shared<Bytes>(member->writer->frame(FrameType::Welcome, viewOf(fresh))));
  }
}

// Rank 0 last: it is usually in this process, which may end as soon as it has its answer.
std::vector<RootService::Connection*> RootService::membersInOrder() const {
  std::vector<Connection*> members;
  for (const auto& connection : connections_) {
    if (connection->stage == Stage::Member && connection->socket.fd() >= 0) {
      members.push_back(connection.get());
    }
  }
  std::stable_partition(members.begin(), members.end(),
                        [](const Connection* member) { return member->rank != 0; });
  return members;
}

// The address is free for the next rendezvous.
void RootService::closeDoor() {
  for (Socket& listener : options_.listeners) {
    listener.shutdownAndClose();
  }
  options_.listeners.clear();
  doorOpen_.store(false, std::memory_order_release);  // pairs with doorOpen()
}

void RootService::handleFrame(Connection& connection, Frame frame) {
  if (frame.type == FrameType::Leave) {
    lost(connection);
    return;
  }
  if (frame.type != FrameType::Blob || frame.body.size() < 4) {
    fail(Error{pealInternalError, fmt::format("rank {} (from {}) sent a frame of type {} and {} bytes, which "
                                              "has no meaning here.",
                                              connection.rank, connection.from,
                                              static_cast<uint32_t>(frame.type), frame.body.size())});
    return;
  }
  const Clock::time_point now = Clock::now();
  if (!roster_.gathering()) {
    deadline_ = Clock::time_point::max();
  }
  shortenDeadline(readInteger<uint32_t>(frame.body), now);
  frame.body.erase(frame.body.begin(), frame.body.begin() + 4);
  if (Result<void> given = roster_.contribute(connection.rank, std::move(frame.body)); !given) {
    fail(given.error());
  } else if (roster_.gathered()) {
    sendTable();
  } else if (std::optional<Error> gone = roster_.departure()) {
    fail(std::move(*gone));
  }
}

void RootService::sendTable() {
  const auto table = std::make_shared<const Bytes>(roster_.takeTable());
  const auto digest = digestOf(*table);
  for (Connection* member : membersInOrder()) {
    const FrameEnds ends = member->writer->seal(FrameType::Table, table->size(), digest);
    member->output.push_back({std::make_shared<const Bytes>(ends.header)});
    member->output.push_back({table});
    const ByteView proof = viewOf(ends.proof);
    queue(*member, std::make_shared<const Bytes>(proof.begin(), proof.end()));
  }
}

void RootService::lost(Connection& connection) {
  const Stage stage = connection.stage;
  connection.socket.shutdownAndClose();
  if (stage != Stage::Member || connection.rank < 0 || failure_) {
    return;
  }
  if (!roster_.complete()) {
    fail(roster_.diedJoining(connection.rank));
    return;
  }
  roster_.leave(connection.rank);
  if (std::optional<Error> gone = roster_.departure()) {
    fail(std::move(*gone));
  }
}

void RootService::fail(Error error) {
  if (failure_) {
    return;
  }
  failure_ = std::move(error);
  lingerUntil_ = Clock::now() + kLinger;
  for (Connection* member : membersInOrder()) {
    tellFailure(*member);
  }
}

void RootService::tellFailure(Connection& connection) {
  Bytes body;
  appendInteger(body, static_cast<uint32_t>(failure_->code));
  append(body, viewOf(std::string_view(failure_->message)));
  connection.stage = Stage::Farewell;
  connection.deadline = Clock::now() + kFarewell;
  ++told_;
  queue(connection, std::make_shared<Bytes>(connection.writer->frame(FrameType::Failure, body)));
}

}  // namespace peal
