// The joining side's way to the root: all addresses of the id are tried, a little apart, and the first at
// which somebody proves the secret is kept.
//
// Called by joinRendezvous only. Blocks until its deadline at most.
#pragma once
#include "lib/base/clock.h"
#include "lib/bootstrap/id.h"
#include "lib/bootstrap/wire.h"

namespace peal {

// A connection to a root that has proved the secret and waits for our Join.
struct RootConnection {
  Socket socket;
  Nonces nonces;
  std::string root;  // its address, for sentences
};

// The error lists every address with the reason why it did not work.
Result<RootConnection> reachRoot(const IdContent& content, const Key& key, Deadline deadline);

}  // namespace peal
