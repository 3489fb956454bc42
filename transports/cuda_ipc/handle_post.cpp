#include "transports/cuda_ipc/handle_post.h"

#include <fmt/format.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <cerrno>
#include <cstddef>
#include <cstring>

namespace peal::cuda {
namespace {

struct Packet {
  Nonce secret;
  uint64_t id;
  int32_t srcRank;
  int32_t files;
};

// "\0peal-handles-<hex>".
socklen_t nameOf(const Nonce& nonce, sockaddr_un& name) {
  name.sun_family = AF_UNIX;
  std::string text = "peal-handles-";
  for (const uint8_t byte : nonce) {
    text += fmt::format("{:02x}", byte);
  }
  std::memcpy(name.sun_path + 1, text.data(), text.size());
  return static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + text.size());
}

// Room for the most descriptors, aligned for a header.
union Control {
  cmsghdr header;
  std::array<char, CMSG_SPACE(HandlePost::kMostFiles * sizeof(int))> bytes;
};

std::vector<OwnedFd> takeFiles(msghdr& message) {
  std::vector<OwnedFd> files;
  for (cmsghdr* entry = CMSG_FIRSTHDR(&message); entry != nullptr; entry = CMSG_NXTHDR(&message, entry)) {
    if (entry->cmsg_level != SOL_SOCKET || entry->cmsg_type != SCM_RIGHTS) {
      continue;
    }
    for (size_t at = CMSG_LEN(0); at + sizeof(int) <= entry->cmsg_len; at += sizeof(int)) {
      int fd = -1;
      std::memcpy(&fd, reinterpret_cast<const char*>(entry) + at, sizeof fd);
      files.emplace_back(fd);
    }
  }
  return files;
}

}  // namespace

Result<HandlePost> HandlePost::open() {
  HandlePost post;
  post.socket_ = OwnedFd(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!post.socket_) {
    return systemError("a socket for the handles of memory", errno);
  }
  post.address_ = {randomNonce(), randomNonce()};
  sockaddr_un name{};
  const socklen_t length = nameOf(post.address_.name, name);
  if (::bind(post.socket_.get(), reinterpret_cast<const sockaddr*>(&name), length) != 0) {
    return systemError("binding a socket for the handles of memory", errno);
  }
  return post;
}

Result<HandlePost::Sent> HandlePost::send(const PostAddress& to, int srcRank, uint64_t id,
                                          const std::vector<OwnedFd>& files) const {
  Packet packet{to.secret, id, srcRank, static_cast<int32_t>(files.size())};
  iovec data{&packet, sizeof packet};
  sockaddr_un name{};
  Control control{};
  msghdr message{};
  message.msg_name = &name;
  message.msg_namelen = nameOf(to.name, name);
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = control.bytes.data();
  message.msg_controllen = CMSG_SPACE(files.size() * sizeof(int));
  cmsghdr* const entry = CMSG_FIRSTHDR(&message);
  entry->cmsg_level = SOL_SOCKET;
  entry->cmsg_type = SCM_RIGHTS;
  entry->cmsg_len = CMSG_LEN(files.size() * sizeof(int));
  for (size_t i = 0; i < files.size(); ++i) {
    const int fd = files[i].get();
    std::memcpy(reinterpret_cast<char*>(entry) + CMSG_LEN(i * sizeof(int)), &fd, sizeof fd);
  }
  if (::sendmsg(socket_.get(), &message, MSG_NOSIGNAL) >= 0) {
    return Sent::Yes;
  }
  if (errno == EAGAIN || errno == EINTR || errno == ENOBUFS) {
    return Sent::Later;
  }
  return systemError(
      "sending the handles of memory (the ranks' containers need a common network namespace for that)",
      errno);
}

// False: nothing is there.
bool HandlePost::readOne() {
  Packet packet{};
  iovec data{&packet, sizeof packet};
  Control control{};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = control.bytes.data();
  message.msg_controllen = sizeof control;
  const ssize_t got = ::recvmsg(socket_.get(), &message, MSG_CMSG_CLOEXEC);
  if (got < 0) {
    return errno == EINTR;
  }
  std::vector<OwnedFd> files = takeFiles(message);  // closed where they are not kept
  if (got == static_cast<ssize_t>(sizeof packet) && packet.secret == address_.secret &&
      packet.files == static_cast<int32_t>(files.size()) && (message.msg_flags & MSG_CTRUNC) == 0) {
    arrived_[{packet.srcRank, packet.id}] = std::move(files);
  }
  return true;
}

Result<std::vector<OwnedFd>> HandlePost::receive(int srcRank, uint64_t id) {
  auto found = arrived_.find({srcRank, id});
  while (found == arrived_.end() && readOne()) {
    found = arrived_.find({srcRank, id});
  }
  if (found == arrived_.end()) {
    return Error{pealSystemError,
                 "the handles of its memory did not arrive. Is the limit on open files (ulimit "
                 "-n) reached?"};
  }
  std::vector<OwnedFd> files = std::move(found->second);
  arrived_.erase(found);
  return files;
}

}  // namespace peal::cuda
