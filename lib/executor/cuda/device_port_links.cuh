// The device port's links: counters, what a step does and waits for, and how it is handed over. A part of
// device_port.cuh, which includes it.
#pragma once
#include "lib/executor/cuda/device_port.cuh"

namespace peal::cuda {

template <class Element, Protocol kProtocol, class Epilogue>
PEAL_DEVICE_CALL void DevicePort<Element, kProtocol, Epilogue>::begin(const Blocks& blocks) {
  const CommView& comm = args_.comm;
  const ChannelState& channel = comm.channels[blockIndex()];
  typeBytes_ = bytesOfType(args_.digest.type);
  if (comm.shape.slots > kMostSlots || comm.ranks > kMostRanks || args_.chunkCount == 0 ||
      args_.chunkCount * elementBytes() > comm.shape.payloadBytes(kProtocol)) {
    halt();
  }
  sequence_ = loadGlobal(&channel.sequence);
  DigestWords digest = args_.digest;
  digest.sequence = static_cast<uint32_t>(sequence_);
  digest_ = headerOf(digest, 0);
  if (blockIndex() == 0 && threadIndex() == 0) {
    notePassage(comm, digest_);
  }
  if constexpr (kReduces<Element>) {
    scalarBits_ = args_.scalarBits;
    if (args_.preMultiply != 0 && args_.scalar != nullptr) {
      withElement<Element>(args_.digest.type, [&](auto element) {
        using Bits = typename decltype(element)::Bits;
        scalarBits_ = loadGlobal(static_cast<const Bits*>(args_.scalar));
      });
    }
  }
  for (uint32_t i = threadIndex(); i <= static_cast<uint32_t>(blocks.parts); i += blockThreads()) {
    state_.starts[i] = blocks.start(static_cast<int>(i));
  }
  if constexpr (kProtocol == Protocol::Simple) {
    PEAL_KEEP_LOOP
    for (uint32_t i = threadIndex(); comm.nodes > 1 && i < groupingTableSize(static_cast<size_t>(size()));
         i += blockThreads()) {
      state_.nodeTable[i] = loadGlobal(comm.nodeTable + i);
    }
  }
  forMessagesOf(kAll, [&](int peer) {
    state_.received[peer] = loadGlobal(&channel.links[peer].received[static_cast<int>(kProtocol)]);
    state_.held[peer] = 0;
  });
  forSlotsOf(kAll, [&](int peer) {
    state_.sent[peer] = loadGlobal(&channel.links[peer].sent[static_cast<int>(kProtocol)]);
    if constexpr (kProtocol == Protocol::Simple) {
      PEAL_KEEP_LOOP
      for (int slot = 0; slot < comm.shape.slots; ++slot) {
        state_.references[peer][slot].bytes = 0;
      }
    }
  });
  if (kProtocol == Protocol::Simple && threadIndex() == 0) {
    beginReading(comm);
  }
  failed_ = syncBlockOr(threadIndex() == 0 && stoppedByOthers(comm, digest_));
}

template <class Element, Protocol kProtocol, class Epilogue>
PEAL_DEVICE_CALL void DevicePort<Element, kProtocol, Epilogue>::end() {
  ChannelState& channel = args_.comm.channels[blockIndex()];
  forMessagesOf(kAll, [&](int peer) {
    storeGlobal(&channel.links[peer].received[static_cast<int>(kProtocol)], state_.received[peer]);
  });
  forSlotsOf(kAll, [&](int peer) {
    if (referencesOpen_ && !failed_) {
      awaitReaders(peer, nullptr, SIZE_MAX);
    }
    storeGlobal(&channel.links[peer].sent[static_cast<int>(kProtocol)], state_.sent[peer]);
  });
  if (threadIndex() == 0) {
    storeGlobal(&channel.sequence, sequence_ + 1);
    if (kProtocol == Protocol::Simple) {
      endReading(args_.comm);
    }
  }
}

// ---- what a step does ----

// Where each peer reads the value that this step sends, as an array over the peers; nullptr: it must be
// copied into a slot.
template <class Element, Protocol kProtocol, class Epilogue>
PEAL_DEVICE const uint64_t* DevicePort<Element, kProtocol, Epilogue>::readableAt(const Step& s,
                                                                                 size_t sizeBytes) const {
  if (kProtocol != Protocol::Simple || s.to == kNone || sizeBytes < kReferenceLeastBytes) {
    return nullptr;
  }
  const uint64_t* at = nullptr;
  if (s.own == Own::Out || s.keep == Keep::Yes) {
    at = args_.outAt;
  } else if (s.from == kNone && args_.preMultiply == 0) {
    // One-shot all-reduce in place: every rank would wait for the others to have read its `in` before it
    // overwrites it, while reading theirs in that same step.
    const bool rewritten = s.to == kAll && args_.kind == pealStatAllReduce && args_.in == args_.out;
    at = rewritten ? nullptr : args_.inAt;
  }
  if (at == nullptr) {
    return nullptr;
  }
  if (s.to != kAll) {
    return at[s.to] != 0 ? at : nullptr;
  }
  PEAL_KEEP_LOOP
  for (int peer = 0; peer < size(); ++peer) {
    if (peer != rank() && at[peer] == 0) {
      return nullptr;
    }
  }
  return at;
}

template <class Element, Protocol kProtocol, class Epilogue>
PEAL_DEVICE typename DevicePort<Element, kProtocol, Epilogue>::Plan
DevicePort<Element, kProtocol, Epilogue>::planOf(const Step& s, Chunk c) const {
  const size_t inOffset = (c.offset - args_.inStart) * elementBytes();
  const size_t outOffset = (c.offset - args_.outStart) * elementBytes();
  const bool multiplies = s.own == Own::In && args_.preMultiply != 0;
  const bool divides = s.finish == Finish::Yes && args_.op == pealAvg;
  Plan plan{};
  plan.bytes = c.count * elementBytes();
  plan.own = s.own == Own::In ? args_.in + inOffset : args_.out + outOffset;
  if (s.keep == Keep::Yes) {
    const bool there = s.from == kNone && !multiplies && !divides && plan.own == args_.out + outOffset;
    plan.kept = there ? nullptr : args_.out + outOffset;
  }
  plan.place = placeFor(s.own != Own::None ? plan.own : args_.out + outOffset);
  const int received = s.from == kNone ? 0 : s.from == kAll ? size() - 1 : s.from == kTerms ? terms_ : 1;
  plan.ownSource = s.own == Own::None ? -1 : s.from == kAll ? rank() : received;
  plan.sources = received + (s.own == Own::None ? 0 : 1);
  plan.readableAt = readableAt(s, plan.bytes);
  if (plan.readableAt != nullptr) {
    const bool input = plan.readableAt == args_.inAt;
    plan.referenced = input ? args_.in + inOffset : args_.out + outOffset;
    plan.readableOffset = input ? inOffset : outOffset;
  } else {
    plan.staged = s.to == kNone ? 0 : s.to == kAll ? size() - 1 : 1;
  }
  plan.rawSource = multiplies ? plan.ownSource : args_.preMultiply != 0 ? rawTerm_ : -1;
  plan.divideBy = divides ? size() : 0;
  return plan;
}

// ---- waiting ----

template <class Element, Protocol kProtocol, class Epilogue>
PEAL_DEVICE_CALL bool DevicePort<Element, kProtocol, Epilogue>::prepare(const Step& s, const Plan& plan) {
  bool ready = true;
  forMessagesOf(s.from, [&](int peer) {
    ready = ready && awaitArrival(peer, plan.bytes, state_.sources[s.from == kAll ? peer : 0]);
  });
  forSlotsOf(s.to, [&](int peer) {
    ready = ready && awaitCredit(peer, plan, state_.destinations[s.to == kAll ? otherIndex(peer) : 0]);
  });
  if (referencesOpen_ && plan.kept != nullptr) {
    forSlotsOf(kAll, [&](int peer) { ready = ready && awaitReaders(peer, plan.kept, plan.bytes); });
  }
  if (threadIndex() == 0) {
    if (plan.ownSource >= 0) {
      state_.sources[plan.ownSource] = plan.own;
    }
    if (plan.kept != nullptr) {
      state_.destinations[plan.staged] = plan.kept;
    }
  }
  return ready;
}

template <class Element, Protocol kProtocol, class Epilogue>
PEAL_DEVICE bool DevicePort<Element, kProtocol, Epilogue>::awaitArrival(int peer, size_t sizeBytes,
                                                                        const void*& source) {
  const ChannelBoxes link = boxes(peer);
  const uint64_t number = state_.received[peer] + 1;
  const Header expects = expected(sizeBytes);
  if constexpr (kProtocol == Protocol::Simple) {
    if (!waitInCollective(args_.comm, peer, expects, [&] { return hasArrived(link, number); })) {
      return false;
    }
    const Envelope envelope = loadMessage(link, number);
    source = envelope.payload(link, number);
    return agrees(peer, expects, envelope.header);
  } else {
    const std::byte* slot = link.inbox + link.shape.lowSlot(link.channel, kProtocol, link.slotOf(number));
    Header header{};
    if (!waitInCollective(args_.comm, peer, expects, [&] { return tryLoadHeader(slot, number, header); })) {
      return false;
    }
    source = slot + Lines<kProtocol>::kHeaderBytes;
    return agrees(peer, expects, header);
  }
}

template <class Element, Protocol kProtocol, class Epilogue>
PEAL_DEVICE bool DevicePort<Element, kProtocol, Epilogue>::awaitCredit(int peer, const Plan& plan,
                                                                       void*& destination) {
  const ChannelBoxes link = boxes(peer);
  const uint64_t number = state_.sent[peer] + 1;
  const Header header = expected(plan.bytes);
  if (!waitInCollective(args_.comm, peer, header, [&] { return link.hasCredit(kProtocol, number); })) {
    return false;
  }
  if constexpr (kProtocol == Protocol::Simple) {
    if (plan.staged > 0) {
      destination = slotFor(link, number, plan.place);
    }
  } else {
    std::byte* slot = link.outbox + link.shape.lowSlot(link.channel, kProtocol, link.slotOf(number));
    storeHeader(slot, number, header);
    destination = slot + Lines<kProtocol>::kHeaderBytes;
  }
  return true;
}

// Until the peer has read every reference to a part of [begin, begin + sizeBytes), and no others: it may be
// unable to read a later one before this rank has gone on. A link has as many references as slots at most.
template <class Element, Protocol kProtocol, class Epilogue>
PEAL_DEVICE bool DevicePort<Element, kProtocol, Epilogue>::awaitReaders(int peer, const std::byte* begin,
                                                                        size_t sizeBytes) {
  const ChannelBoxes link = boxes(peer);
  const auto first = reinterpret_cast<uintptr_t>(begin);
  PEAL_KEEP_LOOP
  for (int slot = 0; slot < link.shape.slots; ++slot) {
    PortState::Reference& reference = state_.references[peer][slot];
    const auto at = reinterpret_cast<uintptr_t>(reference.begin);
    if (reference.bytes == 0 || at + reference.bytes <= first || (at >= first && at - first >= sizeBytes)) {
      continue;
    }
    // Free slots are those of messages that the peer has released.
    const uint64_t next = reference.number + static_cast<uint64_t>(link.shape.slots);
    if (!waitInCollective(args_.comm, peer, expected(reference.bytes),
                          [&] { return link.hasCredit(kProtocol, next); })) {
      return false;
    }
    reference.bytes = 0;
  }
  return true;
}

// ---- terms of a sum ----

template <class Element, Protocol kProtocol, class Epilogue>
PEAL_DEVICE Grouping DevicePort<Element, kProtocol, Epilogue>::nodes() const {
  const int ranks = size();
  const int* const table = state_.nodeTable;
  return {ranks, args_.comm.nodes, table, table + ranks, table + 2 * ranks, table + 3 * ranks};
}

// The message stays where it is until the sum has read it, and is counted then.
template <class Element, Protocol kProtocol, class Epilogue>
PEAL_DEVICE_CALL void DevicePort<Element, kProtocol, Epilogue>::hold(int from, Chunk c) {
  static_assert(kProtocol == Protocol::Simple);
  if (failed_) {
    return;
  }
  forMessagesOf(from, [&](int peer) {
    termsCame_ = termsCame_ && awaitArrival(peer, c.count * elementBytes(), state_.sources[terms_]);
    state_.held[peer] = 1;
  });
  ++terms_;
}

// ---- handing over ----

template <class Element, Protocol kProtocol, class Epilogue>
PEAL_DEVICE_CALL void DevicePort<Element, kProtocol, Epilogue>::handOver(const Step& s, const Plan& plan) {
  const bool terms = s.from == kTerms;
  forMessagesOf(terms ? kAll : s.from, [&](int peer) {
    if (terms) {
      if (state_.held[peer] == 0) {
        return;
      }
      state_.held[peer] = 0;
    }
    const uint64_t number = ++state_.received[peer];
    storeRelease(boxes(peer).releases(kProtocol), number);  // pairs with ChannelBoxes::hasCredit
  });
  forSlotsOf(s.to, [&](int peer) {
    const uint64_t number = ++state_.sent[peer];
    if constexpr (kProtocol == Protocol::Simple) {
      uint64_t address = plan.place;
      const ChannelBoxes link = boxes(peer);
      if (plan.referenced != nullptr) {
        address = plan.readableAt[peer] + plan.readableOffset;
        state_.references[peer][link.slotOf(number)] = {plan.referenced, plan.bytes, number};
      }
      postMessage(link, number, address, expected(plan.bytes));
    }
  });
  referencesOpen_ = referencesOpen_ || plan.referenced != nullptr;
}

}  // namespace peal::cuda
