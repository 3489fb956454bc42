// The kernel of sends and receives that were grouped, progressed together: no transfer waits for one of
// another pair or direction, so any pattern of exchanges that the ranks agree on is free of deadlock.
// lib/executor/host/point_to_point.cpp is its model.
//
// A lane is what goes to one peer or comes from it: its transfers follow each other in the order of the list.
// The block goes over all lanes again and again: each lane's thread looks whether its next slice can move,
// and then the block moves one slice of each lane that can. Lane 2p receives from peer p, lane 2p + 1 sends
// to it.
#include <cstddef>
#include <cstdint>

#include "lib/executor/cuda/device.h"
#include "lib/executor/cuda/move.cuh"
#include "lib/executor/cuda/view.h"
#include "lib/executor/cuda/wait.cuh"
#include "lib/executor/cuda/window_notes.h"
#include "peal/peal.h"

namespace peal::cuda {

constexpr int kMostLanes = 2 * kMostRanks;
constexpr int kNoTransfer = -1;
constexpr Protocol kSimple = Protocol::Simple;

// A block's shared memory. A lane's entries are written by its thread only, between the barrier after its
// slice has moved and the barrier after the next look.
struct LanesState {
  int current[kMostLanes];             // transfer under way
  uint64_t slice[kMostLanes];          // its next slice
  uint64_t messages[kMostLanes];       // posted or released on the link
  uint64_t lastReference[kMostLanes];  // number of the last message that was a reference
  uint32_t sequence[kMostLanes];       // of the transfer under way
  // Whether a slice can move; of even and odd passes, because a thread may look again while others have not
  // come to the end of the pass before.
  bool ready[2][kMostLanes];
};

class PointToPointRun {
 public:
  PEAL_DEVICE PointToPointRun(const PointToPointArgs& args, LanesState& state)
      : args_(args), comm_(args.comm), state_(state), sliceBytes_(comm_.shape.payloadBytes(kSimple)) {}

  PEAL_DEVICE void run() {
    begin();
    bool failed =
        syncBlockOr((threadIndex() == 0 && stoppedByOthers(comm_, headerOfTransfer(0))) || !copyToSelf());
    uint64_t beganNs = 0;
    uint32_t idle = 0;
    PEAL_KEEP_LOOP
    for (int pass = 0; !failed; pass ^= 1) {
      bool ready = false, left = false;
      look(pass, ready, left);
      if (syncBlockOr(ready)) {
        failed = !moveAll(pass);
        beganNs = 0;
        idle = 0;
      } else if (syncBlockOr(left)) {
        failed = syncBlockOr(threadIndex() == 0 && ++idle % kSpinsPerLook == 0 && !mayGoOn(beganNs));
      } else {
        break;
      }
    }
    end(failed);
  }

 private:
  // One slice of a lane's transfer, as all threads see it.
  struct Slice {
    const TransferArgs& transfer;
    size_t offset, bytes;
    Header header;
  };

  PEAL_DEVICE static bool sends(int lane) { return lane % 2 != 0; }
  PEAL_DEVICE int lanes() const { return 2 * comm_.ranks; }
  PEAL_DEVICE bool isMine(int lane) const {
    return static_cast<uint32_t>(lane) % blockThreads() == threadIndex();
  }
  PEAL_DEVICE ChannelBoxes boxes(int lane) const { return boxesOf(comm_, lane / 2); }

  // The first transfer after `transfer` of this lane.
  PEAL_DEVICE int after(int transfer, int lane) const {
    PEAL_KEEP_LOOP
    for (int i = transfer + 1; i < args_.count; ++i) {
      if (args_.transfers[i].peer == lane / 2 && (args_.transfers[i].isSend != 0) == sends(lane)) {
        return i;
      }
    }
    return kNoTransfer;
  }
  // Slices of a transfer: an empty one still is one message.
  PEAL_DEVICE uint64_t slicesOf(const TransferArgs& transfer) const {
    return transfer.bytes == 0 ? 1 : (transfer.bytes + sliceBytes_ - 1) / sliceBytes_;
  }

  template <class Work>
  PEAL_DEVICE void forMyLanes(const Work& work) const {
    PEAL_KEEP_LOOP
    for (auto lane = static_cast<int>(threadIndex()); lane < lanes();
         lane += static_cast<int>(blockThreads())) {
      if (lane / 2 != comm_.rank) {
        work(lane);
      }
    }
  }

