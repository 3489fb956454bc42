#include "transports/faulty/faulty.h"

#include <fmt/format.h>
#include <signal.h>

#include <algorithm>
#include <random>
#include <utility>
#include <vector>

namespace peal {
namespace {

// What the links of one fabric have in common.
struct Station {
  const Fabric* inner = nullptr;
  FaultPlan plan;
  int rank = -1;
  uint64_t polls = 0;
  uint64_t posted = 0;
  uint32_t grants = 0;
  bool duplicated = false;
  FabricFaults faults;
  bool anyExcused = false;

  // When something that is there now is seen.
  uint64_t lateUntil(std::mt19937_64& random) const {
    return plan.latePollsMost == 0 ? polls : polls + random() % (plan.latePollsMost + 1);
  }
  // What came before a link failed is shown at once: after the failure nobody waits for more.
  bool shows(uint64_t due) const { return due <= polls || anyExcused || inner->fault().has_value(); }
};

class FaultyLink final : public Link {
 public:
  FaultyLink(Station& station, Link& inner, int peerRank)
      : station_(station), inner_(inner), peerRank_(peerRank) {
    std::seed_seq seed{station.plan.seed, static_cast<uint64_t>(station.rank),
                       static_cast<uint64_t>(peerRank)};
    random_.seed(seed);
  }

  std::byte* tryStage(size_t bytes) override {
    if (dropped_ || refuses()) {
      return nullptr;
    }
    std::byte* const slot = inner_.tryStage(bytes);
    staged_ = slot;
    return slot;
  }
  void post(size_t bytes, const Digest& digest) override {
    const std::byte* const data = std::exchange(staged_, nullptr);
    if (!mayPost() || loses()) {
      return;
    }
    const bool twice = duplicates();
    const std::vector<std::byte> copy(data,
                                      data + (twice ? bytes : 0));  // what is posted is not ours to read
    inner_.post(bytes, digest);
    if (std::byte* const again = twice ? inner_.tryStage(bytes) : nullptr; again != nullptr) {
      std::copy(copy.begin(), copy.end(), again);
      inner_.post(bytes, digest);
      station_.duplicated = true;
    }
  }
  bool tryPostReference(const std::byte* data, size_t bytes, const Digest& digest) override {
    if (dropped_ || refuses()) {
      return false;
    }
    if (dropsNext()) {
      return mayPost();  // false: like a link without credit
    }
    if (station_.plan.loseAtMessage == station_.posted + 1) {
      ++station_.posted;
      return loses();
    }
    if (!inner_.tryPostReference(data, bytes, digest)) {
      return false;
    }
    ++station_.posted;
    station_.duplicated =
        station_.duplicated || (duplicates() && inner_.tryPostReference(data, bytes, digest));
    return true;
  }
  bool canReference(const std::byte* data, size_t bytes) override { return inner_.canReference(data, bytes); }
  void expect(std::byte* memory, size_t bytes) override { inner_.expect(memory, bytes); }
  bool drained() override {
    if (inner_.drained() && (drainedSeen_ == inner_.posted() || seen(credit_))) {
      drainedSeen_ = inner_.posted();
    }
    return drainedSeen_ == inner_.posted();
  }
  uint64_t posted() const override { return inner_.posted() + lost_; }
  bool released(uint64_t count) override {
    if (count <= releasedSeen_) {
      return true;
    }
    if (!inner_.released(count - std::min(count, lost_)) || !seen(credit_)) {
      return false;
    }
    credit_.reset();
    releasedSeen_ = count;
    return true;
  }

  bool tryReceive(Arrival& arrival) override {
    Arrival here;
    if (!inner_.tryReceive(here) || !seen(arrival_)) {
      return false;
    }
    arrival = here;
    return true;
  }
  void release() override {
    arrival_.reset();
    inner_.release();
  }

  // Whether something has come that is not shown yet: only polls, and no event, bring it.
  bool holdsBack() const {
    const auto late = [this](const std::optional<uint64_t>& due) { return due && !station_.shows(*due); };
    return late(arrival_) || late(credit_) || refusedUntil_ > station_.polls;
  }

 private:
  // Whether what has come is seen by now. The first look decides when it is.
  bool seen(std::optional<uint64_t>& due) {
    if (!due) {
      due = station_.lateUntil(random_);
    }
    return station_.shows(*due);
  }

