#include "transports/shm/wire.h"

#include <fmt/format.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>

namespace peal::shm {
namespace {

// A leading zero byte puts the name into the abstract namespace.
socklen_t fillAddress(const SocketName& name, sockaddr_un& address) {
  address = {};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path + 1, name.data(), name.size());
  return static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
}

// Takes the descriptors that came along: the first is kept, any other is closed.
void takeFiles(msghdr& header, Packet& packet) {
  for (cmsghdr* entry = CMSG_FIRSTHDR(&header); entry != nullptr; entry = CMSG_NXTHDR(&header, entry)) {
    if (entry->cmsg_level != SOL_SOCKET || entry->cmsg_type != SCM_RIGHTS) {
      continue;
    }
    const size_t count = (entry->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count; ++i) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(entry) + i * sizeof(int), sizeof fd);
      OwnedFd file(fd);
      if (!packet.file) {
        packet.file = std::move(file);
      }
    }
  }
}

}  // namespace

FarewellNote FarewellNote::make(int culpritRank, const std::string& reason) {
  FarewellNote note{};
  note.note = Note::Farewell;
  note.culpritRank = culpritRank;
  note.reasonBytes = static_cast<uint32_t>(std::min(reason.size(), kReasonBytes));
  std::memcpy(note.reason, reason.data(), note.reasonBytes);
  return note;
}

std::string FarewellNote::text() const { return {reason, std::min<size_t>(reasonBytes, kReasonBytes)}; }

Note Packet::note() const {
  Note value{};
  if (size >= sizeof value) {
    std::memcpy(&value, bytes.data(), sizeof value);
  }
  return value;
}

Got receivePacket(int socket, Packet& packet) {
  alignas(cmsghdr) char control[CMSG_SPACE(4 * sizeof(int))];
  packet.file.reset();
  packet.size = 0;
  packet.fileLost = false;
  for (;;) {
    iovec part{packet.bytes.data(), packet.bytes.size()};
    msghdr header{};
    header.msg_iov = &part;
    header.msg_iovlen = 1;
    header.msg_control = control;
    header.msg_controllen = sizeof control;
    const ssize_t got = recvmsg(socket, &header, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (got < 0) {
      // ECONNRESET: the peer closed with unread packets of ours. Reported once; its own last packets are
      // still behind it.
      if (errno == EINTR || errno == ECONNRESET) {
        continue;
      }
      return errno == EAGAIN || errno == EWOULDBLOCK ? Got::Nothing : Got::End;
    }
    takeFiles(header, packet);
    packet.fileLost = !packet.file && (header.msg_flags & MSG_CTRUNC) != 0;
    if (got == 0) {
      return Got::End;
    }
    packet.size = static_cast<size_t>(got);
    return Got::Packet;
  }
}

int sendPacket(int socket, const void* data, size_t bytes, int file) {
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  iovec part{const_cast<void*>(data), bytes};
  msghdr header{};
  header.msg_iov = &part;
  header.msg_iovlen = 1;
  if (file >= 0) {
    header.msg_control = control;
    header.msg_controllen = sizeof control;
    cmsghdr* entry = CMSG_FIRSTHDR(&header);
    entry->cmsg_level = SOL_SOCKET;
    entry->cmsg_type = SCM_RIGHTS;
    entry->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(entry), &file, sizeof file);
  }
  for (;;) {
    if (sendmsg(socket, &header, MSG_DONTWAIT | MSG_NOSIGNAL) >= 0) {
      return 0;
    }
    if (errno != EINTR) {
      return errno;
    }
  }
}

Result<OwnedFd> listenAt(const SocketName& name, int backlog) {
  OwnedFd socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket) {
    return systemError("socket(AF_UNIX)", errno);
  }
  sockaddr_un address;
  const socklen_t length = fillAddress(name, address);
  if (bind(socket.get(), reinterpret_cast<const sockaddr*>(&address), length) != 0) {
    return systemError("bind of an abstract Unix socket", errno);
  }
  if (listen(socket.get(), backlog) != 0) {
    return systemError("listen on an abstract Unix socket", errno);
  }
  return socket;
}

int connectTo(const SocketName& name, OwnedFd& socket) {
  OwnedFd made(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!made) {
    return errno;
  }
  sockaddr_un address;
  const socklen_t length = fillAddress(name, address);
  if (connect(made.get(), reinterpret_cast<const sockaddr*>(&address), length) != 0) {
    return errno;
  }
  socket = std::move(made);
  return 0;
}

Result<PeerIdentity> peerIdentity(int socket) {
  ucred credentials{};
  socklen_t length = sizeof credentials;
  if (getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &credentials, &length) != 0) {
    return systemError("getsockopt(SO_PEERCRED)", errno);
  }
  return PeerIdentity{credentials.pid, credentials.uid};
}

}  // namespace peal::shm
