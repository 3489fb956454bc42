// Makes the connections between the ranks of one machine: who they are, that they know the secret, and whose
// memory file is whose. Used once per communicator, by connectShm.
//
// Owns nothing afterwards: the result has everything. Every wait in it ends at the deadline.
#pragma once
#include <sys/types.h>

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "lib/base/result.h"
#include "transports/shm/greeting.h"
#include "transports/shm/segment.h"
#include "transports/shm/shm.h"
#include "transports/shm/wire.h"

namespace peal::shm {

// What a rank has of one peer.
struct Peer {
  OwnedFd socket;
  std::shared_ptr<Segment> segment;
  pid_t pid = 0;             // as this process sees it; 0: not visible
  bool sameProcess = false;  // the kernel says so, not the peer
  bool weCanRead = false;    // process_vm_readv on the peer works
  bool peerCanRead = false;  // and the other way
};

struct Membership {
  int rank = 0;
  std::shared_ptr<Segment> segment;  // this rank's own
  std::vector<Peer> peers;           // by rank; the entry of this rank is empty
};

// Collective over the exchange.
Result<Membership> connectPeers(Exchange& exchange, const SecretKey& secret, const ShmOptions& options,
                                const Layout& layout);

}  // namespace peal::shm
