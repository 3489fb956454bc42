// Both directions to one peer over verbs: slots in the receiver's memory that the sender writes by RDMA, over
// several queue pairs (lanes) that may each be rebuilt.
//
// A message has a number; its slot is the number modulo the slots. What is staged stays in its slot here
// until the peer has released the message, so that it can be sent again.
//
// Owned and called by the fabric. Trusts nothing that the peer writes: a bad value becomes the fault.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "lib/memory/registry.h"
#include "transports/verbs/lane.h"
#include "transports/verbs/station.h"

namespace peal::verbs {

// Entries of a completion queue that one lane may fill.
uint32_t completionsPerLane(const Options& options);

class VerbsLink final : public Link {
 public:
  VerbsLink(Station& station, int peerRank, uint16_t index);

  std::byte* tryStage(size_t bytes) override;
  void post(size_t bytes, const Digest& digest) override;
  bool tryPostReference(const std::byte* data, size_t bytes, const Digest& digest) override;
  bool tryPostCarrying(size_t bytes, const Digest& digest, const Carried& carried) override;
  bool canReference(const std::byte* data, size_t bytes) override {
    return sendableRegion(data, bytes).has_value();
  }
  bool drained() override { return released(lastReference_); }
  uint64_t posted() const override { return posted_; }
  bool released(uint64_t count) override { return departed_ || released_ >= count; }
  bool tryReceive(Arrival& arrival) override;
  void release() override;

  // ---- for the fabric ----
  int peerRank() const { return peerRank_; }
  std::vector<Lane>& lanes() { return lanes_; }
  // Makes the queue pair of a lane, of its generation.
  Result<void> makePair(size_t lane);
  // Where the peer has this rank's slots.
  void setPeerSlots(uint64_t address) { peerSlots_ = address; }
  std::byte* incomingSlots() const { return incoming_; }
  void ping(Lane& lane);
  // Ends the connecting: from here on, failures are recovered from.
  void open();
  bool isOpen() const { return !lanes_.empty() && lanes_.front().state != LaneState::Connecting; }

  void onCompletion(const WorkOwner& owner, const ibv_wc& completion);
  void onNote(const Note& note);
  // The peer has left: nothing more is posted to it, and nothing is waited for.
  void onBye();
  // Sends what waits for a lane or for room, and moves rebuilding on. False: nothing is left to do.
  bool pump();
  // Now and then: no queue pair stays silent for ever. `anew`: nobody has looked for long, so that silence
  // counts from now.
  void watch(Clock::time_point now, bool anew);
  // Whether nothing waits to be sent, a credit that is due included, or nobody waits for it.
  bool settled() const;
  // The peer has left, and what it sent has come or never will.
  bool isOver() const;
  // Leaving: asks for the completion of everything sent. True: it has come, or never will.
  bool flushed();
  void sendBye();

 private:
  // A message that the peer has not released. Indexed by its slot.
  struct Outgoing {
    size_t bytes = 0;
    const std::byte* reference = nullptr;  // nullptr: what is staged in the slot
    uint64_t region = 0;                   // of the reference
    Carried carried{};                     // from one GPU to the other, before the slot
    size_t lane = 0;                       // over which it was last sent
    uint32_t generation = 0;               // of that lane
    bool acknowledged = false;             // by the peer's device
    bool queued = false;                   // waits to be sent (again)
  };

  Outgoing& outgoing(uint64_t number) { return messages_[number % slots_]; }
  std::byte* slotOf(std::byte* base, uint64_t number) const {
    return base + number % slots_ * station_.slotStride();
  }
  // The registered memory that holds it, if every device may send from there.
  std::optional<Region> sendableRegion(const std::byte* data, size_t bytes);
  void commit(size_t bytes, const Digest& digest, const Outgoing& what);
  bool transmit(uint64_t number);
  bool transmitCarried(Lane& lane, const Carried& carried);
  Lane* chooseLane(size_t& turn, uint32_t requests = 1);
  bool sendCredit(Lane& lane, Signal signal);
  void sendDueCredit();
  void sendShort(Lane& lane, Kind kind, uint64_t number, Signal signal);
  void setReleased(uint64_t count);
  void onCredit(int64_t more);
  void acknowledge(uint64_t number);
  void markPending();

  void onReceive(Lane& lane, const ibv_wc& completion);
  void onSent(Lane& lane, const ibv_wc& completion);
  void onImmediate(Lane& lane, uint32_t immediate);
  void onArrival(int64_t ahead);
  bool malformed(const std::string& what);

  // recovery.cpp
  size_t indexOf(const Lane& lane) const { return static_cast<size_t>(&lane - lanes_.data()); }
  void fail(Lane& lane, const std::string& reason, bool refused);
  void drain(Lane& lane, uint32_t next, Clock::time_point retryAt);
  bool advance(Lane& lane);
  void announce(Lane& lane);
  void meet(Lane& lane);
  void rise(Lane& lane);
  void resendUnarrived(size_t lane, const Note& note);
  void onRebuild(Lane& lane, const Note& note);
  void onReady(Lane& lane, const Note& note);
  void bury(Lane& lane);
  void tell(const Note& note);
  std::string nameOf(const Lane& lane) const;

  Station& station_;
  const int peerRank_;
  const uint16_t index_;  // in the fabric's list, and in completions
  const uint64_t slots_;
  std::byte* const staging_;   // this rank's copy of what is on its way
  std::byte* const incoming_;  // the slots that the peer writes
  uint64_t peerSlots_ = 0;     // the peer's `incoming_` for this rank
  std::vector<Lane> lanes_;
  size_t messageTurn_ = 0;  // which lane the last one went over
  size_t creditTurn_ = 0;
  bool departed_ = false;  // the peer has left in good order
  Clock::time_point departedAt_{};
  bool pending_ = false;  // stands in Station::pending

  // Outgoing. The counts never wrap: 2^64 messages.
  std::vector<Outgoing> messages_;
  uint64_t posted_ = 0;
  uint64_t released_ = 0;       // by the peer, as last heard
  uint64_t lastReference_ = 0;  // number of the last message by reference, plus one
  uint64_t queued_ = 0;

  // Incoming.
  uint64_t received_ = 0;   // released messages
  bool creditDue_ = false;  // the peer has not been told of the last of these
  uint64_t arrived_ = 0;    // bit i: message received_ + i has arrived
  bool shown_ = false;
  Arrival arrival_;
};

}  // namespace peal::verbs
