// The shared-memory transport: memfds passed over Unix sockets (nothing in /dev/shm, nothing left behind by
// a killed rank), slots in shared pages, and reading a peer's registered buffer in place.
#pragma once
#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "lib/base/clock.h"
#include "transports/transport.h"

namespace peal {

struct ShmOptions {
  size_t slotBytes = 65536;  // multiple of 64
  int slots = 4;
  bool directRead = true;    // false: references are never used
  Deadline deadline;         // of the connection
  std::vector<int> ranks{};  // numbers of the exchange's ranks in the communicator, which has `size`, for
  int size = 0;              // sentences and culprits; empty: their own
  int numberOf(int rank) const { return ranks.empty() ? rank : ranks[static_cast<size_t>(rank)]; }
};

// What this process can tell about the transport without peers, for people who ask what was found and why.
struct ShmSupport {
  bool available = false;
  std::string reason;      // why, or why not
  bool crossRead = false;  // buffers that are registered but not from pealMemAlloc can be read in place
  std::string crossReadReason;
};
ShmSupport probeShm();

// Connects this rank with all ranks of the exchange. Collective. `secret` is known to the ranks of this
// communicator only; the sockets prove it to each other.
Result<std::unique_ptr<Endpoint>> connectShm(Exchange& exchange, const std::array<uint8_t, 32>& secret,
                                             const ShmOptions& options);

}  // namespace peal
