#include "transports/ucx/link.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

namespace peal::ucx {
namespace {

// Below this a message is copied out of UCX's memory even where it may be kept: that costs less.
constexpr size_t kKeepLeastBytes = 4096;

// What a message costs of a socket's memory beside its bytes, generously: UCX's and peal's headers, and the
// system's own for each.
constexpr size_t kMessageOverheadBytes = 2048;

// Half of the slots, but never more than what keeps the peer's link from looking crowded to it.
uint64_t creditStepFor(const FabricOptions& options, const Card& peer) {
  const uint64_t fits = peer.socketBytes / (options.slotBytes + kMessageOverheadBytes);
  return std::max<uint64_t>(1, std::min(static_cast<uint64_t>(options.slots) / 2, fits / 2));
}

}  // namespace

void Station::raise(int peerRank, Error error) { faults.raise(peerRank, std::move(error)); }

void Station::progress() {
  table.workerProgress(worker);
  sendCredits();
}

bool Station::isSettled() {
  sendCredits();
  return inFlight == 0 && creditDue.empty() && crowded == 0;
}

void Station::sendCredits() {
  if (!creditDue.empty()) {
    std::erase_if(creditDue, [](UcxLink* link) { return link->sendCredit(); });
  }
}

Result<std::unique_ptr<UcxLink>> UcxLink::make(Station& station, int peerRank, const Card& peer) {
  const FabricOptions& options = station.options;
  const auto slots = static_cast<uint64_t>(options.slots);
  Result<AlignedMemory> out = allocateSlots(slots, outStrideOf(options));
  if (!out) {
    return out.error();
  }
  Result<AlignedMemory> in = allocateSlots(slots, options.slotBytes);
  if (!in) {
    return in.error();
  }
  return std::unique_ptr<UcxLink>(new UcxLink(station, peerRank, peer, std::move(*out), std::move(*in)));
}

UcxLink::UcxLink(Station& station, int peerRank, const Card& peer, AlignedMemory outMemory,
                 AlignedMemory inMemory)
    : station_(station),
      peerRank_(peerRank),
      peerToken_(peer.token),
      slots_(static_cast<uint64_t>(station.options.slots)),
      slotBytes_(station.options.slotBytes),
      outStride_(outStrideOf(station.options)),
      outMemory_(std::move(outMemory)),
      sends_(slots_, Send{this}),
      control_{this},
      inMemory_(std::move(inMemory)),
      incoming_(slots_),
      creditStep_(creditStepFor(station.options, peer)) {}

void UcxLink::giveBack() {
  for (Incoming& message : incoming_) {
    if (message.kept != nullptr) {
      station_.table.releaseData(station_.worker, message.kept);
    }
    message = {};
  }
}

bool UcxLink::malformed(const std::string& what) {
  station_.raise(peerRank_, {pealRemoteError,
                             fmt::format("rank {} got a malformed message from rank {} over UCX: {}. Its "
                                         "memory is damaged, or it runs another version of peal.",
                                         station_.rank, peerRank_, what)});
  return false;
}

// ---- outgoing ----

bool UcxLink::hasSlot() {
  const auto free = [this] {
    return posted_ - peerReleased_ < slots_ && !sendOf(posted_).inFlight && (left || !dead);
  };
  if (free()) {
    return true;
  }
  station_.progress();
  return free();
}

std::byte* UcxLink::tryStage(size_t bytes) {
  if (bytes > slotBytes_) {
    station_.raise(station_.rank,
                   {pealInternalError,
                    fmt::format("a message of {} bytes does not fit a slot of {}", bytes, slotBytes_)});
    return nullptr;
  }
  return hasSlot() ? slotMemory(posted_) + kHeaderBytes : nullptr;
}

void UcxLink::writeHeader(std::byte* to, Kind kind, const Digest& digest) {
  Header header;
  header.token = peerToken_;
  header.kind = kind;
  header.srcRank = station_.rank;
  header.sequence = posted_;
  header.released = received_;
  header.digest = digest;
  std::memcpy(to, &header, sizeof header);
  creditSent_ = received_;
}

void UcxLink::post(size_t bytes, const Digest& digest) {
  std::byte* message = slotMemory(posted_);
  writeHeader(message, Kind::Data, digest);
  Send& send = countPost(bytes);
  send.isReference = false;
  submit(send, nullptr, message, kHeaderBytes + bytes);
}

UcxLink::Send& UcxLink::countPost(size_t bytes) {
  Send& send = sendOf(posted_);
  send.bytes = bytes + kMessageOverheadBytes;
  unreleasedBytes_ += send.bytes;
  noteCrowd();
  ++posted_;
  return send;
}

void UcxLink::noteCrowd() {
  const bool isCrowded = unreleasedBytes_ > station_.socketBytes;
  if (isCrowded != isCrowded_) {
    isCrowded_ = isCrowded;
    station_.crowded += isCrowded ? 1 : -1;
  }
}

bool UcxLink::canReference(const std::byte* /*data*/, size_t bytes) { return bytes <= slotBytes_; }

bool UcxLink::tryPostReference(const std::byte* data, size_t bytes, const Digest& digest) {
  if (bytes > slotBytes_ || !hasSlot()) {
    return false;
  }
  std::byte* header = slotMemory(posted_);
  writeHeader(header, Kind::Data, digest);
  Send& send = countPost(bytes);
  send.isReference = true;
  ++openReferences_;
  if (bytes > 0) {
    submit(send, header, data, bytes);
  } else {
    submit(send, nullptr, header, kHeaderBytes);
  }
  return true;
}

void UcxLink::submit(Send& send, const std::byte* header, const std::byte* data, size_t bytes) {
  ucp_request_param_t param{};
  param.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_FLAGS |
                       UCP_OP_ATTR_FIELD_MEMORY_TYPE;
  param.cb.send = &UcxLink::onSent;
  param.user_data = &send;
  param.flags = UCP_AM_SEND_FLAG_EAGER;
  param.memory_type = UCS_MEMORY_TYPE_HOST;
  send.inFlight = true;
  ++station_.inFlight;
  void* request = dead ? UCS_STATUS_PTR(UCS_ERR_CANCELED)
                       : station_.table.send(endpoint, kMessageId, header,
                                             header != nullptr ? kHeaderBytes : 0, data, bytes, &param);
  // UCX calls back only for what it did not finish, or refuse, at once.
  if (request == nullptr || UCS_PTR_IS_ERR(request)) {
    onSent(nullptr, request == nullptr ? UCS_OK : UCS_PTR_STATUS(request), &send);
  }
}

void UcxLink::onSent(void* request, ucs_status_t status, void* sendPointer) {
  Send& send = *static_cast<Send*>(sendPointer);
  UcxLink& link = *send.link;
  send.inFlight = false;
  --link.station_.inFlight;
  link.openReferences_ -= send.isReference ? 1 : 0;
  if (request != nullptr) {
    link.station_.table.requestFree(request);
  }
  if (status != UCS_OK) {
    link.lose(status);
  }
}

void UcxLink::lose(ucs_status_t status) {
  if (!left && !dead) {
    station_.raise(peerRank_, {pealRemoteError,
                               fmt::format("rank {} lost rank {}: the connection over UCX ended: {}",
                                           station_.rank, peerRank_, describe(station_.table, status))});
  }
  dead = true;
}

bool UcxLink::drained() {
  if (openReferences_ > 0) {
    station_.progress();
  }
  return openReferences_ == 0;
}

// A reference also counts as released when UCX has let go of its memory: nobody else reads it.
bool UcxLink::released(uint64_t count) {
  const auto isReleased = [this, count] {
    uint64_t number = peerReleased_;
    while (number < count && sendOf(number).isReference && !sendOf(number).inFlight) {
      ++number;
    }
    return number >= count;
  };
  if (isReleased()) {
    return true;
  }
  station_.progress();
  return isReleased();
}

bool UcxLink::trySendControl(Kind kind) {
  if (control_.inFlight) {
    return false;
  }
  writeHeader(controlHeader_, kind, Digest{});
  submit(control_, nullptr, controlHeader_, kHeaderBytes);
  return true;
}

// ---- incoming ----

bool UcxLink::tryReceive(Arrival& arrival) {
  Incoming& message = incoming_[received_ % slots_];
  if (!message.arrived) {
    station_.progress();
    if (!message.arrived) {
      return false;
    }
  }
  arrival = {message.data, message.bytes, message.digest};
  return true;
}

void UcxLink::release() {
  Incoming& message = incoming_[received_ % slots_];
  if (message.kept != nullptr) {
    station_.table.releaseData(station_.worker, message.kept);
  }
  message = {};
  ++received_;
  noteCredit();
  station_.sendCredits();
}

// The peer is told at once when it has no credit left or waits for the last ones; before that, in
// larger steps, unless a message of ours takes the count along.
void UcxLink::noteCredit() {
  const bool owes = received_ != creditSent_;
  const bool peerIsOut = arrived_ - creditSent_ >= slots_;
  const bool isMany = received_ - creditSent_ >= creditStep_;
  if (owes && (peerIsOut || isMany || left) && !isCreditDue_ && !dead) {
    isCreditDue_ = true;
    station_.creditDue.push_back(this);
  }
}

bool UcxLink::sendCredit() {
  if (received_ == creditSent_ || dead) {
    isCreditDue_ = false;  // a message took it along, or nobody is left to tell
    return true;
  }
  isCreditDue_ = !trySendControl(Kind::Credit);
  return !isCreditDue_;
}

bool UcxLink::noteReleased(uint64_t released) {
  if (released > posted_) {
    return malformed(fmt::format("it released {} messages of {}", released, posted_));
  }
  for (; peerReleased_ < released; ++peerReleased_) {  // an older count may come later: nothing then
    unreleasedBytes_ -= sendOf(peerReleased_).bytes;
  }
  noteCrowd();
  return true;
}

ucs_status_t UcxLink::onMessage(const Header& header, std::byte* data, size_t bytes, void* kept) {
  if (!noteReleased(header.released)) {
    return UCS_OK;
  }
  switch (header.kind) {
    case Kind::Data:
      return onData(header, data, bytes, kept);
    case Kind::Credit:
      return UCS_OK;
    case Kind::Hello:
      gotHello = true;
      return UCS_OK;
    case Kind::Ready:
      gotReady = true;
      return UCS_OK;
    case Kind::Leaving:
      left = true;
      noteCredit();
      return UCS_OK;
  }
  malformed(fmt::format("kind {}", static_cast<uint32_t>(header.kind)));
  return UCS_OK;
}

ucs_status_t UcxLink::onData(const Header& header, std::byte* data, size_t bytes, void* kept) {
  Incoming& message = incoming_[header.sequence % slots_];
  if (header.sequence < received_ || header.sequence - received_ >= slots_ || message.arrived) {
    malformed(fmt::format("number {} while numbers {} to {} may come", header.sequence, received_,
                          received_ + slots_ - 1));
    return UCS_OK;
  }
  if (bytes > slotBytes_) {
    malformed(fmt::format("{} bytes in a slot of {}", bytes, slotBytes_));
    return UCS_OK;
  }
  ++arrived_;
  const bool keeps = kept != nullptr && bytes >= kKeepLeastBytes;
  if (!keeps) {
    std::byte* slot = inMemory_.get() + (header.sequence % slots_) * slotBytes_;
    std::copy_n(data, bytes, slot);
    data = slot;
  }
  message = {data, bytes, header.digest, true, keeps ? kept : nullptr};
  noteCredit();
  return keeps ? UCS_INPROGRESS : UCS_OK;
}

}  // namespace peal::ucx
