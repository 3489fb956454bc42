// Both directions to one peer over UCX's active messages.
//
// Outgoing: a ring of slots, each with room for the header before the data; a message is one send of both. A
// slot is free again when the peer has released its message and UCX has let go of the memory. Incoming: a
// ring of the same number of slots; a message is placed by its sequence number, so the order of arrival does
// not matter. Credits travel in the headers of messages that go the other way, and alone only when the peer
// has none left, when many are due, or when it leaves and waits for the last ones.
//
// Owned and called by UcxFabric. Trusts no number that arrives: what does not fit becomes the fabric's fault.
#pragma once
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lib/memory/aligned.h"
#include "transports/fabric.h"
#include "transports/ucx/table.h"
#include "transports/ucx/wire.h"

namespace peal::ucx {

// The number of peal's messages among UCX's active messages.
inline constexpr unsigned kMessageId = 1;

class UcxLink;

// What the links of a fabric have in common.
struct Station {
  Station(const Table& functions, ucp_worker_h handle, const FabricOptions& chosen)
      : table(functions), worker(handle), options(chosen) {}
  // Whether all that was posted reaches the peers without further calls.
  bool isSettled();

  const Table& table;
  const ucp_worker_h worker;
  const FabricOptions options;
  // What the system takes of a link's messages at least, whatever the peer does (settings.h).
  size_t socketBytes = 0;
  int rank = -1;
  uint64_t token = 0;  // ours: every header must show it
  FabricFaults faults;
  int inFlight = 0;                 // sends that UCX has not finished
  int crowded = 0;                  // links that may have more on their way than the system takes
  std::vector<UcxLink*> creditDue;  // links that owe their peer a message of credits

  void raise(int peerRank, Error error);  // the first one stays
  void progress();
  void sendCredits();
};

class UcxLink final : public Link {
 public:
  static Result<std::unique_ptr<UcxLink>> make(Station& station, int peerRank, const Card& peer);
  UcxLink(const UcxLink&) = delete;
  UcxLink& operator=(const UcxLink&) = delete;
  ~UcxLink() override = default;

  std::byte* tryStage(size_t bytes) override;
  void post(size_t bytes, const Digest& digest) override;
  bool tryPostReference(const std::byte* data, size_t bytes, const Digest& digest) override;
  bool canReference(const std::byte* data, size_t bytes) override;
  bool drained() override;
  uint64_t posted() const override { return posted_; }
  bool released(uint64_t count) override;
  bool tryReceive(Arrival& arrival) override;
  void release() override;

  // ---- for the fabric ----
  int peerRank() const { return peerRank_; }
  ucp_ep_h endpoint = nullptr;
  bool gotHello = false;
  bool gotReady = false;
  bool left = false;  // the peer said that it leaves: that its connection ends is no fault
  bool dead = false;  // nothing can be sent
  // A message without data; false: the last one is still on its way.
  bool trySendControl(Kind kind);
  // Tells the peer how many of its messages have been released, if it does not know. False: later.
  bool sendCredit();
  // Whether the peer has released everything, as far as this rank knows.
  bool allReleased() const { return peerReleased_ == posted_; }
  // Gives UCX its memory back, before the worker ends.
  void giveBack();
  // UCX says that nothing goes to this peer any more, and why.
  void lose(ucs_status_t status);
  // A message that UCX delivers; the status is the answer to UCX. `kept` is not nullptr if UCX lets its
  // memory be kept (UCS_INPROGRESS) until it is given back.
  ucs_status_t onMessage(const Header& header, std::byte* data, size_t bytes, void* kept);

 private:
  UcxLink(Station& station, int peerRank, const Card& peer, AlignedMemory outMemory, AlignedMemory inMemory);

  static size_t outStrideOf(const FabricOptions& options) { return kHeaderBytes + options.slotBytes; }

  // One send on its way; UCX's callback gets its address.
  struct Send {
    UcxLink* link = nullptr;
    bool inFlight = false;
    bool isReference = false;
    size_t bytes = 0;  // of the message in this slot, with its header
  };
  struct Incoming {
    const std::byte* data = nullptr;
    size_t bytes = 0;
    Digest digest;
    bool arrived = false;
    void* kept = nullptr;  // memory of UCX to give back
  };

  std::byte* slotMemory(uint64_t number) { return outMemory_.get() + (number % slots_) * outStride_; }
  Send& sendOf(uint64_t number) { return sends_[number % slots_]; }
  bool hasSlot();
  Send& countPost(size_t bytes);
  void writeHeader(std::byte* to, Kind kind, const Digest& digest);
  // Hands [data, data + bytes) to UCX, after a separate `header` if that is not nullptr.
  void submit(Send& send, const std::byte* header, const std::byte* data, size_t bytes);
  static void onSent(void* request, ucs_status_t status, void* sendPointer);
  ucs_status_t onData(const Header& header, std::byte* data, size_t bytes, void* kept);
  bool noteReleased(uint64_t released);
  void noteCrowd();
  void noteCredit();
  bool malformed(const std::string& what);

  Station& station_;
  const int peerRank_;
  const uint64_t peerToken_;
  const uint64_t slots_;
  const size_t slotBytes_;

  // Outgoing.
  const size_t outStride_;
  const AlignedMemory outMemory_;
  std::vector<Send> sends_;
  uint64_t posted_ = 0;
  uint64_t peerReleased_ = 0;
  int openReferences_ = 0;
  size_t unreleasedBytes_ = 0;  // as the system's memory counts them
  bool isCrowded_ = false;
  alignas(64) std::byte controlHeader_[kHeaderBytes];
  Send control_;

  // Incoming.
  const AlignedMemory inMemory_;
  std::vector<Incoming> incoming_;
  uint64_t received_ = 0;    // released messages
  uint64_t arrived_ = 0;     // messages in slots, and those that were
  uint64_t creditSent_ = 0;  // `received_` as the peer was last told
  bool isCreditDue_ = false;
  const uint64_t creditStep_;  // so many releases are told even if nothing else goes to the peer
};

}  // namespace peal::ucx
