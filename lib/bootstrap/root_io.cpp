// The root service's input and output: the door, the handshake's bytes, frames. See root.h.
#include <fmt/format.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>

#include "lib/base/log.h"
#include "lib/bootstrap/root.h"

namespace peal {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kLeastStay{250};   // before a place is taken from one who has proved nothing
constexpr milliseconds kAcceptPause{20};  // when descriptors have run out

}  // namespace

size_t RootService::unproven() const {
  return static_cast<size_t>(
      std::count_if(connections_.begin(), connections_.end(), [](const auto& connection) {
        return connection->socket.fd() >= 0 &&
               (connection->stage == Stage::Opening || connection->stage == Stage::Joining);
      }));
}

RootService::Connection* RootService::oldestUnproven() {
  Connection* oldest = nullptr;
  for (const auto& connection : connections_) {
    const bool candidate = connection->socket.fd() >= 0 &&
                           (connection->stage == Stage::Opening || connection->stage == Stage::Joining);
    if (candidate && (oldest == nullptr || connection->since < oldest->since)) {
      oldest = connection.get();
    }
  }
  return oldest;
}

// Whether one more connection may come in. When strangers hold all places the one that has had its chance
// longest gives up its own; an honest rank needs a few milliseconds.
bool RootService::makeRoom(Clock::time_point now) {
  if (unproven() < options_.strangersMost) {
    return true;
  }
  Connection* oldest = oldestUnproven();
  if (now - oldest->since < kLeastStay) {
    acceptPausedUntil_ = oldest->since + kLeastStay;
    return false;
  }
  dropStranger(*oldest, "its place was needed");
  return true;
}

void RootService::accept(const Socket& listener) {
  while (unproven() < options_.strangersMost) {
    Address peer;
    peer.length = sizeof peer.storage;
    Socket socket(::accept4(listener.fd(), reinterpret_cast<sockaddr*>(&peer.storage), &peer.length,
                            SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (socket.fd() < 0) {
      acceptFailed(errno);
      return;
    }
    auto connection = std::make_unique<Connection>();
    connection->from = peer.text();
    connection->since = Clock::now();
    connection->deadline = connection->since + milliseconds(options_.helloMs);
    sendAtOnce(socket);
    if (peer.family() == AF_UNIX) {
      ucred credentials{};
      socklen_t length = sizeof credentials;
      const bool known = getsockopt(socket.fd(), SOL_SOCKET, SO_PEERCRED, &credentials, &length) == 0;
      connection->from = known ? fmt::format("process {}", credentials.pid) : "an unknown process";
      if (!known || credentials.uid != geteuid()) {
        connection->socket = std::move(socket);
        dropStranger(*connection, "it belongs to another user");
        continue;
      }
    }
    connection->socket = std::move(socket);
    connections_.push_back(std::move(connection));
  }
}

// Out of descriptors, most likely. One who has proved nothing in all its time gives its own up; those whose
// hello is under way are waited for; if there is none, ranks hold them all and more cannot come.
void RootService::acceptFailed(int errnum) {
  std::string shortage = shortageText(errnum);
  if (shortage.empty()) {
    return;  // nobody waits any more, or the one who waited has gone
  }
  shortage_ = std::move(shortage);
  const Clock::time_point now = Clock::now();
  Connection* oldest = oldestUnproven();
  if (oldest != nullptr && now - oldest->since >= kLeastStay) {
    dropStranger(*oldest, "the process ran out of descriptors");
    return;
  }
  acceptPausedUntil_ = now + kAcceptPause;
  if (oldest == nullptr && !failure_) {
    fail(Error{pealSystemError,
               fmt::format("the first rank's process cannot take in more ranks: {}", shortage_)});
    reserve_.close();
  }
}

Error RootService::withShortage(Error error) const {
  if (!shortage_.empty()) {
    error.message += fmt::format(" The first rank's process had to let ranks wait: {}", shortage_);
  }
  return error;
}

void RootService::dropStranger(Connection& connection, const char* why) {
  // Relaxed: a counter for people, ordered with nothing.
  strangers_.fetch_add(1, std::memory_order_relaxed);
  log(LogLevel::Info, fmt::format("rendezvous: dropped {}: {}", connection.from, why));
  connection.socket.shutdownAndClose();
}

void RootService::readFrom(Connection& connection) {
  switch (connection.stage) {
    case Stage::Opening:
    case Stage::Joining:
      readHello(connection);
      break;
    case Stage::Member:
      readFrames(connection);
      break;
    case Stage::Farewell: {
      std::array<std::byte, 4096> ignored;
      const ssize_t got = ::recv(connection.socket.fd(), ignored.data(), ignored.size(), 0);
      if (got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR)) {
        connection.socket.shutdownAndClose();
      }
      break;
    }
  }
}

void RootService::readHello(Connection& connection) {
  const size_t whole = connection.stage == Stage::Opening ? kOpenBytes : kJoinBytes;
  std::array<std::byte, std::max(kOpenBytes, kJoinBytes)> buffer;
  const ssize_t got = ::recv(connection.socket.fd(), buffer.data(), whole - connection.hello.size(), 0);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) {
    return;
  }
  if (got <= 0) {
    // One that has proved it once may hang up: a rank that tries several addresses keeps only one.
    if (connection.stage == Stage::Joining && connection.hello.empty()) {
      connection.socket.shutdownAndClose();
    } else {
      dropStranger(connection, "it hung up during its hello");
    }
    return;
  }
  append(connection.hello, ByteView(buffer).first(static_cast<size_t>(got)));
  if (connection.hello.size() < whole) {
    return;
  }
  if (connection.stage == Stage::Opening) {
    handleOpen(connection);
  } else {
    handleJoin(connection);
  }
}

