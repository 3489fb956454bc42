// Bootstrap: ranks find each other over TCP (or a Unix socket on one machine) and exchange small blobs before
// links exist.
//
// The unique id carries the root's addresses, its port and a secret. Hello messages are authenticated with
// the secret; strangers are dropped and counted; no length is believed before it is bounded.
#pragma once
#include <array>
#include <cstdint>
#include <memory>
#include <string>

#include "lib/base/clock.h"
#include "lib/base/result.h"
#include "transports/transport.h"

namespace peal {

using Secret = std::array<uint8_t, 32>;

// A live membership of the rendezvous. allGather works until it is destroyed.
class Rendezvous : public Exchange {
 public:
  // The secret of the communicator that is being made: known to its ranks only.
  virtual const Secret& secret() const = 0;
};

// pealGetUniqueId: makes an id, binds a listening socket and starts the root service in a thread of this
// process that ends by itself (all ranks gone, or the start deadline passed).
Result<pealUniqueId> createUniqueId();

// Joins. Returns when all `size` ranks have joined, or an error that names the missing ranks, the rank
// that came twice, or the addresses tried with the reason for each.
Result<std::unique_ptr<Rendezvous>> joinRendezvous(const pealUniqueId& id, int rank, int size,
                                                   Deadline deadline);

// What the launcher says of this process (lib/bootstrap/launch.cpp).
struct Launch {
  int rank = 0;
  int size = 1;
  int localRank = -1;
  int localSize = -1;
  std::string launcher = "none";
};
Result<Launch> detectLaunch();

// The id of the communicator of all processes of this launch. Rank 0 starts the root service.
//  - PEAL_ROOT=host:port (IPv6 in brackets) names where rank 0 listens, for any launcher;
//  - MASTER_ADDR (torchrun sets it), and a port derived from the job (torchrun: from MASTER_PORT);
//  - Slurm on several nodes: the first host of the step's node list, and a port derived from the job;
//  - Open MPI on several nodes: the machine of mpirun, where rank 0 is unless a host list says otherwise;
//  - all ranks on one machine (local size == size, or PEAL_ROOT unset under PEAL_RANK): an abstract Unix
//    socket named after the job.
Result<pealUniqueId> launchUniqueId(const Launch& launch);

}  // namespace peal
