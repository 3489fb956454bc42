// The incoming half of a link: what is read from the connection, and where it goes.
#include <fmt/format.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "transports/tcp/link.h"

namespace peal::tcp {
namespace {

constexpr int kReadsMost = 64;  // of one connection before others get a turn

}  // namespace

void TcpLink::pump(Extent extent) {
  pumped_ = true;
  if (isWaiting_) {
    flush();
  }
  parse(extent);
  const auto isEnough = [&] { return extent == Extent::NextMessage && arrived_ > received_; };
  for (int reads = 0; !dead_ && !isEnough() && reads < kReadsMost && receive(extent); ++reads) {
  }
  if (isControlDue_) {
    flush();  // credits for what has come
  }
}

// One read, into the data that are on their way and on into front_. Whether there may be more.
bool TcpLink::receive(Extent extent) {
  std::array<iovec, 2> pieces;
  size_t count = 0, missing = 0;
  if (isFilling_) {
    const Incoming& message = incoming_[arrived_ % slots_];
    missing = message.bytes - filled_;
    pieces[count++] = {message.data + filled_, missing};
  }
  // Behind long data probably come more, which then need not be copied: of those only the header.
  const size_t front = (isLong_ ? kHeaderBytes : front_.size()) - frontEnd_;
  pieces[count++] = {front_.data() + frontEnd_, front};
  const size_t room = missing + front;
  msghdr message{};
  message.msg_iov = pieces.data();
  message.msg_iovlen = count;
  const ssize_t got = count == 1 ? recv(descriptor(), pieces[0].iov_base, pieces[0].iov_len, MSG_DONTWAIT)
                                 : recvmsg(descriptor(), &message, MSG_DONTWAIT);
  if (got <= 0) {
    if (got == 0 || !wouldBlock()) {
      lose(got == 0 ? "ended" : fmt::format("failed: {}", std::strerror(errno)));
    }
    return false;
  }
  const size_t bytes = static_cast<size_t>(got);
  filled_ += std::min(bytes, missing);
  frontEnd_ += bytes - std::min(bytes, missing);
  parse(extent);
  return bytes == room;
}

// A message that need not be looked at yet may be expected somewhere by then.
void TcpLink::parse(Extent extent) {
  while (!dead_) {
    const size_t left = frontEnd_ - frontBegin_;
    if (isFilling_) {
      const Incoming& message = incoming_[arrived_ % slots_];
      const size_t bytes = std::min(left, message.bytes - filled_);
      std::copy_n(front_.data() + frontBegin_, bytes, message.data + filled_);
      filled_ += bytes;
      frontBegin_ += bytes;
      if (filled_ < message.bytes) {
        frontBegin_ = frontEnd_ = 0;
        return;
      }
      isFilling_ = false;
      ++arrived_;
      noteCredit();
      continue;
    }
    if (left < kHeaderBytes || (extent == Extent::NextMessage && arrived_ > received_)) {
      std::memmove(front_.data(), front_.data() + frontBegin_, left);
      frontBegin_ = 0;
      frontEnd_ = left;
      return;
    }
    Header header;
    std::memcpy(&header, front_.data() + frontBegin_, sizeof header);
    frontBegin_ += sizeof header;
    if (!takeHeader(header)) {
      return;
    }
  }
}

bool TcpLink::takeHeader(const Header& header) {
  if (header.released > posted_) {
    return malformed(fmt::format("it released {} messages of {}", header.released, posted_));
  }
  // A count is as old as its message, which a message of credits may have overtaken at the sender.
  peerReleased_ = std::max(peerReleased_, header.released);
  switch (header.kind) {
    case Kind::Data:
      return beginData(header);
    case Kind::Credit:
      return true;
    case Kind::Leaving:
      left_ = true;
      noteCredit();
      return true;
  }
  return malformed(fmt::format("kind {}", static_cast<uint32_t>(header.kind)));
}

bool TcpLink::beginData(const Header& header) {
  if (header.bytes > slotBytes_) {
    return malformed(fmt::format("{} bytes in a slot of {}", header.bytes, slotBytes_));
  }
  if (arrived_ - received_ >= slots_) {
    return malformed(
        fmt::format("message {} before message {} was released, with {} slots", arrived_, received_, slots_));
  }
  const bool isExpected =
      expected_ != nullptr && expectedNumber_ == arrived_ && expectedBytes_ == header.bytes;
  std::byte* slot = nullptr;
  if (!isExpected) {
    slot = freeSlots_.back();  // there are as many as messages may be unreleased
    freeSlots_.pop_back();
  }
  incoming_[arrived_ % slots_] = {isExpected ? expected_ : slot, slot, header.bytes, header.digest};
  isFilling_ = true;
  isLong_ = header.bytes > kFrontBytes;
  filled_ = 0;
  return true;
}

void TcpLink::expect(std::byte* memory, size_t bytes) {
  expected_ = memory;
  expectedBytes_ = bytes;
  expectedNumber_ = received_;
}

bool TcpLink::usesCallersMemory() const {
  return hasUnsentReference() || (isFilling_ && expected_ != nullptr);
}

// What is half there could go nowhere else: the link ends.
void TcpLink::withdraw() {
  if (usesCallersMemory() && !dead_) {
    end();
  }
  expected_ = nullptr;
}

bool TcpLink::tryReceive(Arrival& arrival) {
  if (isWaiting_) {
    flush();
  }
  if (arrived_ == received_) {
    // Whoever waits polls and looks by turns: one read for both.
    if (!pumped_) {
      pump(Extent::NextMessage);
    }
    pumped_ = false;
    if (arrived_ == received_) {
      return false;
    }
  }
  const Incoming& message = incoming_[received_ % slots_];
  arrival = {message.data, message.bytes, message.digest};
  return true;
}

void TcpLink::release() {
  if (std::byte* slot = incoming_[received_ % slots_].slot; slot != nullptr) {
    freeSlots_.push_back(slot);
  }
  ++received_;
  expected_ = nullptr;
  noteCredit();
}

// How many messages the peer has sent, as far as has been read: those behind the next one stand in front_ and
// are not looked at yet.
uint64_t TcpLink::seen() const {
  uint64_t count = arrived_;
  size_t at = frontBegin_;
  if (isFilling_) {
    const Incoming& message = incoming_[arrived_ % slots_];
    at += message.bytes - filled_;
    ++count;
  }
  while (at + kHeaderBytes <= frontEnd_) {
    Header header;
    std::memcpy(&header, front_.data() + at, sizeof header);
    at += kHeaderBytes;
    if (header.kind == Kind::Data) {
      at += std::min<size_t>(header.bytes, slotBytes_);  // more is a fault that parse() finds
      ++count;
    }
  }
  return count;
}

// The peer is told at once when it has no credit left or waits for the last ones; before that in larger
// steps, unless a message of ours takes the count along.
void TcpLink::noteCredit() {
  const bool owes = received_ != creditSent_;
  const bool peerIsOut = arrived_ - creditSent_ >= slots_ || (owes && seen() - creditSent_ >= slots_);
  const bool isMany = received_ - creditSent_ >= std::max<uint64_t>(1, slots_ / 2);
  if (owes && (peerIsOut || isMany || left_) && !isControlDue_) {
    sayControl(Kind::Credit);
  }
}

}  // namespace peal::tcp
