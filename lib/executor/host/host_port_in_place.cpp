// Chunks that need not fit a slot: the host port's agreement on whether all of an operation are handed over
// in place (every rank has to cut its array alike), messages as long as their sender can make them, copies
// that sender and receiver make together, and sums of chunks that were offered.
#include "lib/executor/host/host_port.h"

namespace peal {
namespace {

// Offered inputs are summed by way of memory that the cache holds: this much for all peers together, and no
// less of each than pays for the call.
constexpr size_t kPulledBytes = size_t{512} << 10;
constexpr size_t kLeastPulledBytes = 32768;
constexpr size_t kMostPulledBytes = size_t{128} << 10;
// A sum that goes to several landings is made in pieces that the cache holds.
constexpr size_t kLandedPieceBytes = 65536;

}  // namespace

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
  wholeChunks_ = wholeChunks_ || all;
  return all;
}

// Whether every peer reads that chunk of `in` in place.
bool HostPort::canReferenceAll(Chunk c) const {
  bool all = mayReference(inAt(c), bytes(c), From::In);
  for (int step = 1; step < size() && all; ++step) {
    all = context_.endpoint->link((rank() + step) % size()).canReference(inAt(c), bytes(c));
  }
  return all;
}

void HostPort::recvAnyLength(int from, Chunk c) {
  Link& link = context_.endpoint->link(from);
  size_t done = 0;
  do {  // also for no elements
    Chunk rest{c.offset + done, c.count - done};
    Arrival arrival;
    if (!receive(from, bytes(rest), arrival)) {
      return;
    }
    rest.count = arrival.bytes / elementBytes_;
    awaitReaders(outAt(rest), bytes(rest));
    keep(from, rest, arrival.data);
    link.release();
    done += rest.count;
  } while (done < c.count && !waiter_.failed());
}

// What has arrived goes to `out`. The sender of a reference waits, so it takes its part of the copy where it
// has a core to do so.
void HostPort::keep(int from, Chunk c, const std::byte* data) {
  if (!context_.oversubscribed && context_.endpoint->link(from).share(outAt(c))) {
    copyTogether(from);
  } else {
    copyBytes(outAt(c), data, bytes(c), options_.store);
  }
}

void HostPort::copyTogether(int from) {
  Link& link = context_.endpoint->link(from);
  Part part;
  while (!context_.abort->load(std::memory_order_relaxed) && link.takeShared(part)) {
    copyBytes(part.to, part.from, part.bytes, options_.store);
  }
  waiter_.until(from, [&] { return link.shareDone(); });
}

// A part of a copy that the peer shares: false, so that a wait looks at what it waits for.
bool HostPort::help(Link& link) const {
  Part part;
  while (options_.anyLength && !context_.abort->load(std::memory_order_relaxed) && link.takePart(part)) {
    copyBytes(part.to, part.from, part.bytes, options_.store);
    link.partDone();
  }
  return false;
}

// The sum of what has arrived from all peers. In pieces where some of it has to be copied first, or goes to
// several landings.
void HostPort::reduceArrived(std::span<const void*> sources, Chunk c, std::byte* copy, Store store) {
  size_t offers = 0;
  for (int step = 1; step < size(); ++step) {
    offers += context_.arrivals[static_cast<size_t>((rank() + step) % size())].remote ? 1 : 0;
  }
  if (offers == 0 && landings_ <= 1) {
    reduceFinished(sources, rank(), c, copy, store);
    return;
  }
  const size_t pieceBytes = offers == 0
                                ? kLandedPieceBytes
                                : std::clamp(kPulledBytes / offers, kLeastPulledBytes, kMostPulledBytes);
  context_.pulled.resize(std::max(context_.pulled.size(), pieceBytes * offers));
  const size_t most = pieceBytes / elementBytes_;
  for (size_t done = 0; done < c.count; done += most) {
    const Chunk piece{c.offset + done, std::min(most, c.count - done)};
    landed_ = done * elementBytes_;
    if (!gather(sources, piece, pieceBytes)) {
      break;
    }
    reduceFinished(sources, rank(), piece, copy == nullptr ? nullptr : copy + landed_, store);
  }
  landed_ = 0;
}

// Where the piece that begins landed_ bytes into each arrival lies; what was offered is copied here.
bool HostPort::gather(std::span<const void*> sources, Chunk piece, size_t placeBytes) {
  std::byte* place = context_.pulled.data();
  for (int step = 1; step < size(); ++step) {
    const int from = (rank() + step) % size();
    const Arrival& arrival = context_.arrivals[static_cast<size_t>(from)];
    const void*& source = sources[static_cast<size_t>(from)];
    source = arrival.remote ? place : arrival.data + landed_;
    if (arrival.remote) {
      Link& link = context_.endpoint->link(from);
      if (!waiter_.until(from, [&] { return link.pull(place, landed_, bytes(piece)); })) {
        return false;
      }
      place += placeBytes;
    }
  }
  sources[static_cast<size_t>(rank())] = inAt(piece);
  return true;
}

}  // namespace peal
