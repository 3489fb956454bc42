// The host port: the verbs of algorithms/port.h on host memory, over the links of one endpoint.
//
// Made on the stack for one operation, on the thread that runs it. Owns nothing. After a fault every verb
// returns at once, so an algorithm's text needs no error handling.
#pragma once
#include <cstddef>
#include <span>

#include "algorithms/port.h"
#include "lib/executor/host/operation.h"
#include "lib/executor/host/wait.h"

namespace peal {

// The caller's buffers. Element x of the operation's array lies at in + (x - inStart) elements, and likewise
// for out. `in` may be nullptr where a rank has no input, `out` where it has no output.
struct HostBuffers {
  const std::byte* in = nullptr;
  size_t inStart = 0;
  std::byte* out = nullptr;
  size_t outStart = 0;
};

class HostPort {
 public:
  struct Options {
    // sendAll may hand over references to `in`; not where `out` overwrites the same elements before every
    // peer can have read them (one-shot all-reduce in place).
    bool referenceAll = true;
    // Whoever gets a chunk of `in` by send() answers with its finished sum, the next message from there of
    // that chunk: so the same chunk of `out` is lent along, and the peer may write the sum there.
    bool lend = false;
    // A chunk that recvReduceAll finishes is sent on next, by sendOut to one peer or by sendOutAll to all: so
    // it is written into the slot in the same pass.
    enum class Next { Unknown, ToOne, ToAll } next = Next::Unknown;
    // Memory that peers cannot read in place is offered to them (Link::tryPostOffer): for algorithms whose
    // messages meet recv and recvReduceAll only.
    bool offer = false;
    // Messages are as long as their sender can make them: one where all peers read a chunk of sendAll in
    // place, else slots; recv takes them as they come. For algorithms of sendAll, recv and copy.
    bool anyLength = false;
    // Every message is cut alike by send, sendOut, sendAll, recv and recvReduceAll on all ranks: so a chunk
    // of one slot may go in two slices where a network wants several messages at a time.
    bool halve = false;
    Store store = Store::Cached;       // of what this rank does not read again
    HostEpilogue* epilogue = nullptr;  // of finished chunks, where the table of port.h says (finish)
  };
  HostPort(HostContext& context, const Digest& digest, pealDataType_t type, const ReduceOp& op,
           const HostBuffers& buffers, const Options& options);

  int rank() const { return context_.rank; }
  int size() const { return context_.size; }

  // send, recv, sendAll and recvReduceAll hand over a chunk longer than a slot in slices of a slot, unless
  // none of them needs one.
  void send(int to, Chunk c);
  void copySend(int to, Chunk c);
  void sendOut(int to, Chunk c);
  void recv(int from, Chunk c);
  void recvCopySend(int from, int to, Chunk c);
  void recvReduceSend(int from, int to, Chunk c);
  void recvReduceCopy(int from, Chunk c);
  void recvReduceCopySend(int from, int to, Chunk c);
  void copy(Chunk c);
  void copyFinish(Chunk c);
  void sendAll(Chunk c);
  void sendOutAll(Chunk c);
  void recvReduceAll(Chunk c);

  void hold(int from, Chunk c);
  void holdIn(Chunk c);
  void holdOut(Chunk c);
  void sumSend(int to, Chunk c);
  void sumKeep(Chunk c);
  void sumCopy(Chunk c);

  // Whether all ranks hand over all of their blocks in place, parts of `in` and the finished one. One message
  // of a byte to and from every peer, which counters of messages leave out.
  bool allInPlace(const Blocks& blocks);

  // Waits until no peer reads this rank's buffers any more. The last thing of an operation.
  void drain();
  // The operation's fault, if any. Ends the port's use.
  std::optional<Fault> finish();

 private:
  enum class From { In, Out };

  // Below this a message is cheaper to copy into a slot than to read in place: a reference costs the sender a
  // wait at the operation's end.
  static constexpr size_t kReferenceLeastBytes = 4096;

  const std::byte* inAt(Chunk c) const { return buffers_.in + (c.offset - buffers_.inStart) * elementBytes_; }
  std::byte* outAt(Chunk c) const { return buffers_.out + (c.offset - buffers_.outStart) * elementBytes_; }
  size_t bytes(Chunk c) const { return c.count * elementBytes_; }
  bool mayPassInPlace(const Blocks& blocks);
  const std::byte* source(From from, Chunk c) const { return from == From::In ? inAt(c) : outAt(c); }

  size_t sliceBytes(Chunk c) const;
  template <class Each>
  void inSlices(Chunk c, Each&& each);
  void recvSlice(int from, Chunk c);
  void recvAnyLength(int from, Chunk c);
  bool canReferenceAll(Chunk c) const;
  void keep(int from, Chunk c, const std::byte* data);
  void copyTogether(int from);
  bool help(Link& link) const;
  void recvReduceSlice(Chunk c);
  std::byte* stage(int to, size_t sizeBytes);
  void post(int to, size_t sizeBytes);
  void postAll(size_t sizeBytes);
  // mayLand: data may be where this rank lent memory for it already (Arrival::landed).
  bool receive(int from, size_t sizeBytes, Arrival& arrival, bool mayLand = false);
  bool checkArrival(int from, size_t sizeBytes, const Arrival& arrival);
  bool fitsChunk(size_t sizeBytes, const Arrival& arrival) const;
  void sendFrom(int to, Chunk c, From from);
  void sendAllFrom(Chunk c, From from);
  bool canHandOver(int to, const std::byte* data, size_t sizeBytes) const;
  bool handOver(int to, const std::byte* data, size_t sizeBytes);
  bool mayReference(const std::byte* data, size_t sizeBytes, From from) const;
  bool isRead(const std::byte* begin, size_t sizeBytes);
  void awaitReaders(const std::byte* begin, size_t sizeBytes);
  void produce(std::byte* to, Chunk c, From from);
  void reduceTwo(const Arrival& arrival, Chunk c, std::byte* copy);
  void reduceFinished(std::span<const void*> sources, int rawSource, Chunk c, std::byte* copy, Store store);
  void applyFinished(std::span<const void*> sources, int rawSource, Chunk c, std::byte* copy, Store store);
  void copyToLandings(const std::byte* part, size_t at, size_t sizeBytes, const std::byte* except);
  void reduceToLandings(std::span<const void*> sources, Chunk c);
  void reduceArrived(std::span<const void*> sources, Chunk c, std::byte* copy, Store store);
  bool gather(std::span<const void*> sources, Chunk piece, size_t placeBytes);
  std::byte* stageAhead(Chunk c);
  bool sendLanded(int to, Chunk c);
  void holdTerm(const std::byte* data, int from);
  void sumTerms(Chunk c, std::byte* to, Finish finish);

  HostContext& context_;
  Digest digest_;
  Waiter waiter_;
  pealDataType_t type_;
  size_t elementBytes_;
  const ReduceOp& op_;
  HostBuffers buffers_;
  Options options_;
  bool wholeChunks_;          // chunks longer than a slot are one message, which none of them needs
  bool oneSlice_ = false;     // of the chunk that recvReduceAll is at
  bool stagedAhead_ = false;  // the next chunk of sendOut or sendOutAll lies in its slot
  size_t landed_ = 0;         // bytes of the current chunk that came before, of its landings too
  size_t landings_ = 0;       // how many of context_.landings are not null: peers that wait to be told
  // The terms of the next sum: in context_.sources and holders, in this order.
  size_t terms_ = 0;
  int rawTerm_ = -1;  // which is own input
};

}  // namespace peal
