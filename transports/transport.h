// What executors see of every transport. A transport moves bytes between two ranks; it knows no algorithm,
// no data type and no reduction.
//
// Endpoint: this rank's end of one transport in one communicator. It owns the links to its peers.
// Link: both directions to one peer: an outgoing and an incoming bounded ring of slots, in order.
//
// Threads: one thread at a time uses an endpoint and its links, except abort(), which any thread may call.
// Nothing here blocks but sleep(); waiting, deadlines and the abort flag are the executor's.
#pragma once
#include <bit>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "lib/base/result.h"

namespace peal {

// Says which operation a message belongs to. Travels with every message so that ranks that disagree find
// out at the first one.
struct Digest {
  static constexpr uint8_t kNoOp = 255;
  static constexpr uint8_t kAdamw = 254;  // a sum that becomes an AdamW update
  static constexpr uint8_t kApply = 253;  // or what a function of the caller makes of it
  uint64_t count = 0;                     // elements, as the caller gave them
  uint32_t sequence = 0;                  // of the communicator's collectives; point to point: of the pair
  int32_t root = -1;                      // -1 where the operation has none
  uint8_t collective = 0;                 // value of the pealStat... enum
  uint8_t type = 0;                       // pealDataType_t
  uint8_t op = 0;         // pealRedOp_t, pealNumOps for a pre-multiplied sum; or one of the above
  uint8_t algorithm = 0;  // tuner's choice, so that two ranks never run different texts
  uint32_t message = 0;   // for transports that number messages; 0 for whoever posts and receives

  // By words, as they are written: every message is compared, and a call of memcmp takes longer.
  bool operator==(const Digest& other) const {
    struct Words {
      uint64_t count, place;
      uint32_t kind, message;
    };
    const auto mine = std::bit_cast<Words>(*this), theirs = std::bit_cast<Words>(other);
    return ((mine.count ^ theirs.count) | (mine.place ^ theirs.place) | (mine.kind ^ theirs.kind) |
            (mine.message ^ theirs.message)) == 0;
  }
};

// A message as its receiver sees it. `data` stays valid until release().
struct Arrival {
  const std::byte* data = nullptr;
  size_t bytes = 0;
  Digest digest;
  bool remote = false;           // no data: Link::pull gets them
  std::byte* landing = nullptr;  // what the sender lent with it (Link::lend), as many bytes
  bool landed = false;           // no data: what this rank lent has been written (Link::tryPostLanded)
};

// A part of a message that its receiver and its sender copy together (Link::share).
struct Part {
  const std::byte* from = nullptr;
  std::byte* to = nullptr;
  size_t bytes = 0;
};

// Memory of a GPU that the devices of a network are to reach (GPUDirect RDMA). Owned by whoever has it made.
struct GpuMemory {
  std::byte* base = nullptr;  // as the GPU addresses it, at the beginning of a page
  size_t bytes = 0;           // whole pages
  size_t writtenBytes = 0;    // whole pages too: peers write the first so many, what lies behind is only sent
  int device = 0;             // for messages
  int dmabuf = -1;            // a descriptor of all of it, needed until it is reached; -1: there is none
  std::string whyNoDmabuf;
};

// What goes along with a message beside its slot: from memory of this rank's GPU to memory of the peer's.
struct Carried {
  const std::byte* from = nullptr;
  size_t bytes = 0;
  uint64_t to = 0;  // as the peer's GPU addresses it
};

class Link {
 public:
  virtual ~Link() = default;

