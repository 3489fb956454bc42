// The host port's sums of chosen terms (algorithms/port.h): hold collects where each term lies, the sum reads
// them all in one pass and gives the slots back.
#include "lib/executor/host/host_port.h"

namespace peal {

void HostPort::holdTerm(const std::byte* data, int from) {
  context_.sources[terms_] = data;
  context_.holders[terms_] = from;
  ++terms_;
}

void HostPort::hold(int from, Chunk c) {
  Arrival& arrival = context_.arrivals[static_cast<size_t>(from)];
  if (receive(from, bytes(c), arrival)) {
    holdTerm(arrival.data, from);
  }
}

void HostPort::holdIn(Chunk c) {
  if (!waiter_.failed()) {
    rawTerm_ = static_cast<int>(terms_);
    holdTerm(inAt(c), rank());
  }
}

void HostPort::holdOut(Chunk c) {
  if (!waiter_.failed()) {
    holdTerm(outAt(c), rank());
  }
}

// Ends the sum; a finished one goes to `out`. Nothing is written after a fault: terms are missing then.
void HostPort::sumTerms(Chunk c, std::byte* to, Finish finish) {
  if (!waiter_.failed()) {
    const std::span<const void*> terms(context_.sources.data(), terms_);
    if (c.count > 0 && finish == Finish::Yes) {
      reduceFinished(terms, rawTerm_, c, nullptr, Store::Cached);
    } else if (c.count > 0) {
      reduce(type_, op_,
             {.sources = terms, .rawSource = rawTerm_, .destinations = {to, nullptr}, .count = c.count});
    }
    for (size_t i = 0; i < terms_; ++i) {
      if (context_.holders[i] != rank()) {
        context_.endpoint->link(context_.holders[i]).release();
      }
    }
  }
  terms_ = 0;
  rawTerm_ = -1;
}

void HostPort::sumSend(int to, Chunk c) {
  std::byte* slot = stage(to, bytes(c));
  sumTerms(c, slot, Finish::No);
  if (slot != nullptr && !waiter_.failed()) {
    post(to, bytes(c));
  }
}

void HostPort::sumKeep(Chunk c) {
  awaitReaders(outAt(c), bytes(c));
  sumTerms(c, outAt(c), Finish::No);
}

void HostPort::sumCopy(Chunk c) {
  awaitReaders(outAt(c), bytes(c));
  sumTerms(c, outAt(c), Finish::Yes);
}

}  // namespace peal
