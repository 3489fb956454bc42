#include "bench/micro/fabric/raw_tcp.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace peal::bench {
namespace {

constexpr size_t kPieceBytes = 65536;

int orExit(int result, const char* call) {
  if (result < 0) {
    std::perror(call);
    _exit(1);
  }
  return result;
}

}  // namespace

RawTcp::RawTcp(int rank, const std::string& address, int port, const std::string& congestion)
    : out_(kPieceBytes), in_(kPieceBytes) {
  sockaddr_in where{};
  where.sin_family = AF_INET;
  where.sin_port = htons(static_cast<uint16_t>(port));
  inet_pton(AF_INET, address.c_str(), &where.sin_addr);
  const auto* pointer = reinterpret_cast<const sockaddr*>(&where);
  const int one = 1;
  const int first = orExit(socket(AF_INET, SOCK_STREAM, 0), "socket");
  if (rank == 0) {
    setsockopt(first, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    orExit(bind(first, pointer, sizeof where), "bind");
    orExit(listen(first, 1), "listen");
    socket_ = orExit(accept(first, nullptr, nullptr), "accept");
    close(first);
  } else {
    int tries = 0;
    while (connect(first, pointer, sizeof where) != 0) {
      orExit(++tries < 1000 ? 0 : -1, "connect");
      usleep(1000);
    }
    socket_ = first;
  }
  setsockopt(socket_, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
  if (!congestion.empty()) {
    orExit(setsockopt(socket_, IPPROTO_TCP, TCP_CONGESTION, congestion.c_str(),
                      static_cast<socklen_t>(congestion.size())),
           "TCP_CONGESTION");
  }
}

RawTcp::~RawTcp() { close(socket_); }

void RawTcp::exchange(size_t sendBytes, size_t receiveBytes) {
  while (sendBytes > 0 || receiveBytes > 0) {
    if (sendBytes > 0) {
      const ssize_t sent = send(socket_, out_.data(), std::min(sendBytes, out_.size()), MSG_DONTWAIT);
      sendBytes -= sent > 0 ? static_cast<size_t>(sent) : 0;
    }
    if (receiveBytes > 0) {
      const ssize_t got = recv(socket_, in_.data(), std::min(receiveBytes, in_.size()), MSG_DONTWAIT);
      orExit(got == 0 ? -1 : 0, "recv: the other end is gone");
      receiveBytes -= got > 0 ? static_cast<size_t>(got) : 0;
    }
  }
}

}  // namespace peal::bench
