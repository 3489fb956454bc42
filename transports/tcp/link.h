// Both directions to one peer over one TCP connection.
//
// Outgoing: a ring of slots, each with room for the header before the data. What is posted goes to the
// system, which copies it from the slot or from where a reference lies, when this rank next looks for a
// message: so several messages are one call. What the system does not take waits. Incoming: as many slots,
// of which the last that became free is the next to be used, since it is in the cache; data go straight from
// the connection into a slot, or where the next message is expected. Credits travel in the headers of
// messages that go the other way, and alone only when the peer has none left, when many are due, or when it
// leaves and waits for the last ones.
//
// Owned and called by TcpFabric. Trusts no number that arrives: what does not fit becomes the fabric's fault.
#pragma once
#include <sys/uio.h>

#include <array>
#include <cerrno>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "lib/memory/aligned.h"
#include "transports/fabric.h"
#include "transports/tcp/wire.h"

namespace peal::tcp {

// What the links of a fabric have in common.
struct Station {
  FabricOptions options;
  int burst = 1;  // messages of one call of the system
  int rank = -1;
  FabricFaults faults;
  int waiting = 0;  // links with something that the system does not have
  OwnedFd epoll;    // tells of the links' connections
};

// Whether a call that failed is to be made again later.
inline bool wouldBlock() { return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR; }

class TcpLink final : public Link {
 public:
  static Result<std::unique_ptr<TcpLink>> make(Station& station, PeerSocket peer);
  TcpLink(const TcpLink&) = delete;
  TcpLink& operator=(const TcpLink&) = delete;
  ~TcpLink() override;

  std::byte* tryStage(size_t bytes) override;
  void post(size_t bytes, const Digest& digest) override;
  bool tryPostReference(const std::byte* data, size_t bytes, const Digest& digest) override;
  bool canReference(const std::byte* data, size_t bytes) override;
  bool drained() override;
  uint64_t posted() const override { return posted_; }
  bool released(uint64_t count) override;
  void expect(std::byte* memory, size_t bytes) override;
  bool tryReceive(Arrival& arrival) override;
  void release() override;

  // ---- for the fabric ----
  int peerRank() const { return peer_.peerRank; }
  int descriptor() const { return peer_.socket.get(); }
  // Hands the system what was posted.
  void flush();
  // And reads, until the next message is whole, or all that has come.
  enum class Extent { NextMessage, All };
  void pump(Extent extent);
  bool isWaiting() const { return isWaiting_; }
  // The peer left in good order: that its connection ends is no fault.
  void excuse() { left_ = true; }
  void sayLeaving();
  // Whether memory of the caller waits to be read or written.
  bool usesCallersMemory() const;
  // Drops what does.
  void withdraw();
  bool isLeft() const { return left_; }
  bool isDead() const { return dead_; }  // nothing goes there and nothing comes any more
  bool allReleased() const { return peerReleased_ == posted_; }

 private:
  TcpLink(Station& station, PeerSocket peer, AlignedMemory outMemory, AlignedMemory inMemory);

  static size_t outStrideOf(const FabricOptions& options) { return kCacheLineBytes + options.slotBytes; }

  // Room for a header and the data of a short message: what follows a message is read along with it.
  static constexpr size_t kFrontBytes = 4096;

  struct Outgoing {
    const std::byte* header = nullptr;
    const std::byte* data = nullptr;
    size_t bytes = 0;
    bool isReference = false;
  };
  struct Incoming {
    std::byte* data = nullptr;
    std::byte* slot = nullptr;  // to be free again; none if data are where they were expected
    size_t bytes = 0;
    Digest digest;
  };

  // ---- outgoing ----
  std::byte* slotMemory(uint64_t number) { return outMemory_.get() + (number % slots_) * outStride_; }
  Outgoing& outgoing(uint64_t number) { return outgoing_[number % slots_]; }
  bool hasSlot();
  bool hasUnsentReference() const;
  void writeHeader(std::byte* to, Kind kind, size_t bytes, const Digest& digest);
  void submit(const std::byte* data, size_t bytes, bool isReference, const Digest& digest);
  bool isControlNext() const;
  bool hasUnsent() const { return written_ < posted_ || isControlDue_; }
  size_t gather(std::span<iovec> pieces);
  void account(size_t bytes);
  void noteWaiting();
  void sayControl(Kind kind);

  // ---- incoming ----
  bool receive(Extent extent);
  void parse(Extent extent);
  bool takeHeader(const Header& header);
  bool beginData(const Header& header);
  uint64_t seen() const;
  void noteCredit();
  bool malformed(const std::string& what);
  void lose(const std::string& why);
  void end();

  Station& station_;
  PeerSocket peer_;
  const uint64_t slots_;
  const size_t slotBytes_;
  bool left_ = false;
  bool dead_ = false;

  // Outgoing. Messages up to `written_` are the system's, and `sent_` bytes of the next, header included.
  const size_t outStride_;
  const AlignedMemory outMemory_;
  std::vector<Outgoing> outgoing_;
  uint64_t posted_ = 0;
  uint64_t written_ = 0;
  uint64_t peerReleased_ = 0;
  size_t sent_ = 0;
  bool isWaiting_ = false;
  // A message without data goes between two others.
  bool isControlDue_ = false;
  Kind controlKind_ = Kind::Credit;
  std::array<std::byte, kHeaderBytes> control_{};
  size_t controlSent_ = 0;
  bool leavesNext_ = false;  // a farewell goes once the credit that has begun is through

  // Incoming. Messages up to `received_` have been released, up to `arrived_` they are whole.
  const AlignedMemory inMemory_;
  std::vector<std::byte*> freeSlots_;
  std::vector<Incoming> incoming_;  // by number
  uint64_t received_ = 0;
  uint64_t arrived_ = 0;
  uint64_t creditSent_ = 0;  // `received_` as the peer was last told
  bool isFilling_ = false;   // message `arrived_` is on its way, `filled_` bytes of its data are there
  size_t filled_ = 0;
  bool isLong_ = false;            // the last message was
  std::byte* expected_ = nullptr;  // where message `expectedNumber_` may go, if it has so many bytes
  size_t expectedBytes_ = 0;
  uint64_t expectedNumber_ = 0;
  bool pumped_ = false;  // since the last look at a message that was not there
  // What was read and belongs to no data: [frontBegin_, frontEnd_).
  std::array<std::byte, kFrontBytes> front_;
  size_t frontBegin_ = 0;
  size_t frontEnd_ = 0;
};

}  // namespace peal::tcp
