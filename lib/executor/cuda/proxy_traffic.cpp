// What the proxy carries: messages and credits out of the outboxes, and into the inboxes.
#include <fmt/format.h>

#include <cstring>

#include "lib/executor/cuda/faults.h"
#include "lib/executor/cuda/proxy.h"

namespace peal::cuda {
// ---- out ----

bool Proxy::forward(Peer& peer) {
  bool worked = false;
  for (int channel = 0; channel < options_.shape.channels; ++channel) {
    worked = forwardChannel(peer, channel) || worked;
  }
  return worked;
}

// What the kernel's block of that channel has posted, and the credits that it gives.
bool Proxy::forwardChannel(Peer& peer, int channel) {
  const BoxShape& shape = options_.shape;
  Channel& state = peer.channels[static_cast<size_t>(channel)];
  const uint64_t tail = load(peer, peer.outboxOffset + shape.tail(channel));  // pairs with the kernel's
  if (tail - state.creditsBack > static_cast<uint64_t>(shape.slots)) {        // release of the tail
    raise({{pealInternalError,
            fmt::format("{}: channel {} has posted {} messages to rank {}, which has released "
                        "{} and has {} slots",
                        options_.name, channel, tail, peer.rank, state.creditsBack, shape.slots)},
           options_.rank});
    return false;
  }
  bool worked = false;
  Header header;
  header.channel = static_cast<uint32_t>(channel);
  while (state.forwarded < tail) {
    const int slot = static_cast<int>(state.forwarded % static_cast<uint64_t>(shape.slots));
    std::memcpy(&header.message, peer.base + peer.outboxOffset + shape.message(channel, slot),
                sizeof(Message));
    header.isData = 1;
    header.number = state.forwarded + 1;
    if (!fits(header.message)) {
      raise({{pealInternalError,
              fmt::format("{}: a kernel posted a message of {} bytes at address {:#x} for rank "
                          "{}, which only takes what lies in slots of {} bytes",
                          options_.name, header.message.bytes, header.message.address, peer.rank,
                          shape.slotBytes)},
             options_.rank});
      return false;
    }
    if (!post(peer, channel, header, shape.slot(channel, slot))) {
      return worked;
    }
    state.forwarded = header.number;
    worked = true;
  }
  // Credits that no message took along.
  if (load(peer, peer.outboxOffset + shape.heads(channel)) != state.creditsSent) {
    header.isData = 0;
    header.number = 0;
    header.message = {};
    worked = post(peer, channel, header, 0) || worked;
  }
  return worked;
}

// False: the link has no room now.
bool Proxy::post(Peer& peer, int channel, const Header& header, size_t slotAt) {
  Header complete = header;
  // Pairs with the kernel's release of its credits: it has read what lay in those slots.
  complete.released = load(peer, peer.outboxOffset + options_.shape.heads(channel));
  std::byte* const stage =
      network_->link(peer.rank).tryStage(sizeof header + (slots_ ? 0 : header.message.bytes));
  if (stage == nullptr || !handOver(peer, stage, complete, slotAt)) {
    if (!peer.blockedSince) {
      peer.blockedSince = Clock::now();
    }
    return false;
  }
  peer.blockedSince.reset();
  peer.channels[static_cast<size_t>(channel)].creditsSent = complete.released;
  return true;
}

// The payload goes along in the link's slot, or from one GPU to the other.
bool Proxy::handOver(Peer& peer, std::byte* stage, const Header& header, size_t slotAt) {
  Link& link = network_->link(peer.rank);
  const Digest digest = digestOf(header.message.digest);
  const size_t payloadAt = slotAt + header.message.address;
  const size_t bytes = header.message.bytes;
  std::memcpy(stage, &header, sizeof header);
  if (slots_) {
    const std::byte* const box = slots_->base + (peer.base + peer.outboxOffset - memory_.data());
    return link.tryPostCarrying(
        sizeof header, digest,
        {box + payloadAt, bytes, slots_->peerInboxes[static_cast<size_t>(peer.rank)] + payloadAt});
  }
  if (bytes > 0) {
    std::memcpy(stage + sizeof header, peer.base + peer.outboxOffset + payloadAt, bytes);
  }
  link.post(sizeof header + bytes, digest);
  return true;
}

// ---- in ----

bool Proxy::receive(Peer& peer) {
  Link& link = network_->link(peer.rank);
  Arrival arrival;
  bool worked = false;
  // Bounded, so that one peer cannot keep the proxy from the others.
  for (int count = 0; count < options_.shape.channels * options_.shape.slots; ++count) {
    if (faulted_.load(std::memory_order_relaxed) || !link.tryReceive(arrival)) {
      break;
    }
    take(peer, arrival);
    link.release();
    worked = true;
  }
  return worked;
}

void Proxy::take(Peer& peer, const Arrival& arrival) {
  Header header;
  if (arrival.bytes >= sizeof header) {
    std::memcpy(&header, arrival.data, sizeof header);
  }
  if (!checkHeader(peer, header, arrival.bytes)) {
    return;
  }
  const BoxShape& shape = options_.shape;
  const int channel = static_cast<int>(header.channel);
  Channel& state = peer.channels[header.channel];
  if (header.isData != 0) {
    const int slot = static_cast<int>(state.received % static_cast<uint64_t>(shape.slots));
    if (!slots_) {
      std::memcpy(peer.base + inboxOffset() + shape.slot(channel, slot) + header.message.address,
                  arrival.data + sizeof header, header.message.bytes);
    } else if (const Result<void> seen = slots_->awaitWrites(); !seen) {
      raise({seen.error(), options_.rank});
      return;
    }
    std::memcpy(peer.base + inboxOffset() + shape.message(channel, slot), &header.message, sizeof(Message));
    state.received = header.number;
    // Pairs with the acquire of the kernel that waits for the message.
    store(peer, inboxOffset() + shape.tail(channel), header.number);
  }
  if (header.released > state.creditsBack) {
    state.creditsBack = header.released;
    // Pairs with the acquire of the kernel that waits for a free slot.
    store(peer, inboxOffset() + shape.heads(channel), header.released);
  }
}

// Nothing that a peer sent is believed: not where it goes, nor how long it is, nor that its slot is free.
bool Proxy::checkHeader(const Peer& peer, const Header& header, size_t arrivedBytes) {
  const BoxShape& shape = options_.shape;
  const auto wrong = [&](const std::string& what) {
    raise({{pealRemoteError, fmt::format("{}: rank {}'s proxy sent {}", options_.name, peer.rank, what)},
           peer.rank});
    return false;
  };
  if (arrivedBytes < sizeof header) {
    return wrong(fmt::format("{} bytes, fewer than the {} of a header", arrivedBytes, sizeof header));
  }
  if (header.channel >= static_cast<uint32_t>(shape.channels)) {
    return wrong(fmt::format("channel {} of {}", header.channel, shape.channels));
  }
  const Channel& state = peer.channels[header.channel];
  if (header.released > state.forwarded) {
    return wrong(fmt::format("credit for {} messages of {}", header.released, state.forwarded));
  }
  if (header.isData == 0) {
    return true;
  }
  const uint64_t released = load(peer, peer.outboxOffset + shape.heads(static_cast<int>(header.channel)));
  if (header.number != state.received + 1 || header.number - released > static_cast<uint64_t>(shape.slots)) {
    return wrong(fmt::format("message {} after {}, with {} released and {} slots", header.number,
                             state.received, released, shape.slots));
  }
  if (!fits(header.message) || arrivedBytes - sizeof header != (slots_ ? 0 : header.message.bytes)) {
    return wrong(fmt::format("{} bytes for a message of {} bytes at address {:#x}",
                             arrivedBytes - sizeof header, header.message.bytes, header.message.address));
  }
  return true;
}

}  // namespace peal::cuda
