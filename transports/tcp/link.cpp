#include "transports/tcp/link.h"

#include <fmt/format.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

namespace peal::tcp {
namespace {

constexpr size_t kPiecesMost = 16;  // of one call of the system

static_assert(kHeaderBytes % kCacheLineBytes == 0);  // wire.h says why

}  // namespace

Result<std::unique_ptr<TcpLink>> TcpLink::make(Station& station, PeerSocket peer) {
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
  return std::unique_ptr<TcpLink>(new TcpLink(station, std::move(peer), std::move(*out), std::move(*in)));
}

TcpLink::TcpLink(Station& station, PeerSocket peer, AlignedMemory outMemory, AlignedMemory inMemory)
    : station_(station),
      peer_(std::move(peer)),
      slots_(static_cast<uint64_t>(station.options.slots)),
      slotBytes_(station.options.slotBytes),
      outStride_(outStrideOf(station.options)),
      outMemory_(std::move(outMemory)),
      outgoing_(slots_),
      inMemory_(std::move(inMemory)),
      incoming_(slots_) {
  for (uint64_t slot = slots_; slot-- > 0;) {
    freeSlots_.push_back(inMemory_.get() + slot * slotBytes_);
  }
}

// What was sent still goes out, unless there is something that nobody has read; so that is read before.
TcpLink::~TcpLink() {
  if (!dead_) {
    pump(Extent::All);
  }
  if (!dead_) {
    shutdown(descriptor(), SHUT_WR);  // for the peer, although a forked child may still have a copy
  }
}

bool TcpLink::malformed(const std::string& what) {
  station_.faults.raise(
      peerRank(),
      {pealRemoteError, fmt::format("rank {} got a malformed message from rank {} over TCP: {}. Its "
                                    "memory is damaged, or it runs another version of peal.",
                                    station_.rank, peerRank(), what)});
  end();
  return false;
}

void TcpLink::lose(const std::string& why) {
  if (!left_) {
    station_.faults.raise(peerRank(),
                          {pealRemoteError, fmt::format("rank {} lost rank {}: the connection over TCP {}",
                                                        station_.rank, peerRank(), why)});
  }
  end();
}

// What was posted and not sent is dropped: there is nobody to send it to.
void TcpLink::end() {
  dead_ = true;
  written_ = posted_;
  isControlDue_ = false;
  noteWaiting();
  // A forked child may still have a copy: for the peer, and for whoever sleeps, it ends all the same.
  epoll_ctl(station_.epoll.get(), EPOLL_CTL_DEL, descriptor(), nullptr);
  shutdown(descriptor(), SHUT_RDWR);
  peer_.socket.reset();
}

// ---- outgoing ----

bool TcpLink::hasSlot() {
  const auto free = [this] { return posted_ - peerReleased_ < slots_ && (left_ || !dead_); };
  if (!free()) {
    pump(Extent::All);
  }
  return free();
}

std::byte* TcpLink::tryStage(size_t bytes) {
  if (bytes > slotBytes_) {
    station_.faults.raise(
        station_.rank, {pealInternalError,
                        fmt::format("a message of {} bytes does not fit a slot of {}", bytes, slotBytes_)});
    return nullptr;
  }
  return hasSlot() ? slotMemory(posted_) + kCacheLineBytes : nullptr;
}

void TcpLink::writeHeader(std::byte* to, Kind kind, size_t bytes, const Digest& digest) {
  Header header;
  header.kind = kind;
  header.bytes = static_cast<uint32_t>(bytes);
  header.released = received_;
  header.digest = digest;
  std::memcpy(to, &header, sizeof header);
}

void TcpLink::post(size_t bytes, const Digest& digest) {
  submit(slotMemory(posted_) + kCacheLineBytes, bytes, false, digest);
}

bool TcpLink::canReference(const std::byte* /*data*/, size_t bytes) { return bytes <= slotBytes_; }

bool TcpLink::tryPostReference(const std::byte* data, size_t bytes, const Digest& digest) {
  if (bytes > slotBytes_ || !hasSlot()) {
    return false;
  }
  submit(data, bytes, true, digest);
  return true;
}

// The header lies right before staged data, so that both are one piece.
void TcpLink::submit(const std::byte* data, size_t bytes, bool isReference, const Digest& digest) {
  std::byte* header = slotMemory(posted_) + kCacheLineBytes - kHeaderBytes;
  writeHeader(header, Kind::Data, bytes, digest);
  creditSent_ = received_;
  outgoing(posted_) = {header, data, bytes, isReference};
  ++posted_;
  if (dead_) {
    written_ = posted_;
  }
  noteWaiting();
  if (posted_ - written_ >= static_cast<uint64_t>(station_.burst)) {
    flush();
  }
}

// Between two messages; a farewell only after the last one.
bool TcpLink::isControlNext() const {
  const bool mayBegin = sent_ == 0 && (controlKind_ == Kind::Credit || written_ == posted_);
  return isControlDue_ && (controlSent_ > 0 || mayBegin);
}

// The next bytes for the system: the rest of a message that was begun, then others.
size_t TcpLink::gather(std::span<iovec> pieces) {
  if (controlKind_ == Kind::Credit && controlSent_ == 0 && creditSent_ == received_) {
    isControlDue_ = false;  // a message takes it along
  }
  if (isControlNext()) {
    if (controlSent_ == 0) {
      writeHeader(control_.data(), controlKind_, 0, Digest{});
    }
    pieces[0] = {control_.data() + controlSent_, kHeaderBytes - controlSent_};
    return 1;
  }
  size_t count = 0;
  size_t skip = sent_;
  const auto add = [&](const std::byte* data, size_t bytes) {
    const size_t skipped = std::min(skip, bytes);
    skip -= skipped;
    if (bytes > skipped) {
      pieces[count++] = {const_cast<std::byte*>(data) + skipped, bytes - skipped};
    }
  };
  for (uint64_t number = written_; number < posted_ && count + 2 <= pieces.size(); ++number) {
    const Outgoing& message = outgoing(number);
    if (message.header + kHeaderBytes == message.data) {
      add(message.header, kHeaderBytes + message.bytes);
    } else {
      add(message.header, kHeaderBytes);
      add(message.data, message.bytes);
    }
  }
  return count;
}

void TcpLink::account(size_t bytes) {
  if (isControlNext()) {
    if (controlSent_ == 0 && bytes > 0) {
      creditSent_ = received_;  // not before: the system may have refused it
    }
    controlSent_ += bytes;
    if (controlSent_ == kHeaderBytes) {
      controlSent_ = 0;
      isControlDue_ = std::exchange(leavesNext_, false);
      controlKind_ = isControlDue_ ? Kind::Leaving : controlKind_;
      noteCredit();  // of what was released while it was on its way
    }
    return;
  }
  sent_ += bytes;
  while (written_ < posted_ && sent_ >= kHeaderBytes + outgoing(written_).bytes) {
    sent_ -= kHeaderBytes + outgoing(written_).bytes;
    ++written_;
  }
}

void TcpLink::flush() {
  std::array<iovec, kPiecesMost> pieces;
  while (hasUnsent()) {
    msghdr message{};
    message.msg_iov = pieces.data();
    message.msg_iovlen = gather(pieces);
    const int flags = MSG_NOSIGNAL | MSG_DONTWAIT;
    const ssize_t went = message.msg_iovlen == 1
                             ? send(descriptor(), pieces[0].iov_base, pieces[0].iov_len, flags)
                             : sendmsg(descriptor(), &message, flags);
    if (went < 0) {
      if (!wouldBlock()) {
        lose(fmt::format("failed: {}", std::strerror(errno)));
      }
      break;
    }
    account(static_cast<size_t>(went));
  }
  noteWaiting();
}

void TcpLink::noteWaiting() {
  if (hasUnsent() != isWaiting_) {
    isWaiting_ = !isWaiting_;
    station_.waiting += isWaiting_ ? 1 : -1;
  }
}

// A credit that has begun goes before the farewell.
void TcpLink::sayControl(Kind kind) {
  if (dead_) {
    return;
  }
  if (controlSent_ > 0) {
    leavesNext_ = leavesNext_ || kind == Kind::Leaving;
    return;
  }
  controlKind_ = std::max(controlKind_, kind);
  isControlDue_ = true;
  noteWaiting();
}

// What the system does not take now goes with the fabric's next looks: a peer that has stopped reading is
// waited for no longer than those last.
void TcpLink::sayLeaving() {
  sayControl(Kind::Leaving);
  flush();
}

bool TcpLink::hasUnsentReference() const {
  uint64_t number = written_;
  while (number < posted_ && !outgoing_[number % slots_].isReference) {
    ++number;
  }
  return number < posted_;
}

bool TcpLink::drained() {
  if (hasUnsentReference()) {
    pump(Extent::All);
  }
  return !hasUnsentReference();
}

// A reference also counts as released when the system has copied it: nobody else reads it.
bool TcpLink::released(uint64_t count) {
  const auto isReleased = [this, count] {
    uint64_t number = peerReleased_;
    while (number < count && number < written_ && outgoing(number).isReference) {
      ++number;
    }
    return number >= count;
  };
  if (!isReleased()) {
    pump(Extent::All);
  }
  return isReleased();
}

}  // namespace peal::tcp
