#include "lib/bootstrap/open_root.h"

#include <fmt/format.h>

#include <cerrno>

namespace peal {
namespace {

constexpr int kPortTries = 16;  // a port the system chose for one address may be taken at the next

Error cannotListen(const ListenFault& fault, const std::string& wantedBy) {
  if (wantedBy.empty()) {
    return Error{pealSystemError, fmt::format("the first rank cannot listen: {}.", fault.text)};
  }
  const char* remedy = "Choose another.";
  if (fault.errnum == EADDRINUSE) {
    remedy =
        "Another program, or an earlier run that has not ended, uses it: choose another port or end "
        "that one.";
  } else if (fault.errnum == EACCES) {
    remedy = "Ports below 1024 are for root: choose a higher one.";
  }
  return Error{pealSystemError,
               fmt::format("the first rank cannot listen as {} asks: {}. {}", wantedBy, fault.text, remedy)};
}

// An address that is listed but cannot be used yet, or a family that is switched off.
bool isAbsent(int errnum) { return errnum == EADDRNOTAVAIL || errnum == EAFNOSUPPORT; }

// Listens at all addresses that can be used, with one port; a port of 0 is chosen at the first. Returns the
// fault that ends it, or the last absent address's if there is nothing else.
ListenFault listenAtAll(const std::vector<Address>& addresses, OpenedRoot& root) {
  ListenFault absent;
  for (Address address : addresses) {
    if (!root.listeners.empty()) {
      address.setPort(root.port);
    }
    Listening one = listenAt(address);
    if (isAbsent(one.fault.errnum)) {
      absent = one.fault;
      continue;
    }
    if (one.fault.errnum != 0) {
      return one.fault;
    }
    root.port = boundPort(one.socket);
    root.listeners.push_back(std::move(one.socket));
    root.offered.push_back(address);
  }
  return root.listeners.empty() ? absent : ListenFault{};
}

}  // namespace

Result<OpenedRoot> openTcpRootAt(const std::vector<Address>& addresses, const std::string& wantedBy) {
  const bool chosenBySystem = addresses.front().port() == 0;
  for (int tries = 1;; ++tries) {
    OpenedRoot root;
    const ListenFault fault = listenAtAll(addresses, root);
    if (fault.errnum == 0) {
      return root;
    }
    if (!chosenBySystem || fault.errnum != EADDRINUSE || tries == kPortTries) {
      return cannotListen(fault, wantedBy);
    }
  }
}

Result<OpenedRoot> openTcpRoot(uint16_t port, const std::string& interfacePattern,
                               const std::string& wantedBy) {
  const Result<std::vector<InterfaceAddress>> all = localAddresses();
  if (!all) {
    return all.error();
  }
  const Result<std::vector<InterfaceAddress>> selected = selectInterfaces(*all, interfacePattern);
  if (!selected) {
    return selected.error();
  }
  std::vector<Address> offered = orderOffered(*selected);
  for (Address& address : offered) {
    address.setPort(port);
  }
  if (!interfacePattern.empty()) {
    return openTcpRootAt(offered, wantedBy);
  }
  Listening everywhere = listenEverywhere(port);
  if (everywhere.fault.errnum != 0) {
    return cannotListen(everywhere.fault, wantedBy);
  }
  OpenedRoot root;
  root.port = boundPort(everywhere.socket);
  root.listeners.push_back(std::move(everywhere.socket));
  root.offered = std::move(offered);
  return root;
}

Result<OpenedRoot> openUnixRoot(const std::string& name) {
  Listening local = listenAt(unixAddress(name));
  if (local.fault.errnum != 0) {
    return Error{
        pealSystemError,
        fmt::format("rank 0 cannot listen: {}.{}", local.fault.text,
                    local.fault.errnum == EADDRINUSE
                        ? " Another process of this job claims to be rank 0: give each its own rank, or "
                          "set PEAL_ROOT=host:port to keep two jobs apart."
                        : "")};
  }
  OpenedRoot root;
  root.listeners.push_back(std::move(local.socket));
  return root;
}

Result<void> startRoot(const IdContent& content, std::vector<Socket> listeners, int64_t joinMs, RootUse use) {
  RootOptions options;
  options.key = rendezvousKey(content);
  options.listeners = std::move(listeners);
  options.joinMs = joinMs;
  Result<std::unique_ptr<RootService>> service = RootService::start(std::move(options));
  if (!service) {
    return service.error();
  }
  hostRoot(std::move(*service), use);
  return {};
}

}  // namespace peal
