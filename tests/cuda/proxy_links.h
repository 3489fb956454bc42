// Links that are not as one would like them, between a proxy and its network.
#pragma once
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "transports/transport.h"

namespace peal::cuda::test {

// Passes everything on, unless its kind says otherwise.
class OddLink : public Link {
 public:
  // What a link does to the asker.
  struct Behaviour {
    std::function<bool()> refuse = [] { return false; };  // no credit now, nothing has arrived now
    std::function<void(std::byte* message, size_t bytes)> alter = [](std::byte*, size_t) {};
  };
  OddLink(Link& inner, Behaviour behaviour) : inner_(inner), behaviour_(std::move(behaviour)) {}
  std::byte* tryStage(size_t bytes) override {
    return behaviour_.refuse() ? nullptr : staged_ = inner_.tryStage(bytes);
  }
  void post(size_t bytes, const Digest& digest) override {
    behaviour_.alter(staged_, bytes);
    inner_.post(bytes, digest);
  }
  bool tryPostCarrying(size_t bytes, const Digest& digest, const Carried& carried) override {
    behaviour_.alter(staged_, bytes);
    return inner_.tryPostCarrying(bytes, digest, carried);
  }
  bool tryPostReference(const std::byte*, size_t, const Digest&) override { return false; }
  bool canReference(const std::byte*, size_t) override { return false; }
  bool drained() override { return inner_.drained(); }
  uint64_t posted() const override { return inner_.posted(); }
  bool released(uint64_t count) override { return inner_.released(count); }
  // Asking again must give the same message, so a refusal only ever comes first.
  bool tryReceive(Arrival& arrival) override {
    shown_ = shown_ || !behaviour_.refuse();
    return shown_ && inner_.tryReceive(arrival);
  }
  void release() override {
    shown_ = false;
    inner_.release();
  }

 private:
  Link& inner_;
  Behaviour behaviour_;
  std::byte* staged_ = nullptr;
  bool shown_ = false;
};

class OddEndpoint : public Endpoint {
 public:
  OddEndpoint(std::unique_ptr<Endpoint> inner, int rank, int size, const OddLink::Behaviour& behaviour)
      : inner_(std::move(inner)), links_(static_cast<size_t>(size)) {
    for (int peer = 0; peer < size; ++peer) {
      if (peer != rank) {
        links_[static_cast<size_t>(peer)] = std::make_unique<OddLink>(inner_->link(peer), behaviour);
      }
    }
  }
  const char* name() const override { return "odd"; }
  size_t slotBytes() const override { return inner_->slotBytes(); }
  Link& link(int peerRank) override { return *links_[static_cast<size_t>(peerRank)]; }
  std::byte* tryStageAll(size_t) override { return nullptr; }
  void postAll(size_t, const Digest&) override {}
  void poll() override { inner_->poll(); }
  bool needsPoll() const override { return inner_->needsPoll(); }
  bool settled() override { return inner_->settled(); }
  Result<void> progress(int waitingForRank) override { return inner_->progress(waitingForRank); }
  bool faulted() const override { return inner_->faulted(); }
  int culpritRank() const override { return inner_->culpritRank(); }
  void announce(const Digest& digest, bool inside) override { inner_->announce(digest, inside); }
  PeerState peerState(int peerRank) override { return inner_->peerState(peerRank); }
  uint32_t prepareSleep() override { return inner_->prepareSleep(); }
  void sleep(uint32_t token, int64_t us) override { inner_->sleep(token, us); }
  void cancelSleep() override { inner_->cancelSleep(); }
  void wake() override { inner_->wake(); }
  void farewell(int culpritRank, const std::string& reason) override {
    inner_->farewell(culpritRank, reason);
  }

 private:
  std::unique_ptr<Endpoint> inner_;
  std::vector<std::unique_ptr<OddLink>> links_;
};

}  // namespace peal::cuda::test
