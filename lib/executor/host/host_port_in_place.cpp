// The host port's agreement on whether an operation's chunks are handed over in place, all of them: only then
// need they not fit a slot, and every rank has to cut its array alike.
#include "lib/executor/host/host_port.h"

namespace peal {

bool HostPort::mayPassInPlace(const Blocks& blocks) {
  const Chunk own = blocks.block(rank());
  // What is below the least reference is staged: ends of blocks.
  bool all = context_.endpoint->slotBytes() >= kReferenceLeastBytes && !op_.preMultiply;
  for (int step = 1; step < size() && all; ++step) {
    const int peer = (rank() + step) % size();
    Link& link = context_.endpoint->link(peer);
    const Chunk theirs = blocks.block(peer);
    all = (theirs.count == 0 || link.canReference(inAt(theirs), bytes(theirs))) &&
          (own.count == 0 || link.canReference(outAt(own), bytes(own)));
  }
  return all;
}

bool HostPort::allInPlace(const Blocks& blocks) {
  bool all = mayPassInPlace(blocks);
  for (int step = 1; step < size(); ++step) {
    const int peer = (rank() + step) % size();
    if (std::byte* slot = stage(peer, 1); slot != nullptr) {
      *slot = std::byte{all};
      context_.endpoint->link(peer).post(1, digest_);
    }
  }
  for (int step = 1; step < size(); ++step) {
    const int peer = (rank() + step) % size();
    Arrival arrival;
    if (!receive(peer, 1, arrival)) {
      return false;
    }
    all = all && *arrival.data == std::byte{1};
    context_.endpoint->link(peer).release();
  }
  return all;
}

}  // namespace peal