  // Not between tryStage() and post(), where the memory must stay what it is.
  bool refuses() {
    if (staged_ != nullptr) {
      return false;
    }
    if (station_.polls < refusedUntil_) {
      return true;
    }
    if (station_.plan.refuseEvery == 0 || ++station_.grants < station_.plan.refuseEvery) {
      return false;
    }
    station_.grants = 0;
    refusedUntil_ = station_.polls + station_.plan.refusePolls;
    return true;
  }

  bool dropsNext() const {
    const uint64_t number = station_.posted + 1;
    return station_.plan.dropAtMessage == number || station_.plan.dieAtMessage == number;
  }

  // Of the message just posted.
  bool duplicates() const {
    return !station_.duplicated && station_.plan.duplicateAtMessage &&
           station_.posted >= *station_.plan.duplicateAtMessage;
  }

  // Of the message just posted.
  bool loses() {
    const bool isLost = station_.plan.loseAtMessage == station_.posted;
    lost_ += isLost ? 1 : 0;
    return isLost;
  }

  // False: the message is lost.
  bool mayPost() {
    const uint64_t number = ++station_.posted;
    if (station_.plan.dieAtMessage == number) {
      raise(SIGKILL);
    }
    if (station_.plan.dropAtMessage == number) {
      dropped_ = true;
      station_.faults.raise(
          peerRank_, {pealRemoteError,
                      fmt::format("the link from rank {} to rank {} failed by plan at message {} (seed {})",
                                  station_.rank, peerRank_, number, station_.plan.seed)});
    }
    return !dropped_;
  }

  Station& station_;
  Link& inner_;
  const int peerRank_;
  std::mt19937_64 random_;
  const std::byte* staged_ = nullptr;
  bool dropped_ = false;
  uint64_t lost_ = 0;  // messages that the inner link was not given
  uint64_t refusedUntil_ = 0;
  uint64_t releasedSeen_ = 0;
  uint64_t drainedSeen_ = 0;         // posted messages when drained() last was true
  std::optional<uint64_t> arrival_;  // when the oldest message is shown
  std::optional<uint64_t> credit_;   // when credits that are there are seen
};

class FaultyFabric final : public Fabric {
 public:
  FaultyFabric(std::unique_ptr<Fabric> inner, const FaultPlan& plan)
      : inner_(std::move(inner)), name_(fmt::format("faulty {}", inner_->name())) {
    station_.inner = inner_.get();
    station_.plan = plan;
  }
  const char* name() const override { return name_.c_str(); }
  size_t slotBytes(size_t asked) const override { return inner_->slotBytes(asked); }
  int burst() const override { return inner_->burst(); }
  bool copiesReferences() const override { return inner_->copiesReferences(); }
  Result<void> connect(Exchange& exchange, const std::vector<int>& peers, ControlPlane& control,
                       Deadline deadline) override {
    PEAL_TRY(inner_->connect(exchange, peers, control, deadline));
    station_.rank = exchange.rank();
    links_.resize(static_cast<size_t>(exchange.size()));
    for (const int peer : peers) {
      links_[static_cast<size_t>(peer)] = std::make_unique<FaultyLink>(station_, inner_->link(peer), peer);
    }
    return {};
  }
  Link& link(int peerRank) override { return *links_.at(static_cast<size_t>(peerRank)); }
  void poll() override {
    ++station_.polls;
    inner_->poll();
  }
  bool settled() override { return inner_->settled(); }
  void withdraw() override { inner_->withdraw(); }
  const std::optional<FabricFault>& fault() const override {
    return station_.faults.first() ? station_.faults.first() : inner_->fault();
  }
  void excuse(int peerRank) override {
    station_.anyExcused = true;
    station_.faults.excuse(peerRank);
    inner_->excuse(peerRank);
  }
  bool isOver(int peerRank) const override { return inner_->isOver(peerRank); }
  void onControl(int peerRank, std::span<const std::byte> message) override {
    inner_->onControl(peerRank, message);
  }
  int eventDescriptor() const override { return inner_->eventDescriptor(); }
  bool arm() override {
    for (const std::unique_ptr<FaultyLink>& link : links_) {
      if (link && link->holdsBack()) {
        return false;
      }
    }
    return inner_->arm();
  }

 private:
  Station station_;
  std::unique_ptr<Fabric> inner_;
  std::vector<std::unique_ptr<FaultyLink>> links_;
  const std::string name_;
};

}  // namespace

std::unique_ptr<Fabric> makeFaulty(std::unique_ptr<Fabric> inner, const FaultPlan& plan) {
  return std::make_unique<FaultyFabric>(std::move(inner), plan);
}

}  // namespace peal
