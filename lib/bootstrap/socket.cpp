#include "lib/bootstrap/socket.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/resource.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstddef>
#include <cstring>

namespace peal {
namespace {

const sockaddr_in& asIpv4(const Address& address) {
  return reinterpret_cast<const sockaddr_in&>(address.storage);
}
const sockaddr_in6& asIpv6(const Address& address) {
  return reinterpret_cast<const sockaddr_in6&>(address.storage);
}

Listening listening(Socket socket) { return {std::move(socket), {}}; }
Listening notListening(const char* call, const Address& address) {
  const int errnum = errno;
  return {Socket(), {errnum, fmt::format("{} {}: {}", call, address.text(), errnoText(errnum))}};
}

void setFlag(const Socket& socket, int level, int option, int value) {
  // Best effort: an old kernel that lacks an option still connects.
  (void)setsockopt(socket.fd(), level, option, &value, sizeof value);
}

}  // namespace

void Socket::close() {
  if (fd_ >= 0) {
    ::close(std::exchange(fd_, -1));
  }
}

void Socket::shutdownAndClose() {
  if (fd_ >= 0) {
    ::shutdown(fd_, SHUT_RDWR);
  }
  close();
}

std::string errnoText(int errnum) {
  const char* name = strerrorname_np(errnum);
  const char* text = strerrordesc_np(errnum);
  return fmt::format("{} ({})", text != nullptr ? text : "unknown error", name != nullptr ? name : "?");
}

std::string shortageText(int errnum) {
  if (errnum == EMFILE) {
    rlimit limit{};
    (void)getrlimit(RLIMIT_NOFILE, &limit);
    return fmt::format(
        "it has all {} descriptors open that its limit allows: {}. Raise the limit on open "
        "files (ulimit -n).",
        limit.rlim_cur, errnoText(errnum));
  }
  if (errnum == ENFILE) {
    return fmt::format("its machine has no descriptors left: {}. Raise fs.file-max (sysctl).",
                       errnoText(errnum));
  }
  if (errnum == ENOBUFS || errnum == ENOMEM) {
    return fmt::format(
        "its machine has no memory for sockets: {}. Free some, or raise net.ipv4.tcp_mem "
        "(sysctl).",
        errnoText(errnum));
  }
  return "";
}

std::string Address::text() const {
  char host[INET6_ADDRSTRLEN] = "?";
  if (family() == AF_INET) {
    inet_ntop(AF_INET, &asIpv4(*this).sin_addr, host, sizeof host);
    return fmt::format("{}:{}", host, port());
  }
  if (family() == AF_INET6) {
    const sockaddr_in6& ipv6 = asIpv6(*this);
    inet_ntop(AF_INET6, &ipv6.sin6_addr, host, sizeof host);
    if (ipv6.sin6_scope_id != 0) {
      return fmt::format("[{}%{}]:{}", host, ipv6.sin6_scope_id, port());
    }
    return fmt::format("[{}]:{}", host, port());
  }
  const auto& local = reinterpret_cast<const sockaddr_un&>(storage);
  const size_t prefix = offsetof(sockaddr_un, sun_path) + 1;
  if (family() != AF_UNIX || length <= prefix) {
    return "a local socket";
  }
  return fmt::format("the local socket @{}", std::string(local.sun_path + 1, length - prefix));
}

uint16_t Address::port() const {
  if (family() == AF_INET) {
    return ntohs(asIpv4(*this).sin_port);
  }
  return family() == AF_INET6 ? ntohs(asIpv6(*this).sin6_port) : uint16_t{0};
}

void Address::setPort(uint16_t port) {
  if (family() == AF_INET) {
    reinterpret_cast<sockaddr_in&>(storage).sin_port = htons(port);
  } else if (family() == AF_INET6) {
    reinterpret_cast<sockaddr_in6&>(storage).sin6_port = htons(port);
  }
}

bool Address::sameHost(const Address& other) const {
  if (family() != other.family()) {
    return false;
  }
  if (family() == AF_INET) {
    return asIpv4(*this).sin_addr.s_addr == asIpv4(other).sin_addr.s_addr;
  }
  if (family() == AF_INET6) {
    return std::memcmp(&asIpv6(*this).sin6_addr, &asIpv6(other).sin6_addr, sizeof(in6_addr)) == 0 &&
           asIpv6(*this).sin6_scope_id == asIpv6(other).sin6_scope_id;
  }
  return length == other.length && std::memcmp(&storage, &other.storage, length) == 0;
}

Address ipv4Address(const void* fourBytes, uint16_t port) {
  Address address;
  auto& ipv4 = reinterpret_cast<sockaddr_in&>(address.storage);
  ipv4.sin_family = AF_INET;
  ipv4.sin_port = htons(port);
  std::memcpy(&ipv4.sin_addr, fourBytes, sizeof ipv4.sin_addr);
  address.length = sizeof ipv4;
  return address;
}

Address ipv6Address(const void* sixteenBytes, uint16_t port, uint32_t scope) {
  Address address;
  auto& ipv6 = reinterpret_cast<sockaddr_in6&>(address.storage);
  ipv6.sin6_family = AF_INET6;
  ipv6.sin6_port = htons(port);
  ipv6.sin6_scope_id = scope;
  std::memcpy(&ipv6.sin6_addr, sixteenBytes, sizeof ipv6.sin6_addr);
  address.length = sizeof ipv6;
  return address;
}

Address unixAddress(const std::string& name) {
  Address address;
  auto& local = reinterpret_cast<sockaddr_un&>(address.storage);
  local.sun_family = AF_UNIX;
  // A leading zero makes the name abstract: no file, and it goes away with its socket.
  const size_t bytes = std::min(name.size(), sizeof local.sun_path - 1);
  std::memcpy(local.sun_path + 1, name.data(), bytes);
  address.length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + bytes);
  return address;
}

Listening listenAt(const Address& address) {
  Socket socket(::socket(address.family(), SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (socket.fd() < 0) {
    return notListening("socket for", address);
  }
  if (address.family() != AF_UNIX) {
    // Connections of an earlier rendezvous that linger in TIME_WAIT must not keep the port.
    setFlag(socket, SOL_SOCKET, SO_REUSEADDR, 1);
  }
  if (address.family() == AF_INET6) {
    const bool everywhere = IN6_IS_ADDR_UNSPECIFIED(&asIpv6(address).sin6_addr);
    setFlag(socket, IPPROTO_IPV6, IPV6_V6ONLY, everywhere ? 0 : 1);
  }
  if (::bind(socket.fd(), address.pointer(), address.length) != 0) {
    return notListening("bind", address);
  }
  if (::listen(socket.fd(), SOMAXCONN) != 0) {
    return notListening("listen at", address);
  }
  return listening(std::move(socket));
}

Listening listenEverywhere(uint16_t port) {
  Listening both = listenAt(ipv6Address(&in6addr_any, port, 0));
  if (both.fault.errnum == 0 || both.fault.errnum == EADDRINUSE || both.fault.errnum == EACCES) {
    return both;
  }
  // No IPv6 on this machine.
  const in_addr any{htonl(INADDR_ANY)};
  return listenAt(ipv4Address(&any, port));
}

uint16_t boundPort(const Socket& socket) {
  Address address;
  address.length = sizeof address.storage;
  if (getsockname(socket.fd(), reinterpret_cast<sockaddr*>(&address.storage), &address.length) != 0) {
    return 0;
  }
  return address.port();
}

void sendAtOnce(const Socket& socket) { setFlag(socket, IPPROTO_TCP, TCP_NODELAY, 1); }

}  // namespace peal
