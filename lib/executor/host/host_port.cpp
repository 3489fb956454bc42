#include "lib/executor/host/host_port.h"

#include <fmt/format.h>

#include <algorithm>

namespace peal {
namespace {

// Below this a message is cheaper to copy into a slot than to be read where it lies by a system call.
constexpr size_t kOfferLeastBytes = 16384;

// With an epilogue sums are made in pieces of this size, on the stack: it finds them in the second cache
// whatever a slot's size. Each change from summing to updating costs: bench/zero_step's fused step over its
// separate path was 1.06 to 1.15 (two ranks) and 0.92 (four) with 16 KiB, 0.97 to 1.00 and 0.88 to 0.90 with
// 64 KiB, no better with 128 KiB (two-core EPYC, medians of four runs in alternation, 2026-11-30).
constexpr size_t kEpiloguePieceBytes = 65536;

}  // namespace

static_assert(SumPort<HostPort>);

HostPort::HostPort(HostContext& context, const Digest& digest, pealDataType_t type, const ReduceOp& op,
                   const HostBuffers& buffers, const Options& options)
    : context_(context),
      digest_(digest),
      waiter_(context, digest_),
      type_(type),
      elementBytes_(peal::elementBytes(type)),
      op_(op),
      buffers_(buffers),
      options_(options),
      wholeChunks_(options.offer) {}

// ---- messages -----------------------------------------------------------------------------------------

std::byte* HostPort::stage(int to, size_t sizeBytes) {
  Link& link = context_.endpoint->link(to);
  std::byte* slot = nullptr;
  return waiter_.until(to, [&] { return (slot = link.tryStage(sizeBytes)) != nullptr; }) ? slot : nullptr;
}

void HostPort::post(int to, size_t sizeBytes) {
  context_.endpoint->link(to).post(sizeBytes, digest_);
  context_.stats.bytesSent[digest_.collective] += sizeBytes;
  ++context_.stats.messages[digest_.collective];
}

void HostPort::postAll(size_t sizeBytes) {
  context_.endpoint->postAll(sizeBytes, digest_);
  context_.stats.bytesSent[digest_.collective] += sizeBytes * static_cast<size_t>(size() - 1);
  context_.stats.messages[digest_.collective] += static_cast<uint64_t>(size() - 1);
}

bool HostPort::receive(int from, size_t sizeBytes, Arrival& arrival, bool mayLand) {
  Link& link = context_.endpoint->link(from);
  if (!waiter_.until(from, [&] { return link.tryReceive(arrival); }) ||
      !checkArrival(from, sizeBytes, arrival)) {
    return false;
  }
  if ((arrival.landed && !mayLand) || (arrival.remote && !options_.offer)) {
    waiter_.fail({pealRemoteError,
                  fmt::format("{}: rank {} says that it {} {} bytes where it was to send them. It runs "
                              "another version of peal.",
                              context_.name, from, arrival.landed ? "wrote in place" : "offers", sizeBytes)},
                 from);
    return false;
  }
  return true;
}

bool HostPort::checkArrival(int from, size_t sizeBytes, const Arrival& arrival) {
  if (arrival.digest == digest_ && fitsChunk(sizeBytes, arrival)) [[likely]] {
    return true;
  }
  waiter_.fail(unexpectedArrival(context_, digest_, from, sizeBytes, arrival), from);
  return false;
}

// Whether a message is what a chunk, or the rest of one, may come as.
bool HostPort::fitsChunk(size_t sizeBytes, const Arrival& arrival) const {
  return arrival.bytes == sizeBytes || (options_.anyLength && arrival.bytes > 0 &&
                                        arrival.bytes < sizeBytes && arrival.bytes % elementBytes_ == 0);
}

// ---- references ---------------------------------------------------------------------------------------

bool HostPort::mayReference(const std::byte* data, size_t sizeBytes, From from) const {
  return sizeBytes >= kReferenceLeastBytes && data != nullptr && !(from == From::In && op_.preMultiply);
}

// Whether the peer can get at [data, data + sizeBytes) without a slot.
bool HostPort::canHandOver(int to, const std::byte* data, size_t sizeBytes) const {
  Link& link = context_.endpoint->link(to);
  return link.canReference(data, sizeBytes) ||
         (options_.offer && sizeBytes >= kOfferLeastBytes && link.canOffer(data, sizeBytes));
}

// Hands it over where it lies; false: not possible, stage it.
bool HostPort::handOver(int to, const std::byte* data, size_t sizeBytes) {
  if (!canHandOver(to, data, sizeBytes)) {
    return false;
  }
  Link& link = context_.endpoint->link(to);
  const bool inPlace = link.canReference(data, sizeBytes);
  if (waiter_.until(to, [&] {
        return inPlace ? link.tryPostReference(data, sizeBytes, digest_)
                       : link.tryPostOffer(data, sizeBytes, digest_);
      })) {
    HostContext::OpenReferences& open = context_.references[static_cast<size_t>(to)];
    open.ring[open.next++ % open.ring.size()] = {data, data + sizeBytes, link.posted()};
    open.any = true;
    context_.stats.bytesSent[digest_.collective] += sizeBytes;
    ++context_.stats.messages[digest_.collective];
  }
  return true;
}

// Before [begin, begin + sizeBytes) is overwritten: waits for peers that read a part of it in place, and for
// those only: a peer may be unable to read a later reference before this rank has gone on. A link has at most
// kReferencesKept slots, so references that have left the ring have been released.
void HostPort::awaitReaders(const std::byte* begin, size_t sizeBytes) {
  for (int peer = 0; peer < context_.size; ++peer) {
    HostContext::OpenReferences& open = context_.references[static_cast<size_t>(peer)];
    if (!open.any) {
      continue;
    }
    Link& link = context_.endpoint->link(peer);
    for (HostContext::Reference& reference : open.ring) {
      if (reference.begin < begin + sizeBytes && begin < reference.end) {
        waiter_.until(peer, [&] { return link.released(reference.number); });
        reference = {};
      }
    }
  }
}

void HostPort::drain() {
  for (int peer = 0; peer < context_.size; ++peer) {
    HostContext::OpenReferences& open = context_.references[static_cast<size_t>(peer)];
    if (open.any) {
      Link& link = context_.endpoint->link(peer);
      waiter_.until(peer, [&] { return help(link) || link.drained(); });
      open = {};
    }
  }
}

std::optional<Fault> HostPort::finish() {
  if (context_.endpoint != nullptr) {
    drain();
    waiter_.untilSettled();
    waiter_.untilReadRight();
  }
  return waiter_.takeFault();
}

// ---- sending ------------------------------------------------------------------------------------------

// Writes own input (multiplied, if the operation asks) or earlier output to a slot.
void HostPort::produce(std::byte* to, Chunk c, From from) {
  if (from == From::In && op_.preMultiply) {
    const void* own = inAt(c);
    reduce(type_, op_,
           {.sources = {&own, 1}, .rawSource = 0, .destinations = {to, nullptr}, .count = c.count});
  } else if (c.count > 0) {
    copyBytes(to, source(from, c), bytes(c), storeForSlot(context_, bytes(c)));
  }
}

void HostPort::sendFrom(int to, Chunk c, From from) {
  const std::byte* data = source(from, c);
  if (from == From::In && options_.lend && bytes(c) >= kReferenceLeastBytes) {
    context_.endpoint->link(to).lend(outAt(c), bytes(c));
  }
  if (mayReference(data, bytes(c), from) && handOver(to, data, bytes(c))) {
    return;
  }
  if (std::byte* slot = stage(to, bytes(c)); slot != nullptr) {
    produce(slot, c, from);
    post(to, bytes(c));
  }
}

void HostPort::sendAllFrom(Chunk c, From from) {
  const std::byte* data = source(from, c);
  Endpoint& endpoint = *context_.endpoint;
  if ((from == From::Out || options_.referenceAll) && mayReference(data, bytes(c), from)) {
    bool all = true;
    for (int step = 1; step < size() && all; ++step) {
      all = canHandOver((rank() + step) % size(), data, bytes(c));
    }
    for (int step = 1; step < size() && all; ++step) {
      all = handOver((rank() + step) % size(), data, bytes(c));
    }
    if (all) {
      return;
    }
  }
  std::byte* slot = nullptr;
  if (waiter_.until(-1, [&] { return (slot = endpoint.tryStageAll(bytes(c))) != nullptr; })) {
    produce(slot, c, from);
    postAll(bytes(c));
  }
}

// Where messages are best handed over several at a time, a chunk is two at least: one is added up while the
// other comes.
size_t HostPort::sliceBytes(Chunk c) const {
  const size_t slotBytes = context_.endpoint->slotBytes();
  const bool halves = options_.halve && context_.endpoint->burst() > 1 && bytes(c) <= slotBytes;
  return halves ? slotBytes / 2 : slotBytes;
}

template <class Each>
void HostPort::inSlices(Chunk c, Each&& each) {
  if (wholeChunks_) {
    each(c);
    return;
  }
  const size_t slice = sliceBytes(c) / elementBytes_;
  size_t done = 0;
  do {  // also for no elements
    const size_t count = std::min(slice, c.count - done);
    each(Chunk{c.offset + done, count});
    done += count;
  } while (done < c.count && !waiter_.failed());
}

void HostPort::send(int to, Chunk c) {
  inSlices(c, [&](Chunk slice) { sendFrom(to, slice, From::In); });
}
void HostPort::sendOut(int to, Chunk c) {
  if (stagedAhead_) {
    stagedAhead_ = false;
    post(to, bytes(c));
  } else if (landings_ == 0 || !sendLanded(to, c)) {
    inSlices(c, [&](Chunk slice) { sendFrom(to, slice, From::Out); });
  }
}
void HostPort::sendAll(Chunk c) {
  if (options_.anyLength && canReferenceAll(c)) {
    sendAllFrom(c, From::In);
  } else {
    inSlices(c, [&](Chunk slice) { sendAllFrom(slice, From::In); });
  }
}
void HostPort::sendOutAll(Chunk c) {
  if (stagedAhead_ && options_.next == Options::Next::ToAll) {
    stagedAhead_ = false;
    postAll(bytes(c));
    return;
  }
  if (landings_ == 0 && !stagedAhead_) {
    inSlices(c, [&](Chunk slice) { sendAllFrom(slice, From::Out); });
    return;
  }
  for (int step = 1; step < size(); ++step) {
    sendOut((rank() + step) % size(), c);
  }
}

// Tells a peer that the chunk lies where it lent memory for it; false: it lent none.
bool HostPort::sendLanded(int to, Chunk c) {
  std::byte*& landing = context_.landings[static_cast<size_t>(to)];
  if (landing == nullptr) {
    return false;
  }
  landing = nullptr;
  --landings_;
  Link& link = context_.endpoint->link(to);
  if (waiter_.until(to, [&] { return link.tryPostLanded(bytes(c), digest_); })) {
    context_.stats.bytesSent[digest_.collective] += bytes(c);
    ++context_.stats.messages[digest_.collective];
  }
  return true;
}

void HostPort::copySend(int to, Chunk c) {
  copy(c);
  // From out: the same bytes, and just now in the cache.
  sendFrom(to, c, From::Out);
}

// ---- receiving ----------------------------------------------------------------------------------------

void HostPort::recv(int from, Chunk c) {
  if (options_.anyLength) {
    recvAnyLength(from, c);
  } else {
    inSlices(c, [&](Chunk slice) { recvSlice(from, slice); });
  }
}

void HostPort::recvSlice(int from, Chunk c) {
  Arrival arrival;
  Link& link = context_.endpoint->link(from);
  const bool expects = context_.polled != nullptr && !isRead(outAt(c), bytes(c));
  if (expects) {
    link.expect(outAt(c), bytes(c));
  }
  if (!receive(from, bytes(c), arrival, true)) {
    return;
  }
  if (arrival.remote) {
    awaitReaders(outAt(c), bytes(c));
    waiter_.until(from, [&] { return link.pull(outAt(c), 0, bytes(c)); });
  } else if (!arrival.landed && !(expects && arrival.data == outAt(c))) {
    awaitReaders(outAt(c), bytes(c));
    copyBytes(outAt(c), arrival.data, bytes(c), options_.store);
  }
  link.release();
}

// Whether a peer may still read a part of that memory in place. In place that memory was sent from earlier in
// the same operation: a network that copies references is through with it by now.
bool HostPort::isRead(const std::byte* begin, size_t sizeBytes) {
  for (int peer = 0; peer < context_.size; ++peer) {
    HostContext::OpenReferences& open = context_.references[static_cast<size_t>(peer)];
    if (!open.any) {
      continue;
    }
    for (HostContext::Reference& reference : open.ring) {
      if (reference.begin < begin + sizeBytes && begin < reference.end) {
        if (!context_.endpoint->link(peer).released(reference.number)) {
          return true;
        }
        reference = {};
      }
    }
  }
  return false;
}

void HostPort::recvCopySend(int from, int to, Chunk c) {
  Arrival arrival;
  if (receive(from, bytes(c), arrival)) {
    awaitReaders(outAt(c), bytes(c));
    copyBytes(outAt(c), arrival.data, bytes(c), Store::Cached);
    context_.endpoint->link(from).release();
    sendFrom(to, c, From::Out);
  }
}

// The finished value of a chunk goes to `out`, and also to `copy` unless that is null, and to the landings.
// Advances the sources.
void HostPort::reduceFinished(std::span<const void*> sources, int rawSource, Chunk c, std::byte* copy,
                              Store store) {
  if (options_.epilogue != nullptr) {
    applyFinished(sources, rawSource, c, copy, store);
    return;
  }
  reduce(type_, op_,
         {.sources = sources,
          .rawSource = rawSource,
          .destinations = {outAt(c), copy},
          .count = c.count,
          .finish = Finish::Yes,
          .store = store,
          .secondCached = stagedAhead_ && storeForSlot(context_, bytes(c)) == Store::Cached});
  copyToLandings(outAt(c), 0, bytes(c), copy);
}

// The same by way of the epilogue, piece by piece. What it makes of a sum replaces it:
// from the cache it goes to `out`, to the copy and to every landing, and their memory is never read.
void HostPort::applyFinished(std::span<const void*> sources, int rawSource, Chunk c, std::byte* copy,
                             Store store) {
  HostEpilogue& epilogue = *options_.epilogue;
  alignas(64) std::array<std::byte, kEpiloguePieceBytes> sum;
  const size_t most = sum.size() / elementBytes_;
  for (size_t done = 0; done < c.count; done += most) {
    const Chunk piece{c.offset + done, std::min(most, c.count - done)};
    const size_t at = done * elementBytes_;
    std::byte* const pieceCopy = copy == nullptr ? nullptr : copy + at;
    reduce(type_, op_,
           {.sources = sources,
            .rawSource = rawSource,
            .destinations = {sum.data(), nullptr},
            .count = piece.count,
            .finish = Finish::Yes});
    epilogue.apply(sum.data(), piece);
    const std::array<const void*, 1> made{sum.data()};
    reduce(pealUint8, {},
           {.sources = made,
            .destinations = {outAt(piece), pieceCopy},
            .count = bytes(piece),
            .store = store,
            .secondCached = stagedAhead_});
    copyToLandings(sum.data(), at, bytes(piece), copy);
    for (const void*& source : sources) {
      source = static_cast<const std::byte*>(source) + bytes(piece);
    }
  }
}

// A part of a finished chunk, from `at` on, to every peer that lent memory for it but the one that has it.
void HostPort::copyToLandings(const std::byte* part, size_t at, size_t sizeBytes, const std::byte* except) {
  for (size_t peer = 0; landings_ > 1 && peer < context_.landings.size(); ++peer) {
    std::byte* const landing = context_.landings[peer];
    if (landing != nullptr && landing + landed_ != except) {
      copyBytes(landing + landed_ + at, part, sizeBytes, options_.store);
    }
  }
}

// A slot for a finished chunk that is about to be sent on, if one is free right now and the peers will not
// read the chunk in place.
std::byte* HostPort::stageAhead(Chunk c) {
  const int peer = (rank() + 1) % size();
  if (options_.next == Options::Next::Unknown || !oneSlice_ || bytes(c) > context_.endpoint->slotBytes() ||
      (mayReference(outAt(c), bytes(c), From::Out) &&
       context_.endpoint->link(peer).canReference(outAt(c), bytes(c)))) {
    return nullptr;
  }
  return options_.next == Options::Next::ToOne ? context_.endpoint->link(peer).tryStage(bytes(c))
                                               : context_.endpoint->tryStageAll(bytes(c));
}

// The same; the first landing, or a slot if there is none, is the copy: written in the same pass.
void HostPort::reduceToLandings(std::span<const void*> sources, Chunk c) {
  std::byte* first = nullptr;
  for (int step = 1; step < size(); ++step) {
    const auto peer = static_cast<size_t>((rank() + step) % size());
    context_.landings[peer] = context_.arrivals[peer].landing;
    if (context_.landings[peer] != nullptr) {
      ++landings_;
      first = first == nullptr ? context_.landings[peer] : first;
    }
  }
  if (landings_ == 0) {
    first = stageAhead(c);
    stagedAhead_ = first != nullptr;
  }
  const bool fromOut = landings_ > 1 && options_.epilogue == nullptr;
  const bool readAgain = !stagedAhead_ && (landings_ != static_cast<size_t>(size() - 1) || fromOut);
  reduceArrived(sources, c, first, readAgain ? Store::Cached : options_.store);
}

void HostPort::reduceTwo(const Arrival& arrival, Chunk c, std::byte* copy) {
  std::array<const void*, 2> sources{arrival.data, inAt(c)};
  reduceFinished(sources, 1, c, copy, Store::Cached);
}

void HostPort::recvReduceSend(int from, int to, Chunk c) {
  Arrival arrival;
  if (receive(from, bytes(c), arrival)) {
    if (std::byte* slot = stage(to, bytes(c)); slot != nullptr) {
      const std::array<const void*, 2> sources{arrival.data, inAt(c)};
      reduce(type_, op_,
             {.sources = sources, .rawSource = 1, .destinations = {slot, nullptr}, .count = c.count});
      context_.endpoint->link(from).release();
      post(to, bytes(c));
    }
  }
}

void HostPort::recvReduceCopy(int from, Chunk c) {
  Arrival arrival;
  if (receive(from, bytes(c), arrival)) {
    awaitReaders(outAt(c), bytes(c));
    reduceTwo(arrival, c, nullptr);
    context_.endpoint->link(from).release();
  }
}

void HostPort::recvReduceCopySend(int from, int to, Chunk c) {
  Arrival arrival;
  if (receive(from, bytes(c), arrival)) {
    awaitReaders(outAt(c), bytes(c));
    if (mayReference(outAt(c), bytes(c), From::Out) &&
        context_.endpoint->link(to).canReference(outAt(c), bytes(c))) {
      reduceTwo(arrival, c, nullptr);
      context_.endpoint->link(from).release();
      handOver(to, outAt(c), bytes(c));
    } else if (std::byte* slot = stage(to, bytes(c)); slot != nullptr) {
      reduceTwo(arrival, c, slot);
      context_.endpoint->link(from).release();
      post(to, bytes(c));
    }
  }
}

void HostPort::recvReduceAll(Chunk c) {
  oneSlice_ = wholeChunks_ || bytes(c) <= sliceBytes(c);
  inSlices(c, [&](Chunk slice) { recvReduceSlice(slice); });
}

void HostPort::recvReduceSlice(Chunk c) {
  for (int step = 1; step < size(); ++step) {
    const int from = (rank() + step) % size();
    Arrival& arrival = context_.arrivals[static_cast<size_t>(from)];
    if (!receive(from, bytes(c), arrival)) {
      return;
    }
    context_.sources[static_cast<size_t>(from)] = arrival.data;
  }
  if (c.count > 0) {
    context_.sources[static_cast<size_t>(rank())] = inAt(c);
    awaitReaders(outAt(c), bytes(c));
    const std::span<const void*> sources(context_.sources.data(), static_cast<size_t>(size()));
    if (options_.lend) {
      reduceToLandings(sources, c);
    } else {
      reduceArrived(sources, c, nullptr, options_.store);
    }
  }
  for (int step = 1; step < size(); ++step) {
    context_.endpoint->link((rank() + step) % size()).release();
  }
}

// ---- own data -----------------------------------------------------------------------------------------

void HostPort::copy(Chunk c) {
  if (c.count > 0 && inAt(c) != outAt(c) && !waiter_.failed()) {
    if (context_.polled != nullptr) {
      context_.polled->poll();  // what was posted goes on meanwhile
    }
    awaitReaders(outAt(c), bytes(c));
    copyBytes(outAt(c), inAt(c), bytes(c), options_.store);
  }
}

void HostPort::copyFinish(Chunk c) {
  if (c.count > 0 && !waiter_.failed()) {
    const void* own = inAt(c);
    reduceFinished({&own, 1}, 0, c, nullptr, options_.store);
  }
}

}  // namespace peal
