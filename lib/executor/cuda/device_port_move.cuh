// How the device port moves data: in bulk (Simple), and in units that carry flags (LL, LL128). A part of
// device_port.cuh, which includes it.
#pragma once
#include "lib/executor/cuda/device_port.cuh"

namespace peal::cuda {

template <class Element, Protocol kProtocol, class Epilogue>
PEAL_DEVICE_CALL void DevicePort<Element, kProtocol, Epilogue>::moveBulk(const Plan& plan, Chunk c) {
  if (plan.destinations() == 0 || c.count == 0) {
    return;
  }
  if constexpr (kReduces<Element>) {
    reduceBlock<Element>(args_.digest.type, args_.op,
                         {.sources = state_.sources,
                          .destinations = state_.destinations,
                          .sourceCount = plan.sources,
                          .destinationCount = plan.destinations(),
                          .count = c.count,
                          .rawSource = plan.rawSource,
                          .divideBy = plan.divideBy,
                          .scalarBits = scalarBits_});
  } else {
    copyBlockTo(state_.destinations, plan.destinations(), state_.sources[0], plan.bytes);
  }
}

// The value goes to `out` first, where the epilogue turns it into what is kept and sent. The chunk is in the
// cache, so the second pass costs no memory traffic to speak of.
template <class Element, Protocol kProtocol, class Epilogue>
PEAL_DEVICE_CALL void DevicePort<Element, kProtocol, Epilogue>::moveFinished(const Plan& plan, Chunk c) {
  if constexpr (Epilogue::kActive) {
    std::byte* finished = args_.out + (c.offset - args_.outStart) * elementBytes();
    if (plan.kept != nullptr) {  // nullptr: it is there already
      Plan alone = plan;
      alone.staged = 0;
      if (threadIndex() == 0) {  // `kept` lies behind the slots: change places with the first of them
        void* slot = state_.destinations[0];
        state_.destinations[0] = finished;
        state_.destinations[plan.staged] = slot;
      }
      syncBlock();
      moveBulk(alone, c);
      syncBlock();
    }
    epilogue_(finished, c);
    syncBlock();
    if (plan.staged > 0) {
      const int first = plan.kept != nullptr ? 1 : 0;
      copyBlockTo(state_.destinations + first, plan.staged, finished, plan.bytes);
    }
  }
}

template <class Element, Protocol kProtocol, class Epilogue>
PEAL_DEVICE_CALL bool DevicePort<Element, kProtocol, Epilogue>::moveLines(const Step& s, const Plan& plan) {
  using L = Lines<kProtocol>;
  const auto numberFor = [&](int staged) { return state_.sent[s.to == kAll ? otherRank(staged) : s.to] + 1; };
  const auto lines = [&](int k) { return static_cast<std::byte*>(state_.destinations[k]); };
  const size_t units = (plan.bytes + kUnitBytes - 1) / kUnitBytes;
  PEAL_KEEP_LOOP
  for (size_t base = L::first(); base < units; base += L::stride()) {
    const size_t at = (base + L::lane()) * kUnitBytes;
    const size_t left = L::lane() < L::kLanes && at < plan.bytes ? plan.bytes - at : 0;
    const auto sizeBytes = static_cast<uint32_t>(left < kUnitBytes ? left : kUnitBytes);
    Vec16 value{};
    if (!gather(s, plan, base, sizeBytes, value)) {
      return false;
    }
    if (plan.kept != nullptr && sizeBytes > 0) {
      storeUnit(plan.kept + at, sizeBytes, value);
    }
    PEAL_KEEP_LOOP
    for (int k = 0; k < plan.staged; ++k) {
      L::store(lines(k), base, numberFor(k), value);
    }
  }
  if constexpr (kProtocol == Protocol::LL) {
    const size_t capacity = args_.comm.shape.payloadBytes(kProtocol) / kUnitBytes;
    PEAL_KEEP_LOOP
    for (int k = 0; k < plan.staged; ++k) {
      if (const uint64_t number = numberFor(k); sweeps(number, args_.comm.shape.slots)) {
        PEAL_KEEP_LOOP
        for (size_t base = units + L::first(); base < capacity; base += L::stride()) {
          L::store(lines(k), base, number, Vec16{});
        }
      }
    }
  }
  return true;
}

// One unit's value from all sources, in their order: lib/reduce/'s rules, with accumulators in registers and
// the lines of several sources under way at once. False: the block must leave.
template <class Element, Protocol kProtocol, class Epilogue>
PEAL_DEVICE bool DevicePort<Element, kProtocol, Epilogue>::gather(const Step& s, const Plan& plan,
                                                                  size_t base, uint32_t sizeBytes,
                                                                  Vec16& value) {
  using L = Lines<kProtocol>;
  constexpr int kAtOnce = 4;
  constexpr bool kSums = kReduces<Element>;
  const bool copies = !kSums || (plan.sources == 1 && plan.rawSource < 0 && plan.divideBy == 0);
  const auto peerOf = [&](int source) { return s.from == kAll ? source : s.from; };
  UnitSum sum{};
  PEAL_KEEP_LOOP
  for (int first = 0; first < plan.sources; first += kAtOnce) {
    // Sources [first, first + kAtOnce), as far as there are so many.
    Vec16 data[kAtOnce];
    PEAL_UNROLL
    for (int k = 0; k < kAtOnce; ++k) {
      if (first + k == plan.ownSource) {
        data[k] = loadUnit(plan.own + (base + L::lane()) * kUnitBytes, sizeBytes);
      }
    }
    uint64_t beganNs = 0;
    PEAL_KEEP_LOOP
    for (uint32_t spins = 1;; ++spins) {
      int missing = -1;
      PEAL_UNROLL
      for (int k = 0; k < kAtOnce; ++k) {
        const int source = first + k;
        if (source < plan.sources && source != plan.ownSource &&
            !L::tryLoad(static_cast<const std::byte*>(state_.sources[source]), base,
                        state_.received[peerOf(source)] + 1, data[k])) {
          missing = peerOf(source);
        }
      }
      if (missing < 0) {
        break;
      }
      if (spins % kSpinsPerLook == 0 &&
          L::any(!mayWait(args_.comm, missing, expected(plan.bytes), beganNs))) {
        return false;
      }
    }
    if (copies) {
      value = data[0];
      return true;
    }
    if constexpr (kSums) {
      PEAL_KEEP_LOOP
      for (int source = first; source < first + kAtOnce && source < plan.sources; ++source) {
        combineUnit(plan, source, data[0], sum);
        PEAL_UNROLL
        for (int k = 0; k + 1 < kAtOnce; ++k) {
          data[k] = data[k + 1];
        }
      }
    }
  }
  if constexpr (kSums) {
    withElement<Element>(args_.digest.type, [&](auto element) {
      auto lanes = sum.template as<UnitLanes<decltype(element)>>();
      if (plan.divideBy != 0) {
        divide(lanes, plan.divideBy);
      }
      value = vecOf(packFor(args_.op, lanes));
    });
  }
  return true;
}

template <class Element, Protocol kProtocol, class Epilogue>
PEAL_DEVICE void DevicePort<Element, kProtocol, Epilogue>::combineUnit(const Plan& plan, int source,
                                                                       Vec16 unit, UnitSum& sum) const {
  withElement<Element>(args_.digest.type, [&](auto element) {
    auto next = unpack<decltype(element)>(groupOf(unit));
    if (source == plan.rawSource) {
      preMultiply(next, scalarBits_);
    }
    if (source != 0) {
      auto before = sum.template as<UnitLanes<decltype(element)>>();
      withOperation(args_.op, [&](auto operation) { combineInto<decltype(operation)>(before, next); });
      next = before;
    }
    sum.set(next);
  });
}

}  // namespace peal::cuda