  // ---- outgoing ----
  // Memory for one message of at most slotBytes, or nullptr: no credit yet. Asking again before post()
  // returns the same memory.
  virtual std::byte* tryStage(size_t bytes) = 0;
  // The same for a message that is short and goes by itself: a transport may have room for more of these than
  // it has slots. Without credit, it may be none until many can follow each other again.
  virtual std::byte* tryStageShort(size_t bytes) { return tryStage(bytes); }
  // Hands over what was staged.
  virtual void post(size_t bytes, const Digest& digest) = 0;
  // Looks whether the peer gets what this rank has written more slowly from this rank's cache than from
  // memory: then short messages too are better staged past the caches. Costs about what one of them does.
  virtual bool lookIfFar() { return false; }
  // Hands over [data, data + bytes) by reference; false: no credit yet, or the peer cannot read that
  // memory (see canReference). The memory must stay unchanged until drained().
  virtual bool tryPostReference(const std::byte* data, size_t bytes, const Digest& digest) = 0;
  // Whether the peer can read that memory in place. Constant for a registered buffer.
  virtual bool canReference(const std::byte* data, size_t bytes) = 0;
  // The same for memory that the peer cannot read in place but can copy from (Link::pull), in a message of
  // any size.
  virtual bool canOffer(const std::byte* /*data*/, size_t /*bytes*/) { return false; }
  virtual bool tryPostOffer(const std::byte* /*data*/, size_t /*bytes*/, const Digest& /*digest*/) {
    return false;
  }
  // Lends [memory, memory + bytes) to the peer along with the next message, which has as many bytes: the peer
  // may write there until it posts landed, or answer as if nothing had been lent. False: it cannot write
  // there.
  virtual bool lend(std::byte* /*memory*/, size_t /*bytes*/) { return false; }
  // Says that what the peer lent (Arrival::landing) is written; false: no credit yet.
  virtual bool tryPostLanded(size_t /*bytes*/, const Digest& /*digest*/) { return false; }
  // Hands over what was staged; what it carries is in the peer's memory before the message is shown there.
  // Between Endpoint::reachGpu and peerGpu on both sides and the endpoint's end. `from` must stay unchanged
  // until the peer has released the message, and `to` be free so long for this message alone. False: no room
  // now.
  virtual bool tryPostCarrying(size_t /*bytes*/, const Digest& /*digest*/, const Carried& /*carried*/) {
    return false;
  }
  // Whether the peer has released every reference posted so far.
  virtual bool drained() = 0;
  // How many messages this rank has posted, of all kinds, and whether the peer has released the first `count`
  // of them: tells when one reference has been read while later ones are still open.
  virtual uint64_t posted() const = 0;
  virtual bool released(uint64_t count) = 0;

  // ---- incoming ----
  // Before the next message that is not shown yet: it may be received into `memory`, if it has so many bytes
  // and is not here yet; Arrival::data is `memory` then. Until the message is released, or withdraw().
  virtual void expect(std::byte* /*memory*/, size_t /*bytes*/) {}
  // The oldest message not yet released, if one has arrived. Asking again gives the same message. A
  // malformed message is never shown: it becomes the endpoint's fault (progress()).
  virtual bool tryReceive(Arrival& arrival) = 0;
  // The same without copying what it says: valid until release(). `room` is for links that have no such
  // place.
  virtual const Arrival* tryPeek(Arrival& room) { return tryReceive(room) ? &room : nullptr; }
  // Copies [offset, offset + bytes) of the shown message, which is remote. False: the peer is gone or leaves;
  // the endpoint's progress() says why.
  virtual bool pull(std::byte* /*to*/, size_t /*offset*/, size_t /*bytes*/) { return false; }
  // ---- a copy that both sides make ----
  // Receiver: the shown message, read in place, goes to [memory, memory + its bytes), and its sender may
  // write parts of it there, too. False: it cannot, or it is not worth it.
  virtual bool share(std::byte* /*memory*/) { return false; }
  // Receiver: the next part that nobody has taken, for the caller to copy; false: there is none.
  virtual bool takeShared(Part& /*part*/) { return false; }
  // Receiver, when there is none: whether the sender has written all that it took. Before release().
  virtual bool shareDone() { return true; }
  // Sender: takes a part of a message by reference that its receiver shares. The caller copies it, and says
  // so before it uses the link again.
  virtual bool takePart(Part& /*part*/) { return false; }
  virtual void partDone() {}

  // Gives the slot of the shown message back to the peer.
  virtual void release() = 0;
  // The same where the peer sends more than one message only once this rank has sent it one, too: the credit
  // may travel with that.
  virtual void releaseQuietly() { release(); }
};

// What a rank was last seen doing, for the sentence of an expired deadline.
struct PeerState {
  Digest digest;        // the last operation that it entered
  bool inside = false;  // it has not left it
  bool known = false;   // false: it has done nothing yet, or the transport cannot say
};

class Endpoint {
 public:
  // For progress().
  static constexpr int kAnybody = -1;
  static constexpr int kNobody = -2;

  virtual ~Endpoint() = default;
  virtual const char* name() const = 0;
  virtual size_t slotBytes() const = 0;
  // Whether this rank and every peer can get at each other's memory without slots (Link::canReference or
  // canOffer, of any memory).
  virtual bool reachesAll() const { return false; }
  // The link to a peer (not to oneself).
  virtual Link& link(int peerRank) = 0;
  // How many full messages for a peer are best posted one after the other, where each costs much by itself.
  // All of them find credit if what was posted before has been released.
  virtual int burst() const { return 1; }
  // Whether memory posted by reference is copied before long, so that its release waits for no call of the
  // peer.
  virtual bool copiesReferences() const { return false; }

