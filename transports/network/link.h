// A fabric's link, with counts of what went through: how a farewell says what is still on its way. Every
// message carries its number, so that one that a fabric loses, repeats or overtakes is a fault and not a
// wrong result. Closed in a forked child, where the connections and the memory behind it are the parent's:
// nothing can be staged or received there, so that every wait finds out (Endpoint::faulted()).
//
// Owned by the network endpoint.
#pragma once
#include <atomic>

#include "transports/fault_box.h"
#include "transports/transport.h"

namespace peal::network {

class CountedLink final : public Link {
 public:
  // `fault` gets what goes wrong on this link from peerRank to rank.
  CountedLink(Link& inner, const std::atomic<bool>& inChild, int rank, int peerRank, FaultBox& fault)
      : inner_(inner), inChild_(inChild), rank_(rank), peerRank_(peerRank), fault_(fault) {}

  std::byte* tryStage(size_t bytes) override { return closed() ? nullptr : inner_.tryStage(bytes); }
  void post(size_t bytes, const Digest& digest) override {
    inner_.post(bytes, numbered(digest));
    raise(sent_);
  }
  bool tryPostReference(const std::byte* data, size_t bytes, const Digest& digest) override {
    if (closed() || !inner_.tryPostReference(data, bytes, numbered(digest))) {
      return false;
    }
    raise(sent_);
    return true;
  }
  bool tryPostCarrying(size_t bytes, const Digest& digest, const Carried& carried) override {
    if (closed() || !inner_.tryPostCarrying(bytes, numbered(digest), carried)) {
      return false;
    }
    raise(sent_);
    return true;
  }
  bool canReference(const std::byte* data, size_t bytes) override {
    return !closed() && inner_.canReference(data, bytes);
  }
  bool drained() override { return !closed() && inner_.drained(); }
  uint64_t posted() const override { return inner_.posted(); }
  bool released(uint64_t count) override { return !closed() && inner_.released(count); }
  void expect(std::byte* memory, size_t bytes) override {
    if (!closed()) {
      inner_.expect(memory, bytes);
    }
  }
  bool tryReceive(Arrival& arrival) override {
    if (closed() || !inner_.tryReceive(arrival)) {
      return false;
    }
    if (arrival.digest.message != static_cast<uint32_t>(taken())) {
      return outOfOrder(arrival.digest.message);
    }
    arrival.digest.message = 0;
    return true;
  }
  void release() override {
    inner_.release();
    raise(taken_);
  }

  // From any thread: a farewell may be said while an operation runs.
  uint64_t sent() const { return sent_.load(std::memory_order_relaxed); }
  uint64_t taken() const { return taken_.load(std::memory_order_relaxed); }

 private:
  bool closed() const { return inChild_.load(std::memory_order_relaxed); }  // set by the fork, not a thread
  // Only the endpoint's user writes: no read-modify-write needed.
  static void raise(std::atomic<uint64_t>& count) {
    count.store(count.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
  }

  Digest numbered(Digest digest) const {
    digest.message = static_cast<uint32_t>(sent());
    return digest;
  }
  bool outOfOrder(uint32_t number) const;

  Link& inner_;
  const std::atomic<bool>& inChild_;
  const int rank_;
  const int peerRank_;
  FaultBox& fault_;
  std::atomic<uint64_t> sent_{0};
  std::atomic<uint64_t> taken_{0};
};

}  // namespace peal::network
