// Opening the root: listening sockets where PEAL_PORT, PEAL_INTERFACE or a launcher wants them, and the
// service behind them. Used by unique_id.cpp and launch_id.cpp.
#pragma once
#include "lib/bootstrap/id.h"
#include "lib/bootstrap/root.h"
#include "lib/bootstrap/socket.h"

namespace peal {

struct OpenedRoot {
  std::vector<Socket> listeners;
  uint16_t port = 0;
  std::vector<Address> offered;  // where others can try, best first
};

// With a pattern: only at the selected interfaces' addresses. Without: everywhere.
// wantedBy: the setting that asked for the port, for the sentence when it is in use.
Result<OpenedRoot> openTcpRoot(uint16_t port, const std::string& interfacePattern,
                               const std::string& wantedBy);
// At these addresses only, all with the same, non-zero port.
Result<OpenedRoot> openTcpRootAt(const std::vector<Address>& addresses, const std::string& wantedBy);
Result<OpenedRoot> openUnixRoot(const std::string& name);

// Starts the service and leaves it to itself (hostRoot).
Result<void> startRoot(const IdContent& content, std::vector<Socket> listeners, int64_t joinMs, RootUse use);

}  // namespace peal