  // ---- the same bytes to every other rank, staged once ----
  // Memory for one message of at most slotBytes, or nullptr: some link has no credit, or the staging
  // memory is still being read.
  virtual std::byte* tryStageAll(size_t bytes) = 0;
  virtual void postAll(size_t bytes, const Digest& digest) = 0;

  // ---- memory of GPUs ----
  // Whether its devices may reach memory of GPUs at all.
  virtual bool mayReachGpus() const { return false; }
  // Lets this rank's devices read, and those of peers write, memory of this rank's GPU, until the endpoint's
  // end. What is returned goes to each peer's peerGpu(). An error says what was tried and why it failed;
  // nothing is left of it then. Once.
  virtual Result<std::vector<std::byte>> reachGpu(const GpuMemory& /*memory*/) {
    return Error{pealInvalidUsage, std::string(name()) + " does not reach memory of GPUs"};
  }
  // Ends that, where the memory is to be freed before the endpoint's end: nothing may be on its way.
  virtual void leaveGpu() {}
  // What that peer's reachGpu() returned.
  virtual Result<void> peerGpu(int /*peerRank*/, const std::vector<std::byte>& /*keys*/) {
    return Error{pealInvalidUsage, std::string(name()) + " does not reach memory of GPUs"};
  }

  // ---- progress ----
  // Moves outstanding work on. A wait calls it between looks at its condition, if it has to: cheap, no system
  // call when there is nothing to do.
  virtual void poll() {}
  virtual bool needsPoll() const { return false; }
  // Whether everything that this rank posted, and every release that a peer cannot go on without, reaches its
  // peers without further calls of poll(). An operation ends only then, since its caller may compute for long
  // before the next one.
  virtual bool settled() { return true; }

  // ---- health ----
  // Moves outstanding work on and looks for dead, departed or aborting peers. `waitingForRank` is the peer
  // whose message, credit or release the caller cannot go on without; kAnybody: that of each to whom
  // something was posted that it has not released; kNobody: what peers no longer take is of no interest. A
  // peer that died, or that left because of a fault, is a fault for everybody, now and at every later call;
  // it names the rank at the root. A peer that left in good order is one only for a caller that waits for it,
  // and only once its last messages have been received: what it posted before it left stays readable. Costs a
  // system call: for slow paths.
  virtual Result<void> progress(int waitingForRank) = 0;
  // A fault that the fast path met (a malformed message), without a system call.
  virtual bool faulted() const = 0;
  // Whether a peer took back (withdraw) memory that this rank read in place, before this rank released the
  // message: what it read may have been changed. For good; progress() says why that peer left.
  virtual bool readWithdrawn() const { return false; }
  // Whose fault progress() reports: this rank's own if nobody else's; -1 without a fault.
  virtual int culpritRank() const = 0;
  // Publishes what this rank is doing, and reads what a peer last published. Between nodes the answer is what
  // is known by now, and asking brings a newer one soon.
  virtual void announce(const Digest& digest, bool inside) = 0;
  virtual PeerState peerState(int peerRank) = 0;

  // ---- sleeping ----
  // token = prepareSleep(); check the condition once more; sleep(token, us). Returns when a peer has posted
  // or released something since prepareSleep, when wake() is called, or after `us` at the latest.
  virtual uint32_t prepareSleep() = 0;
  virtual void sleep(uint32_t token, int64_t us) = 0;
  virtual void cancelSleep() = 0;
  // Ends a sleep of this rank early; callable from any thread.
  virtual void wake() = 0;

  // ---- leaving ----
  // Tells peers that this rank leaves in good order (culpritRank -1) or because of a fault, and of whose.
  // Peers that still wait for it get an error that names the culprit. Callable once; from any thread.
  virtual void farewell(int culpritRank, const std::string& reason) = 0;
  // After an operation has failed and farewell was said; no message is sent or received any more. When it
  // returns, no peer of this process reads what this rank referred to or writes what it lent, and none begins
  // to: the caller's buffers may be freed. Peers in other processes read and write mappings of their own,
  // which survive that, so they are waited for only briefly. A rank of this process that does not end within
  // timeoutMs is returned, else -1.
  virtual int withdraw(int64_t /*timeoutMs*/) { return -1; }
};

// How ranks exchange small blobs before links exist.
class Exchange {
 public:
  virtual ~Exchange() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  // Every rank's blob, in rank order. Collective. Blobs may differ in length, at most 64 KiB each.
  virtual Result<std::vector<std::vector<std::byte>>> allGather(const std::vector<std::byte>& mine) = 0;
};

}  // namespace peal
