// Both directions to one peer: the fast path of the shared-memory transport. A short message is one cache
// line written into the peer's ring; no system call, no lock, no allocation.
//
// Owned and called by ShmEndpoint. Trusts nothing that the peer can write: a bad value becomes the
// endpoint's fault.
#pragma once
#include <array>
#include <functional>
#include <memory>
#include <vector>

#include "transports/fault_box.h"
#include "transports/shm/bell.h"
#include "transports/shm/connect.h"
#include "transports/shm/distance.h"
#include "transports/shm/layout.h"
#include "transports/shm/regions.h"

namespace peal::shm {

// What the links of an endpoint have in common.
struct Station {
  int rank;
  Layout layout;
  bool directRead;
  // Of ranks in sentences, and of culprits: `ranks` of ShmOptions.
  std::vector<int> numbers;
  int numbersMost;  // above all of them
  FaultBox fault;
  SharedRegions regions;
  bool readWithdrawn = false;  // as of the endpoint

  int numberOf(int member) const { return numbers[static_cast<size_t>(member)]; }
  // Whether a message fits what is or was staged for it; if not, the caller is at fault.
  bool fits(size_t bytes, bool stagedInline = false) {
    return fitsInto(bytes, stagedInline ? kInlineBytes : layout.slotBytes());
  }
  bool fitsInto(size_t bytes, size_t mostBytes) { return bytes <= mostBytes || misfit(bytes, mostBytes); }
  bool misfit(size_t bytes, size_t mostBytes);
};

class ShmLink final : public Link {
 public:
  // `readSocket` handles what has come over the peer's socket; false: the peer is gone.
  ShmLink(Station& station, int peerRank, const Peer& peer, Segment& own, std::function<bool()> readSocket);

  std::byte* tryStage(size_t bytes) override;
  std::byte* tryStageShort(size_t bytes) override;
  void post(size_t bytes, const Digest& digest) override;
  bool lookIfFar() override { return distance_.look(peerShared_.announcement().version); }
  bool tryPostReference(const std::byte* data, size_t bytes, const Digest& digest) override;
  bool canReference(const std::byte* data, size_t bytes) override;
  bool canOffer(const std::byte* data, size_t bytes) override;
  bool tryPostOffer(const std::byte* data, size_t bytes, const Digest& digest) override;
  bool lend(std::byte* memory, size_t bytes) override;
  bool tryPostLanded(size_t bytes, const Digest& digest) override;
  bool drained() override { return released(lastReference_); }
  uint64_t posted() const override { return posted_; }
  bool released(uint64_t count) override;
  bool tryReceive(Arrival& arrival) override;
  const Arrival* tryPeek(Arrival& /*room*/) override { return arrived() ? &arrival_ : nullptr; }
  bool pull(std::byte* to, size_t offset, size_t bytes) override;
  bool share(std::byte* memory) override;
  bool takeShared(Part& part) override;
  bool shareDone() override;
  bool takePart(Part& part) override;
  void partDone() override;
  void release() override;
  void releaseQuietly() override;

  // For the endpoint.
  // In a forked child, where the other end of everything is the parent's: no credit and no message any more,
  // so that every wait finds out what is wrong (Endpoint::faulted()).
  void closeInChild() noexcept;
  bool hasCredit() { return hasCredit(slots_); }
  bool isFar() const { return distance_.isFar(); }
  // Without waking the peer: write to all, fence once, then wake all.
  void publishInline(const InlineBytes& data, size_t bytes, const Digest& digest);
  void publishStagedAll(uint32_t slot, size_t bytes, const Digest& digest);
  void wakeIfAsleep();
  // Gets the next message's line back from the peer, which read it last.
  void fetchNext() const;
  void ringPeer();
  bool fences() const { return fences_; }
  PeerState peerState() const { return peerShared_.announcement().read(); }
  bool hasArrival() const;
  bool hasUnreleased();
  // Ends this rank's use of the peer's memory, for good: its operation has failed.
  void letGo() {
    using_ = false;
    inCredit_.inUse.store(0, std::memory_order_release);
  }
  // Credits that releaseQuietly() kept back: before this rank leaves.
  void tellReleased();
  // Whether the peer is at this rank's memory. For an owner that has withdrawn (layout.h): once false,
  // always.
  bool isUsedByPeer() const { return outCredit_.inUse.load(std::memory_order_acquire) != 0; }
  bool hasLent() const { return loans_ != 0 || shares_; }
  bool inSameProcess() const { return sameProcess_; }
  bool reachesBothWays() const { return sameProcess_ || (weCanRead_ && peerCanRead_); }
  Result<void> beginRegion(uint64_t id, size_t bytes, int file);
  void endRegion(uint64_t id);