  // From transfer `first` on, the first of the lane that has a slice in this channel. Both ends count all.
  PEAL_DEVICE void enter(int lane, int first) {
    PEAL_KEEP_LOOP
    while (first != kNoTransfer && slicesOf(args_.transfers[first]) <= blockIndex()) {
      first = after(first, lane);
      ++state_.sequence[lane];
    }
    state_.current[lane] = first;
    state_.slice[lane] = blockIndex();
  }

  PEAL_DEVICE LinkState& link(int lane) const { return comm_.channels[blockIndex()].links[lane / 2]; }
  PEAL_DEVICE static uint64_t* counterOf(LinkState& link, int lane) {
    return (sends(lane) ? link.sent : link.received) + static_cast<int>(kSimple);
  }
  PEAL_DEVICE static uint32_t* sequenceOf(LinkState& link, int lane) {
    return sends(lane) ? &link.sendSequence : &link.recvSequence;
  }

  // By one thread of the kernel.
  PEAL_DEVICE void note(const Header& transfer) const {
    if (blockIndex() == 0 && threadIndex() == 0) {
      PEAL_KEEP_LOOP
      for (int i = 0; i < kDigestWords; ++i) {
        storeRelaxed(comm_.stopped + kTransferNoteAt / sizeof(uint64_t) + i, transfer.word[i]);
      }
    }
  }
  // The first transfer with another rank.
  PEAL_DEVICE void noteFirst() const {
    int first = 0;
    PEAL_KEEP_LOOP
    while (first < args_.count && args_.transfers[first].peer == comm_.rank) {
      ++first;
    }
    if (first < args_.count) {
      DigestWords digest = args_.transfers[first].digest;
      digest.root = args_.transfers[first].peer;
      note(headerOf(digest, 0));
    }
  }

  PEAL_DEVICE void begin() {
    noteFirst();
    if (threadIndex() == 0) {
      beginReading(comm_);
    }
    forMyLanes([&](int lane) {
      state_.messages[lane] = loadGlobal(counterOf(link(lane), lane));
      state_.sequence[lane] = loadGlobal(sequenceOf(link(lane), lane));
      state_.lastReference[lane] = 0;
      enter(lane, after(-1, lane));
    });
  }

  // Waits until no peer reads this rank's buffers any more, and puts the counters back.
  PEAL_DEVICE void end(bool failed) {
    forMyLanes([&](int lane) {
      if (const uint64_t number = state_.lastReference[lane]; number != 0 && !failed) {
        const uint64_t next = number + static_cast<uint64_t>(comm_.shape.slots);
        waitUntil(comm_, lane / 2, lastHeader(lane), [&] { return boxes(lane).hasCredit(kSimple, next); });
      }
      storeGlobal(counterOf(link(lane), lane), state_.messages[lane]);
      storeGlobal(sequenceOf(link(lane), lane), state_.sequence[lane]);
    });
    if (!failed) {
      note(Header{});
    }
    if (threadIndex() == 0) {
      endReading(comm_);
    }
  }

  // Sends to oneself meet the receives from oneself in order. False: they do not match.
  PEAL_DEVICE bool copyToSelf() const {
    const int receiving = 2 * comm_.rank, sending = receiving + 1;
    int from = after(-1, sending), to = after(-1, receiving);
    PEAL_KEEP_LOOP
    for (; from != kNoTransfer && to != kNoTransfer; from = after(from, sending), to = after(to, receiving)) {
      const TransferArgs& source = args_.transfers[from];
      const TransferArgs& destination = args_.transfers[to];
      if (source.bytes != destination.bytes) {
        break;
      }
      PEAL_KEEP_LOOP
      for (size_t at = blockIndex() * sliceBytes_; at < source.bytes; at += gridBlocks() * sliceBytes_) {
        copyBlock(destination.data + at, source.data + at, bytesFrom(source, at));
      }
    }
    if (from == to) {
      return true;  // both at the end
    }
    if (threadIndex() == 0) {
      report(comm_, FaultKind::Bytes, comm_.rank, headerOfTransfer(to), headerOfTransfer(from));
    }
    return false;
  }
  PEAL_DEVICE Header headerOfTransfer(int transfer) const {
    return transfer == kNoTransfer
               ? Header{}
               : headerOf(args_.transfers[transfer].digest, args_.transfers[transfer].bytes);
  }

  // Of the lane's last transfer, when all are through.
  PEAL_DEVICE Header lastHeader(int lane) const {
    int last = after(-1, lane);
    PEAL_KEEP_LOOP
    for (int next = last; next != kNoTransfer; next = after(next, lane)) {
      last = next;
    }
    DigestWords digest = args_.transfers[last].digest;
    digest.sequence = state_.sequence[lane] - 1;
    return headerOf(digest, args_.transfers[last].bytes);
  }

