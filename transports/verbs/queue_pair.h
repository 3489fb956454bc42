// One reliable queue pair (RC): made, connected to its counterpart, and the books of what is on its way.
//
// Owned by a lane of a link. Knows nothing of messages but a tag that comes back when one is acknowledged.
#pragma once
#include <cstdint>
#include <memory>
#include <vector>

#include "transports/verbs/devices.h"
#include "transports/verbs/options.h"

namespace peal::verbs {

// What a rank tells others of one of its ports. Plain bytes.
struct PortAddress {
  ibv_gid gid{};
  uint32_t rkey = 0;  // of its slots, on this port's device
  uint16_t lid = 0;
  uint8_t linkLayer = 0;
  uint8_t gidType = 0;
  uint8_t mtu = 0;
  uint8_t subnetBits = 0;
  char name[38] = {};  // "mlx5_0:1", for messages
};

// Says of a completion whose it is: the upper half of its wr_id. The lower half is the queue pair's own.
struct WorkOwner {
  uint16_t link = 0;
  uint8_t lane = 0;         // at most 63
  uint16_t generation = 0;  // of the lane, modulo 1024: completions of an older queue pair are nobody's

  uint64_t packed() const { return uint64_t{link} << 48 | uint64_t{lane} << 42 | uint64_t{generation} << 32; }
  static WorkOwner of(uint64_t id) {
    return {static_cast<uint16_t>(id >> 48), static_cast<uint8_t>(id >> 42 & 63),
            static_cast<uint16_t>(id >> 32 & 1023)};
  }
};

enum class Signal { IfNeeded, Yes };

class QueuePair {
 public:
  static constexpr uint64_t kNoTag = UINT64_MAX;

  // In the state INIT, its receives not yet posted.
  static Result<std::unique_ptr<QueuePair>> make(const Rail& rail, WorkOwner owner, uint32_t sendDepth,
                                                 uint32_t receiveDepth);
  ~QueuePair();
  QueuePair(const QueuePair&) = delete;
  QueuePair& operator=(const QueuePair&) = delete;

  uint32_t number() const { return qp_->qp_num; }
  uint32_t firstPacket() const { return firstPacket_; }
  uint32_t inlineBytes() const { return inlineBytes_; }
  const Rail& rail() const { return rail_; }

  // Through RTR to RTS, with all receives posted.
  Result<void> connect(const PortAddress& peer, uint32_t peerNumber, uint32_t peerFirstPacket,
                       const Options& options);
  // Into the error state: everything outstanding comes back, flushed.
  void fail();

  bool hasRoom(uint32_t requests = 1) const { return sendDepth_ - (sent_ - completed_) >= requests; }
  bool idle() const { return sent_ == completed_; }
  // Sends that have ended, modulo 2^32.
  uint32_t ended() const { return completed_; }
  // Whether a completion must come, or a failure.
  bool awaitsCompletion() const { return sent_ - completed_ > unsignalled_; }
  // Sends since the last one that asked for a completion.
  uint32_t quiet() const { return unsignalled_; }
  // Posts a request; the tag comes back from acknowledge(). 0 or an errno.
  int send(ibv_send_wr& request, uint64_t tag, Signal signal);
  // A send's completion with that wr_id: calls each(tag) for it and for every earlier one that asked for no
  // completion of its own.
  template <class Each>
  void acknowledge(uint64_t id, const Each& each) {
    const uint32_t upTo = static_cast<uint32_t>(id) & kCountMask;
    while (completed_ != sent_ && ((upTo - completed_ - 1) & kCountMask) < sendDepth_) {
      ++completed_;
      if (const uint64_t tag = tags_[completed_ % sendDepth_]; tag != kNoTag) {
        each(tag);
      }
    }
  }

  static bool isReceive(uint64_t id) { return (id & kReceive) != 0; }
  // After a receive's completion: posts another. 0 or an errno.
  int postReceive();
  void receiveDone() { --receives_; }
  uint32_t receivesOutstanding() const { return receives_; }

 private:
  static constexpr uint32_t kReceive = 1U << 31;
  static constexpr uint32_t kCountMask = kReceive - 1;

  QueuePair(const Rail& rail, WorkOwner owner, uint32_t sendDepth, uint32_t receiveDepth);
  Result<void> modify(ibv_qp_attr& attributes, int mask, const char* state);

  Rail rail_;
  const WorkOwner owner_;
  const uint32_t sendDepth_;
  const uint32_t receiveDepth_;
  uint32_t firstPacket_ = 0;
  uint32_t inlineBytes_ = 0;
  ibv_qp* qp_ = nullptr;
  std::vector<uint64_t> tags_;  // of the sends on their way, by number modulo sendDepth_
  uint32_t sent_ = 0;
  uint32_t completed_ = 0;
  uint32_t unsignalled_ = 0;  // since the last send that asked for a completion
  uint32_t receives_ = 0;
};

}  // namespace peal::verbs