 private:
  // One message being written; commit() publishes it.
  Descriptor& compose(Kind kind, size_t bytes, const Digest& digest);
  void commit(Descriptor& descriptor);
  void announcePost();
  bool hasCredit(uint32_t most);
  bool lookAtCredit();
  // Between what the peer may be asleep for and the look whether it is.
  void fenceForSleeper() const { fenceForSlowSide(!fences_); }
  void attachLoan(Descriptor& descriptor);
  void fetchNextSlot(const std::byte* slot, size_t bytes) const;
  void publishShort(size_t bytes, const Digest& digest);
  void publishWords(Kind kind, size_t bytes, uint64_t first, uint64_t second, const Digest& digest);
  bool arrived();
  void forget();
  void giveBack();
  bool show(const Descriptor& descriptor);
  bool noteReleased(uint64_t count);
  bool showReference(Kind kind, const Descriptor& descriptor);
  bool shared(const Region& region, uint64_t& last);
  bool showLoan(const Descriptor& descriptor);
  bool mayUse();
  bool withdrawn() const { return peerShared_.withdrawal().done.load(std::memory_order_acquire) != 0; }
  std::byte* inRegion(uint64_t id, uint64_t offset, uint64_t bytes);
  const std::byte* readFromProcess(uint64_t address, uint64_t bytes);
  bool copyFromProcess(uint64_t address, std::byte* to, uint64_t bytes);
  bool malformed(const std::string& what);
  uint32_t sharedRegionOf(const std::byte* memory, size_t bytes, uint64_t& offset);
  void noteReference(const std::byte* data, size_t bytes);

  Station& station_;
  const int peerRank_;
  uint32_t slots_;  // 0 once closeInChild() was called
  const size_t slotBytes_;
  const bool fences_;  // the peer does not make this process fence before it sleeps

  // Outgoing. The counts never wrap: 2^64 messages.
  Descriptor* const outRing_;  // in the peer's memory
  const Credit& outCredit_;    // in ours, written by the peer
  std::byte* const outStaging_;
  std::byte* const outShort_;
  ByteRing shortRing_;
  uint64_t posted_ = 0;
  uint64_t released_ = 0;       // as last seen
  uint64_t lastShared_ = 0;     // the region that the last reference was to: the peer has it
  uint64_t lastLent_ = 0;       // and that of the last loan
  uint64_t lastReference_ = 0;  // number of the last message by reference, plus one
  uint32_t outSlot_ = 0;        // posted_ modulo slots
  bool thirsty_ = false;        // short messages filled the ring: waits until half of it is free
  enum class Staging { Slot, Inline, Short };
  uint32_t shortOffset_ = 0;  // where, and for how much
  size_t shortBytes_ = 0;
  Staging staged_ = Staging::Slot;  // what the last tryStage() gave
  uint32_t lentRegion_ = 0;         // goes along with the next message; 0: nothing
  uint64_t lentOffset_ = 0;
  uint64_t loans_ = 0;  // sent along and not answered by Landed
  // Long references, of which the receiver may share the copy: by their numbers modulo slots.
  struct Referred {
    uint64_t number = 0;
    const std::byte* data = nullptr;
    size_t bytes = 0;
    uint64_t partsTaken = 0;  // by this rank
  };
  std::vector<Referred> referred_;  // made when first needed
  Sharing& theirSharing_;           // in the peer's memory
  alignas(kLine) InlineBytes inline_{};

  // Incoming.
  const Descriptor* const inRing_;  // in our memory, written by the peer
  Credit& inCredit_;                // in the peer's
  const std::byte* const inStaging_;
  const std::byte* const inShort_;
  const std::byte* const inStagingAll_;
  uint64_t received_ = 0;  // released messages
  uint64_t told_ = 0;      // as many of them as the peer has been told of
  uint32_t inSlot_ = 0;    // received_ modulo slots
  bool using_ = false;     // inUse of inCredit_
  bool missed_ = false;    // the last look at the ring found nothing
  uint32_t streak_ = 0;    // messages that were there at the first look, lately
  bool shown_ = false;     // arrival_ is the message number received_
  Arrival arrival_;
  bool inPlace_ = false;    // it lies in a region of the peer's
  uint64_t offeredAt_ = 0;  // address in the peer, if arrival_ is remote
  Sharing& sharing_;        // in our memory
  std::byte* sharedTo_ = nullptr;
  uint64_t partsTaken_ = 0;  // of the shown message, by this rank
  bool shares_ = false;      // the peer may be writing there

  const Control peerShared_;
  Distance distance_;
  const bool sameProcess_;
  const bool weCanRead_;
  const bool peerCanRead_;
  const pid_t pid_;
  const std::function<bool()> readSocket_;
  MappedRegions mapped_;
  std::vector<uint64_t> endedWhileShown_;
  std::unique_ptr<std::byte[]> copied_;  // slotBytes, made when first needed: what ProcessRead read
};

}  // namespace peal::shm