  PEAL_DEVICE size_t bytesFrom(const TransferArgs& transfer, size_t offset) const {
    const size_t left = transfer.bytes - offset;
    return left < sliceBytes_ ? left : sliceBytes_;
  }
  PEAL_DEVICE Slice sliceOf(int lane) const {
    const TransferArgs& transfer = args_.transfers[state_.current[lane]];
    const size_t offset = state_.slice[lane] * sliceBytes_;
    const size_t sizeBytes = bytesFrom(transfer, offset);
    DigestWords digest = transfer.digest;
    digest.sequence = state_.sequence[lane];
    digest.collective = pealStatSend;  // of both ends
    return {transfer, offset, sizeBytes, headerOf(digest, sizeBytes)};
  }

  PEAL_DEVICE void look(int pass, bool& ready, bool& left) {
    forMyLanes([&](int lane) {
      bool can = false;
      if (state_.current[lane] != kNoTransfer) {
        const uint64_t number = state_.messages[lane] + 1;
        can = sends(lane) ? boxes(lane).hasCredit(kSimple, number) : hasArrived(boxes(lane), number);
        left = true;
      }
      state_.ready[pass][lane] = can;
      ready = ready || can;
    });
  }

  PEAL_DEVICE bool moveAll(int pass) {
    PEAL_KEEP_LOOP
    for (int lane = 0; lane < lanes(); ++lane) {
      if (lane / 2 != comm_.rank && state_.ready[pass][lane]) {
        const bool moved = sends(lane) ? send(lane) : receive(lane);
        if (!moved) {
          return false;
        }
      }
    }
    return true;
  }

  PEAL_DEVICE bool send(int lane) {
    const Slice slice = sliceOf(lane);
    const uint64_t number = state_.messages[lane] + 1;
    const std::byte* data = slice.transfer.data + slice.offset;
    const bool referenced = slice.transfer.dataAt != 0 && slice.bytes >= kReferenceLeastBytes;
    const uint64_t place = placeFor(data);
    if (!referenced) {
      copyBlock(slotFor(boxes(lane), number, place), data, slice.bytes);
    }
    syncBlock();
    if (isMine(lane)) {
      postMessage(boxes(lane), number, referenced ? slice.transfer.dataAt + slice.offset : place,
                  slice.header);
      state_.lastReference[lane] = referenced ? number : state_.lastReference[lane];
      advance(lane);
    }
    return true;
  }

  PEAL_DEVICE bool receive(int lane) {
    const Slice slice = sliceOf(lane);
    const uint64_t number = state_.messages[lane] + 1;
    const Envelope envelope = loadMessage(boxes(lane), number);  // all threads: the barrier made it visible
    if (const FaultKind fault = disagreement(slice.header, envelope.header); fault != FaultKind::None) {
      if (threadIndex() == 0) {
        report(comm_, fault, lane / 2, slice.header, envelope.header);
      }
      return false;
    }
    copyBlock(slice.transfer.data + slice.offset, envelope.payload(boxes(lane), number), slice.bytes);
    syncBlock();
    if (isMine(lane)) {
      storeRelease(boxes(lane).releases(kSimple), number);  // pairs with ChannelBoxes::hasCredit
      advance(lane);
    }
    return true;
  }

  PEAL_DEVICE void advance(int lane) {
    ++state_.messages[lane];
    state_.slice[lane] += gridBlocks();
    const int current = state_.current[lane];
    if (state_.slice[lane] >= slicesOf(args_.transfers[current])) {
      ++state_.sequence[lane];
      enter(lane, after(current, lane));
    }
  }

  // One thread, after the barriers of an idle pass: names the first lane that is not done.
  PEAL_DEVICE bool mayGoOn(uint64_t& beganNs) const {
    int lane = 0;
    PEAL_KEEP_LOOP
    while (lane / 2 == comm_.rank || state_.current[lane] == kNoTransfer) {
      ++lane;
    }
    return mayWait(comm_, lane / 2, sliceOf(lane).header, beganNs);
  }

  const PointToPointArgs& args_;
  const CommView& comm_;
  LanesState& state_;
  size_t sliceBytes_;
};

PEAL_KERNEL void PEAL_LAUNCH_BOUNDS(512) pointToPoint(PEAL_GRID_CONSTANT PointToPointArgs args) {
  PEAL_SHARED(LanesState, state);
  PointToPointRun(args, state).run();
}

}  // namespace peal::cuda
