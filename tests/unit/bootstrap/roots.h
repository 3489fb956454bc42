// A root service of the test's own, and raw connections to it that may misbehave.
#pragma once
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/time.h>

#include <algorithm>
#include <cerrno>
#include <memory>
#include <string>

#include "lib/bootstrap/id.h"
#include "lib/bootstrap/open_root.h"
#include "lib/bootstrap/root.h"
#include "tests/support/limits.h"

namespace peal::test {

inline Address loopback(int family = AF_INET, uint16_t port = 0) {
  const in_addr ipv4{htonl(INADDR_LOOPBACK)};
  return family == AF_INET ? ipv4Address(&ipv4, port) : ipv6Address(&in6addr_loopback, port, 0);
}

struct TestRoot {
  IdContent content;
  pealUniqueId id{};
  std::unique_ptr<RootService> service;
};

struct RootLimits {
  int64_t joinMs = kFarMs;
  int64_t helloMs = kFarMs;
  size_t strangersMost = 256;
};

inline TestRoot makeRoot(const RootLimits& limits = {}, int family = AF_INET) {
  TestRoot root;
  EXPECT_TRUE(startSodium());
  Result<OpenedRoot> opened = openTcpRootAt({loopback(family)}, "");
  if (!opened) {
    ADD_FAILURE() << opened.error().message;
    return root;
  }
  root.content.port = opened->port;
  root.content.addresses = opened->offered;
  const Nonce secret = freshNonce();
  std::copy(secret.begin(), secret.end(), root.content.secret.begin());
  root.id = encodeId(root.content);
  RootOptions options;
  options.key = rendezvousKey(root.content);
  options.listeners = std::move(opened->listeners);
  options.joinMs = limits.joinMs;
  options.helloMs = limits.helloMs;
  options.strangersMost = limits.strangersMost;
  Result<std::unique_ptr<RootService>> service = RootService::start(std::move(options));
  if (!service) {
    ADD_FAILURE() << service.error().message;
    return root;
  }
  root.service = std::move(*service);
  return root;
}

// Waits until `reached` holds, for at most `timeoutMs`.
inline bool eventually(auto&& reached, int timeoutMs = kFarMs) {
  const Deadline deadline = Deadline::afterMs(timeoutMs);
  while (!reached()) {
    if (deadline.passed()) {
      return false;
    }
    (void)poll(nullptr, 0, 1);
  }
  return true;
}

// A plain blocking connection.
class RawPeer {
 public:
  // Not connected yet.
  RawPeer() : socket_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    const timeval patience{kAtOnce.count(), 0};
    setsockopt(socket_.fd(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
  }
  explicit RawPeer(uint16_t port) : RawPeer() { (void)connectTo(port); }
  bool connectTo(uint16_t port) {
    const Address address = loopback(AF_INET, port);
    connected_ = ::connect(socket_.fd(), address.pointer(), address.length) == 0;
    return connected_;
  }
  bool connected() const { return connected_; }

  // False: the other side has hung up.
  bool send(ByteView bytes) {
    return ::send(socket_.fd(), bytes.data(), bytes.size(), MSG_NOSIGNAL) ==
           static_cast<ssize_t>(bytes.size());
  }
  Bytes receive(size_t bytes) {
    Bytes buffer(bytes);
    const ssize_t got = ::recv(socket_.fd(), buffer.data(), bytes, MSG_WAITALL);
    buffer.resize(got > 0 ? static_cast<size_t>(got) : 0);
    return buffer;
  }
  // Whether the other side ends the connection at once, whatever it sends before.
  bool isCut() {
    std::byte ignored[256];
    while (true) {
      const ssize_t got = ::recv(socket_.fd(), ignored, sizeof ignored, 0);
      if (got <= 0) {
        return got == 0 || errno == ECONNRESET || errno == EPIPE;
      }
    }
  }
  void hangUp() { socket_.close(); }

 private:
  Socket socket_;
  bool connected_ = false;
};

}  // namespace peal::test
