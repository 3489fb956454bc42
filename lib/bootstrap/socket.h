// Sockets and addresses: owning a descriptor, naming an address, listening, and what this machine offers.
//
// Every socket is non-blocking and closed on exec. Used by the root service and the joining side.
#pragma once
#include <sys/socket.h>

#include <string>
#include <utility>
#include <vector>

#include "lib/base/result.h"

namespace peal {

class Socket {
 public:
  Socket() = default;
  explicit Socket(int fd) : fd_(fd) {}
  Socket(Socket&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Socket& operator=(Socket&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~Socket() { close(); }
  int fd() const { return fd_; }
  int release() { return std::exchange(fd_, -1); }  // the caller's to close from then on
  void close();
  // Ends the connection or the listening for every process that holds a copy (a forked child does).
  void shutdownAndClose();

 private:
  int fd_ = -1;
};

// An address that connect() and bind() take: IPv4, IPv6 (with its scope) or an abstract Unix name.
struct Address {
  sockaddr_storage storage{};
  socklen_t length = 0;

  int family() const { return storage.ss_family; }
  const sockaddr* pointer() const { return reinterpret_cast<const sockaddr*>(&storage); }
  // "192.0.2.2:5000", "[fe80::1%eth0]:5000", "the local socket peal-…".
  std::string text() const;
  uint16_t port() const;
  void setPort(uint16_t port);
  bool sameHost(const Address& other) const;
};

Address ipv4Address(const void* fourBytes, uint16_t port);
Address ipv6Address(const void* sixteenBytes, uint16_t port, uint32_t scope);
// At most 107 characters.
Address unixAddress(const std::string& name);

enum class AddressReach { Routable, LinkLocal, Loopback };

struct InterfaceAddress {
  std::string interface;
  Address address;
  AddressReach reach = AddressReach::Routable;
};

// Addresses of the interfaces that are up, in the system's order.
Result<std::vector<InterfaceAddress>> localAddresses();
// Those that `pattern` (PEAL_INTERFACE) lets through. An empty result is an error that lists what there is.
Result<std::vector<InterfaceAddress>> selectInterfaces(const std::vector<InterfaceAddress>& all,
                                                       const std::string& pattern);
// In the order in which others should try them: routable, then link-local if there is no routable one, then
// loopback; IPv4 before IPv6.
std::vector<Address> orderOffered(const std::vector<InterfaceAddress>& selected);

// Addresses that another machine offered, as this one can try them. A link-local address means something only
// together with an interface, so it is taken once for each of ours.
std::vector<Address> asSeenFromHere(const std::vector<Address>& offered);

// What a host name or a numeric address stands for.
Result<std::vector<Address>> resolveHost(const std::string& host, uint16_t port);
bool isNumericHost(const std::string& host);

// A listening socket. The error has the system call's errno in its sentence, and no remedy.
struct ListenFault {
  int errnum = 0;
  std::string text;
};
struct Listening {
  Socket socket;
  ListenFault fault;  // errnum 0: it listens
};
Listening listenAt(const Address& address);
// All IPv4 and IPv6 addresses of this machine at one port (0: the system chooses).
Listening listenEverywhere(uint16_t port);
uint16_t boundPort(const Socket& socket);

// TCP without delay; no effect on a Unix socket.
void sendAtOnce(const Socket& socket);

std::string errnoText(int errnum);  // "Connection refused (ECONNREFUSED)"

// If errnum of a call that makes a socket says that something ran out: what, and what to raise. Else empty.
std::string shortageText(int errnum);

}  // namespace peal