void RootService::handleOpen(Connection& connection) {
  const std::optional<Nonce> rankNonce = readOpen(options_.key, connection.hello);
  if (!rankNonce) {
    dropStranger(connection, "its hello is not one made with the secret");
    return;
  }
  connection.nonces = {*rankNonce, freshNonce()};
  connection.hello.clear();
  connection.stage = Stage::Joining;
  queue(connection, std::make_shared<Bytes>(makeChallenge(options_.key, connection.nonces)));
}

void RootService::readFrames(Connection& connection) {
  std::array<std::byte, 16384> buffer;
  const ssize_t got = ::recv(connection.socket.fd(), buffer.data(), buffer.size(), 0);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) {
    return;
  }
  if (got <= 0) {
    lost(connection);
    return;
  }
  connection.reader->feed(ByteView(buffer).first(static_cast<size_t>(got)));
  while (connection.stage == Stage::Member && connection.socket.fd() >= 0) {
    Result<std::optional<Frame>> frame = connection.reader->next();
    if (!frame) {
      fail(Error{pealRemoteError, fmt::format("the connection of rank {} (from {}) cannot be believed: {}.",
                                              connection.rank, connection.from, frame.error().message)});
      return;
    }
    if (!frame->has_value()) {
      return;
    }
    handleFrame(connection, std::move(**frame));
  }
}

void RootService::queue(Connection& connection, std::shared_ptr<const Bytes> bytes) {
  connection.output.push_back({std::move(bytes)});
  flush(connection);
}

void RootService::flush(Connection& connection) {
  while (!connection.output.empty()) {
    std::array<iovec, 8> parts;
    size_t count = 0;
    for (const Piece& piece : connection.output) {
      if (count == parts.size()) {
        break;
      }
      // sendmsg only reads, but iovec is not const.
      parts[count++] = {const_cast<std::byte*>(piece.bytes->data() + piece.sent),
                        piece.bytes->size() - piece.sent};
    }
    msghdr message{};
    message.msg_iov = parts.data();
    message.msg_iovlen = count;
    const ssize_t sent = ::sendmsg(connection.socket.fd(), &message, MSG_NOSIGNAL);
    if (sent < 0) {
      // A broken connection is found by the next read, which also says whose it was.
      return;
    }
    size_t left = static_cast<size_t>(sent);
    while (!connection.output.empty()) {
      Piece& front = connection.output.front();
      const size_t taken = std::min(left, front.bytes->size() - front.sent);
      front.sent += taken;
      left -= taken;
      if (front.sent < front.bytes->size()) {
        break;
      }
      connection.output.pop_front();
    }
  }
  if (connection.stage == Stage::Farewell && !connection.outputEnded) {
    connection.outputEnded = true;
    ::shutdown(connection.socket.fd(), SHUT_WR);
  }
}

}  // namespace peal
