#include "transports/verbs/link.h"

#include <arpa/inet.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "lib/memory/registry.h"
#include "transports/verbs/errors.h"

namespace peal::verbs {
namespace {

// Per lane: every slot's message, what it carries, and about as many credits.
uint32_t sendDepth(uint64_t slots) { return static_cast<uint32_t>(3 * slots + 16); }
// Messages and credits that this rank has not looked at yet are each at most `slots`: the peer posts no more
// without credits, and credits answer messages. The rest is for pings and for what is sent again.
uint32_t receiveDepth(uint64_t slots) { return static_cast<uint32_t>(3 * slots + 8); }

// Before a peer says goodbye its device has delivered what it ever will; this is for completions on their
// way.
constexpr std::chrono::milliseconds kLastArrivals{500};

}  // namespace

uint32_t completionsPerLane(const Options& options) {
  const auto slots = static_cast<uint64_t>(options.fabric.slots);
  return 2 * sendDepth(slots) + receiveDepth(slots);  // a queue pair rounds its depth up
}

VerbsLink::VerbsLink(Station& station, int peerRank, uint16_t index)
    : station_(station),
      peerRank_(peerRank),
      index_(index),
      slots_(static_cast<uint64_t>(station.options.fabric.slots)),
      staging_(station.outgoing.base() + index * station.linkBytes()),
      incoming_(station.incoming.base() + index * station.linkBytes()),
      messages_(slots_) {}

Result<void> VerbsLink::makePair(size_t lane) {
  Lane& mine = lanes_[lane];
  const WorkOwner owner{index_, static_cast<uint8_t>(lane), static_cast<uint16_t>(mine.generation % 1024)};
  Result<std::unique_ptr<QueuePair>> made =
      QueuePair::make(mine.rail, owner, sendDepth(slots_), receiveDepth(slots_));
  if (!made) {
    return made.error();
  }
  mine.pair = std::move(*made);
  return {};
}

void VerbsLink::markPending() {
  if (!pending_) {
    pending_ = true;
    station_.pending.push_back(this);
  }
}

// ---- outgoing ----

std::byte* VerbsLink::tryStage(size_t bytes) {
  if (bytes > station_.options.fabric.slotBytes) {
    station_.raise(station_.rank,
                   {pealInternalError, fmt::format("a message of {} bytes does not fit a slot of {}", bytes,
                                                   station_.options.fabric.slotBytes)});
    return nullptr;
  }
  return posted_ - released_ < slots_ ? slotOf(staging_, posted_) + sizeof(Header) : nullptr;
}

void VerbsLink::post(size_t bytes, const Digest& digest) {
  if (bytes > station_.options.fabric.slotBytes) {
    station_.raise(station_.rank,
                   {pealInternalError, fmt::format("a message of {} bytes does not fit a slot of {}", bytes,
                                                   station_.options.fabric.slotBytes)});
    return;
  }
  commit(bytes, digest, {});
}

bool VerbsLink::tryPostCarrying(size_t bytes, const Digest& digest, const Carried& carried) {
  if (tryStage(bytes) == nullptr) {
    return false;
  }
  if (carried.bytes > 0 && !station_.gpu.holds(carried.from, carried.bytes)) {
    station_.raise(station_.rank, {pealInternalError,
                                   fmt::format("{} bytes for rank {} do not lie in the GPU memory that the "
                                               "devices may send",
                                               carried.bytes, peerRank_)});
    return false;
  }
  commit(bytes, digest, {.carried = carried});
  return true;
}

std::optional<Region> VerbsLink::sendableRegion(const std::byte* data, size_t bytes) {
  if (!station_.options.references || bytes > station_.options.fabric.slotBytes) {
    return std::nullopt;
  }
  const std::optional<Region> region = findRegion(data, bytes);
  if (!region) {
    return std::nullopt;
  }
  station_.registrations.dropEnded();
  for (const std::unique_ptr<Device>& device : station_.devices) {
    if (!station_.registrations.find(*device, *region)) {
      return std::nullopt;
    }
  }
  return region;
}

bool VerbsLink::tryPostReference(const std::byte* data, size_t bytes, const Digest& digest) {
  if (posted_ - released_ >= slots_) {
    return false;
  }
  // Looked up once: another thread may deregister the buffer at any time.
  const std::optional<Region> region = sendableRegion(data, bytes);
  if (!region) {
    return false;
  }
  commit(bytes, digest, {.reference = data, .region = region->id});
  lastReference_ = posted_;
  return true;
}

void VerbsLink::commit(size_t bytes, const Digest& digest, const Outgoing& what) {
  const Header header{posted_, bytes, digest};
  std::memcpy(slotOf(staging_, posted_), &header, sizeof header);
  outgoing(posted_) = what;
  outgoing(posted_).bytes = bytes;
  outgoing(posted_).acknowledged = departed_;
  const uint64_t number = posted_++;
  if (departed_) {
    return;  // nobody reads it
  }
  ++station_.unacknowledged;
  // Behind what waits already, so that a peer sees messages about in order.
  if (queued_ > 0 || !transmit(number)) {
    outgoing(number).queued = true;
    ++queued_;
    markPending();
  }
}

// The lanes take turns; one that failed and has not worked since, only if there is no other.
// Messages and credits each have turns of their own: where they alternate, all messages would go over every
// second lane.
Lane* VerbsLink::chooseLane(size_t& turn, uint32_t requests) {
  Lane* lastChoice = nullptr;
  for (size_t tried = 0; tried < lanes_.size(); ++tried) {
    turn = turn + 1 < lanes_.size() ? turn + 1 : 0;
    Lane& lane = lanes_[turn];
    if (lane.state == LaneState::Up && lane.pair->hasRoom(requests)) {
      if (!lane.doubtful) {
        return &lane;
      }
      lastChoice = &lane;
    }
  }
  return lastChoice;
}

bool VerbsLink::transmit(uint64_t number) {
  Outgoing& message = outgoing(number);
  Lane* lane = chooseLane(messageTurn_, message.carried.bytes > 0 ? 2 : 1);
  if (lane == nullptr) {
    return false;
  }
  Device& device = *lane->rail.device;
  std::byte* const staged = slotOf(staging_, number);
  ibv_sge parts[2]{};
  parts[0].addr = reinterpret_cast<uint64_t>(staged);
  parts[0].length =
      static_cast<uint32_t>(sizeof(Header) + (message.reference == nullptr ? message.bytes : 0));
  parts[0].lkey = station_.outgoing.on(device).lkey();
  int count = 1;
  if (message.reference != nullptr && message.bytes > 0) {
    const std::optional<Region> region = findRegion(message.reference, message.bytes);
    const std::optional<uint32_t> key =
        region && region->id == message.region ? station_.registrations.find(device, *region) : std::nullopt;
    if (!key) {
      station_.raise(
          station_.rank,
          {pealInvalidUsage,
           fmt::format("a registered buffer was freed or deregistered while {} bytes of it were on "
                       "their way to rank {}: wait for the operation first",
                       message.bytes, peerRank_)});
      return false;
    }
    parts[1] = {reinterpret_cast<uint64_t>(message.reference), static_cast<uint32_t>(message.bytes), *key};
    count = 2;
  }
  ibv_send_wr request{};
  request.sg_list = parts;
  request.num_sge = count;
  request.opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
  request.imm_data = htonl(immediateOf(Kind::Data, number));
  request.wr.rdma.remote_addr = peerSlots_ + number % slots_ * station_.slotStride();
  request.wr.rdma.rkey = lane->peer.rkey;
  if (sizeof(Header) + message.bytes <= lane->pair->inlineBytes()) {
    request.send_flags = IBV_SEND_INLINE;
  }
  if (message.carried.bytes > 0 && !transmitCarried(*lane, message.carried)) {
    return false;
  }
  message.lane = indexOf(*lane);
  message.generation = lane->generation;
  // Always with a completion: settled() has to know that the peer's device has it.
  if (const int code = lane->pair->send(request, number, Signal::Yes); code != 0) {
    fail(*lane, fmt::format("ibv_post_send: {}", std::strerror(code)), /*refused=*/false);
    // What it carries is on its way over this lane: it is sent again only when that has come to an end, since
    // until then it could still land, in a slot that is another message's by then.
    return message.carried.bytes > 0;
  }
  return true;
}

// On the same queue pair as the message, and before it: so it is in its place when the message arrives.
bool VerbsLink::transmitCarried(Lane& lane, const Carried& carried) {
  if (!station_.gpu.holds(carried.from, carried.bytes)) {
    return false;  // this rank gave it up, after a fault
  }
  ibv_sge part{};
  part.addr = reinterpret_cast<uint64_t>(carried.from);
  part.length = static_cast<uint32_t>(carried.bytes);
  part.lkey = station_.gpu.keyToSend(*lane.rail.device);
  ibv_send_wr request{};
  request.sg_list = &part;
  request.num_sge = 1;
  request.opcode = IBV_WR_RDMA_WRITE;
  request.wr.rdma.remote_addr = carried.to;
  request.wr.rdma.rkey = lane.peerGpuKey;
  if (const int code = lane.pair->send(request, QueuePair::kNoTag, Signal::IfNeeded); code != 0) {
    fail(lane, fmt::format("ibv_post_send: {}", std::strerror(code)), /*refused=*/false);
    return false;
  }
  return true;
}

// A message without data: only its immediate.
void VerbsLink::sendShort(Lane& lane, Kind kind, uint64_t number, Signal signal) {
  ibv_send_wr request{};
  request.opcode = IBV_WR_SEND_WITH_IMM;
  request.imm_data = htonl(immediateOf(kind, number));
  if (const int code = lane.pair->send(request, QueuePair::kNoTag, signal); code != 0) {
    fail(lane, fmt::format("ibv_post_send: {}", std::strerror(code)), /*refused=*/false);
  }
}

bool VerbsLink::sendCredit(Lane& lane, Signal signal) {
  sendShort(lane, Kind::Credit, received_, signal);
  if (lane.state != LaneState::Up) {
    return false;
  }
  creditDue_ = false;
  return true;
}

// While all queue pairs are being rebuilt, for which both ranks have to poll, a note brings the credit: this
// rank may end its operation and compute for long.
void VerbsLink::sendDueCredit() {
  if (Lane* lane = chooseLane(creditTurn_); lane != nullptr) {
    sendCredit(*lane, Signal::IfNeeded);
  } else if (std::none_of(lanes_.begin(), lanes_.end(),
                          [](const Lane& one) { return one.state == LaneState::Up; })) {
    Note note;
    note.kind = NoteKind::Credit;
    note.released = received_;
    tell(note);
    creditDue_ = false;
  }
}

void VerbsLink::ping(Lane& lane) { sendShort(lane, Kind::Ping, 0, Signal::Yes); }

void VerbsLink::acknowledge(uint64_t number) {
  if (number >= released_ && number < posted_ && !outgoing(number).acknowledged) {
    outgoing(number).acknowledged = true;
    --station_.unacknowledged;
  }
}

// What the peer has released, its device had acknowledged, whether we saw that completion or not.
void VerbsLink::setReleased(uint64_t count) {
  for (; released_ < count; ++released_) {
    acknowledge(released_);
    Outgoing& message = outgoing(released_);
    if (message.queued) {
      message.queued = false;
      --queued_;
    }
  }
}

// Credits of several lanes, and notes, overtake each other: the highest count holds.
void VerbsLink::onCredit(int64_t more) {
  if (more > static_cast<int64_t>(posted_ - released_)) {
    malformed(fmt::format("it released {} messages of {}", released_ + static_cast<uint64_t>(more), posted_));
  } else if (more > 0) {
    setReleased(released_ + static_cast<uint64_t>(more));
  }
}

// ---- incoming ----

bool VerbsLink::malformed(const std::string& what) {
  station_.raise(peerRank_,
                 {pealRemoteError, fmt::format("rank {} received a malformed message of rank {}: {}",
                                               station_.rank, peerRank_, what)});
  return false;
}

void VerbsLink::onArrival(int64_t ahead) {
  if (ahead >= static_cast<int64_t>(slots_)) {
    malformed(fmt::format("number {} beyond the {} slots from {}", received_ + static_cast<uint64_t>(ahead),
                          slots_, received_));
  } else if (ahead >= 0) {
    arrived_ |= uint64_t{1} << ahead;
  }
  // Behind: it was released already.
}

bool VerbsLink::tryReceive(Arrival& arrival) {
  if (!shown_) {
    if ((arrived_ & 1) == 0) {
      return false;
    }
    // Copied once, then checked: the peer could still change it.
    Header header;
    const std::byte* const slot = slotOf(incoming_, received_);
    std::memcpy(&header, slot, sizeof header);
    if (header.number != received_ || header.bytes > station_.options.fabric.slotBytes) {
      return malformed(fmt::format("number {} with {} bytes, where number {} is due in a slot of {}",
                                   header.number, header.bytes, received_,
                                   station_.options.fabric.slotBytes));
    }
    arrival_ = Arrival{slot + sizeof(Header), static_cast<size_t>(header.bytes), header.digest};
    shown_ = true;
  }
  arrival = arrival_;
  return true;
}

void VerbsLink::release() {
  shown_ = false;
  arrived_ >>= 1;
  ++received_;
  if (departed_) {
    return;
  }
  creditDue_ = true;
  Lane* lane = chooseLane(creditTurn_);
  if (lane == nullptr || !sendCredit(*lane, Signal::IfNeeded)) {
    markPending();
  }
}

// ---- completions ----

void VerbsLink::onCompletion(const WorkOwner& owner, const ibv_wc& completion) {
  if (owner.lane >= lanes_.size()) {
    return;
  }
  Lane& lane = lanes_[owner.lane];
  if (lane.pair == nullptr || owner.generation != lane.generation % 1024) {
    return;  // of a queue pair that is no more
  }
  if (QueuePair::isReceive(completion.wr_id)) {
    onReceive(lane, completion);
  } else {
    onSent(lane, completion);
  }
}

void VerbsLink::onReceive(Lane& lane, const ibv_wc& completion) {
  lane.pair->receiveDone();
  if (completion.status != IBV_WC_SUCCESS) {
    fail(lane, describe(completion.status, completion.vendor_err), !mayPass(completion.status));
    return;
  }
  if (lane.state != LaneState::Draining) {
    lane.doubtful = lane.doubtful && lane.state != LaneState::Up;
    if (const int code = lane.pair->postReceive(); code != 0) {
      fail(lane, fmt::format("ibv_post_recv: {}", std::strerror(code)), /*refused=*/false);
    }
  }
  onImmediate(lane, ntohl(completion.imm_data));
}

void VerbsLink::onSent(Lane& lane, const ibv_wc& completion) {
  if (completion.status != IBV_WC_SUCCESS) {
    fail(lane, describe(completion.status, completion.vendor_err), !mayPass(completion.status));
    return;
  }
  const bool up = lane.state == LaneState::Up;
  lane.pair->acknowledge(completion.wr_id, [&](uint64_t number) {
    acknowledge(number);
    lane.attempts = up ? 0 : lane.attempts;
  });
  lane.pingAcknowledged = true;
  lane.doubtful = lane.doubtful && !up;
}

void VerbsLink::onImmediate(Lane& lane, uint32_t immediate) {
  switch (kindOf(immediate)) {
    case Kind::Data:
      if (lane.state == LaneState::Up && !lane.refused) {
        lane.attempts = 0;
      }
      onArrival(distance(immediate & kNumberMask, received_));
      return;
    case Kind::Credit:
      onCredit(distance(immediate & kNumberMask, released_));
      return;
    case Kind::Ping:
      lane.pingSeen = true;
      return;
  }
  malformed(fmt::format("immediate {:#x}", immediate));
}

bool VerbsLink::pump() {
  for (uint64_t number = released_; queued_ > 0 && number < posted_ && !departed_; ++number) {
    Outgoing& message = outgoing(number);
    if (!message.queued) {
      continue;
    }
    if (!transmit(number)) {
      break;
    }
    message.queued = false;
    --queued_;
  }
  if (creditDue_ && !departed_ && !station_.faults.first()) {
    sendDueCredit();
  }
  bool busy = false;
  for (Lane& lane : lanes_) {
    busy = advance(lane) || busy;
  }
  busy = busy || (!departed_ && !station_.faults.first() && (queued_ > 0 || creditDue_));
  pending_ = busy;
  return busy;
}

bool VerbsLink::settled() const { return departed_ || (queued_ == 0 && !creditDue_); }

bool VerbsLink::isOver() const { return departed_ && Clock::now() - departedAt_ > kLastArrivals; }

// Lanes that are not up are not waited for: rebuilding takes notes, which nobody hands over any more.
bool VerbsLink::flushed() {
  if (departed_ || station_.faults.first()) {
    return true;
  }
  bool anyUp = false;
  bool idle = true;
  for (Lane& lane : lanes_) {
    if (lane.state != LaneState::Up) {
      continue;
    }
    anyUp = true;
    if (!lane.pair->idle()) {
      idle = false;
      // Its completion is that of all before it.
      if (lane.pair->quiet() > 0 && lane.pair->hasRoom()) {
        sendCredit(lane, Signal::Yes);
      }
    }
  }
  return !anyUp || (idle && queued_ == 0 && !creditDue_);
}

}  // namespace peal::verbs
