// Making the control connections: every pair of ranks on different nodes gets one TCP connection, and both
// ends have proven that they know the communicator's secret and who they are.
//
// Used once per communicator, by connectNetwork. Blocks until its deadline at most. Owns nothing afterwards.
// Strangers are dropped and counted; no length is read from the wire at all: every message of the handshake
// has a fixed one.
#pragma once
#include <vector>

#include "lib/base/clock.h"
#include "lib/bootstrap/auth.h"
#include "lib/bootstrap/socket.h"
#include "transports/transport.h"

namespace peal::network {

// One control connection, ready for authenticated frames.
struct Connection {
  int peerRank = -1;
  Socket socket;
  Key sendKey{};
  Key receiveKey{};
};

struct MeetingOptions {
  std::vector<int> peers;  // who is to be met, in rising order; the same pairs on both sides
  std::string interfaces;  // PEAL_INTERFACE
  Deadline deadline;
};

// Collective over the exchange; an error on any rank is one on all, and names all addresses that were tried.
Result<std::vector<Connection>> meetPeers(Exchange& exchange, const Key& secret,
                                          const MeetingOptions& options);

}  // namespace peal::network
