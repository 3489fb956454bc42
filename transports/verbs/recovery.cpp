// A queue pair that failed is made anew, and what had not arrived over it is sent again, over any lane that
// is up. lane.h has the steps.
//
// Why no byte is wrong or comes twice: a rank states what has arrived only once its own old queue pair is
// destroyed, so nothing that the peer sent over it can arrive after the statement; the peer sends again only
// what it had sent over an older generation of that lane and the statement lacks. Until then neither side
// writes over the slots in question: the sender has no credit for them, as they are not released.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "lib/base/log.h"
#include "transports/verbs/errors.h"
#include "transports/verbs/link.h"

namespace peal::verbs {
namespace {

using std::chrono::milliseconds;

constexpr int kMostRefusals = 2;  // attempts after a failure that is not the wire's
// Failures that lie further apart have nothing to do with each other.
constexpr milliseconds kForgetAfter{60000};
// A device that does not give back what was posted to it.
constexpr milliseconds kDrainLimit{1000};

milliseconds pauseBefore(int attempt, const Options& options) {
  const int doublings = std::min(attempt - 1, 10);
  return milliseconds(
      attempt <= 1 ? 0 : std::min(options.firstPauseMs * (1 << doublings), options.longestPauseMs));
}

bool exhausted(const Lane& lane, const Options& options) {
  return lane.attempts >
         (lane.refused ? std::min(kMostRefusals, options.mostAttempts) : options.mostAttempts);
}

template <size_t N>
void copyText(char (&to)[N], const std::string& text) {
  const size_t length = std::min(text.size(), N - 1);
  std::memcpy(to, text.data(), length);
  to[length] = '\0';
}

std::string textOf(const char* text, size_t most) { return {text, strnlen(text, most)}; }

}  // namespace

std::string VerbsLink::nameOf(const Lane& lane) const {
  return fmt::format("rank {} on {} ({}) to rank {} on {} ({})", station_.rank, lane.rail.name(),
                     gidText(lane.rail.gid.gid), peerRank_, lane.peer.name, gidText(lane.peer.gid));
}

void VerbsLink::open() {
  for (Lane& lane : lanes_) {
    lane.state = LaneState::Up;
    lane.attempts = 0;
  }
}

void VerbsLink::tell(const Note& note) {
  station_.control->send(peerRank_, std::as_bytes(std::span(&note, 1)));
}

// A request failed. The first failure names the cause: what follows is flushed.
void VerbsLink::fail(Lane& lane, const std::string& reason, bool refused) {
  if (lane.state == LaneState::Connecting) {
    if (lane.reason.empty()) {
      lane.reason = reason;
    }
    return;
  }
  if (departed_ || (lane.state != LaneState::Up && lane.state != LaneState::Connected)) {
    return;
  }
  if (Clock::now() - lane.failedAt > kForgetAfter) {
    lane.attempts = 0;
  }
  lane.reason = reason;
  lane.refused = refused;
  lane.failedAt = Clock::now();
  ++lane.attempts;
  // Not yet a warning: so ends the last credit to a peer that has left, before its note of that is read.
  log(LogLevel::Info,
      fmt::format("{}: a queue pair failed (attempt {}): {}", nameOf(lane), lane.attempts, reason));
  drain(lane, lane.generation + 1, Clock::now() + pauseBefore(lane.attempts, station_.options));
}

void VerbsLink::drain(Lane& lane, uint32_t next, Clock::time_point retryAt) {
  if (lane.pair != nullptr) {
    lane.pair->fail();
  }
  lane.state = LaneState::Draining;
  creditDue_ = true;  // the last one may be lost
  lane.doubtful = true;
  lane.next = next;
  lane.peerReady = false;
  lane.drainUntil = Clock::now() + kDrainLimit;
  lane.retryAt = retryAt;
  markPending();
}

// A device that loses its own timer neither completes a request nor fails it (soft-RoCE does so now and then
// when its link goes down). What asked for no completion is asked for by a credit that does.
void VerbsLink::watch(Clock::time_point now, bool anew) {
  const milliseconds limit(station_.options.silenceLimitMs);
  for (Lane& lane : lanes_) {
    if (departed_ || station_.faults.first() || lane.state != LaneState::Up) {
      continue;
    }
    if (anew || lane.pair->idle() || lane.pair->ended() != lane.endedSends) {
      lane.endedSends = lane.pair->ended();
      lane.silentSince = now;
    } else if (now - lane.silentSince < limit) {
      continue;
    } else if (lane.pair->awaitsCompletion()) {
      fail(lane,
           fmt::format(
               "its device has neither completed nor failed a request for {} ms, longer than it sends again",
               std::chrono::duration_cast<milliseconds>(now - lane.silentSince).count()),
           /*refused=*/false);
    } else if (lane.pair->hasRoom()) {
      lane.silentSince = now;
      sendCredit(lane, Signal::Yes);
    }
  }
}

// False: the lane waits for nothing.
bool VerbsLink::advance(Lane& lane) {
  if (lane.state == LaneState::Draining && !departed_) {
    const Clock::time_point now = Clock::now();
    const bool drained =
        lane.pair == nullptr || lane.pair->receivesOutstanding() == 0 || now >= lane.drainUntil;
    if (drained && now >= lane.retryAt) {
      announce(lane);
    }
  }
  return !departed_ && lane.state != LaneState::Up && lane.state != LaneState::Dead;
}

void VerbsLink::announce(Lane& lane) {
  lane.pair.reset();
  lane.generation = lane.next;
  lane.state = LaneState::Announced;
  const bool last = exhausted(lane, station_.options);
  const bool peerGivesUp =
      lane.peerNote && lane.peerNote->generation == lane.generation && lane.peerNote->last != 0;
  Note note;
  if (!last && !peerGivesUp) {
    if (const Result<void> made = makePair(indexOf(lane)); made) {
      note.hasPair = 1;
      note.pairNumber = lane.pair->number();
      note.firstPacket = lane.pair->firstPacket();
    } else {
      lane.reason = made.error().message;
    }
  }
  note.kind = NoteKind::Rebuild;
  note.lane = static_cast<uint8_t>(indexOf(lane));
  note.last = last ? 1 : 0;
  note.generation = lane.generation;
  note.released = received_;
  note.arrived = arrived_;
  copyText(note.reason, lane.reason);
  creditDue_ = false;  // this note brings it
  tell(note);
  if (last) {
    lane.reason = fmt::format("{} ({} queue pairs failed one after the other)", lane.reason, lane.attempts);
  }
  if (lane.peerNote && lane.peerNote->generation == lane.generation) {
    meet(lane);
  } else if (last && std::all_of(lanes_.begin(), lanes_.end(), [&](const Lane& other) {
               return &other == &lane || other.state == LaneState::Dead;
             })) {
    bury(lane);  // with other lanes the peer's statement is still needed: it says what to send over them
  }
}

void VerbsLink::rise(Lane& lane) {
  lane.state = LaneState::Up;
  lane.silentSince = Clock::now();
  log(lane.attempts <= 1 ? LogLevel::Warn : LogLevel::Info,
      fmt::format("{}: a queue pair failed and was made anew (attempt {}): {}", nameOf(lane), lane.attempts,
                  lane.reason));
  // A lane that failed is the last choice until something has gone over it again: this does.
  ping(lane);
  markPending();
}

// Both sides have announced this generation.
void VerbsLink::meet(Lane& lane) {
  const Note peer = *lane.peerNote;
  lane.peerNote.reset();
  resendUnarrived(indexOf(lane), peer);
  if (peer.last != 0 || exhausted(lane, station_.options)) {
    if (peer.last != 0) {
      lane.reason = fmt::format("the peer gave up: {}", textOf(peer.reason, sizeof peer.reason));
    }
    bury(lane);
    return;
  }
  if (peer.hasPair == 0 || lane.pair == nullptr) {
    if (peer.hasPair == 0) {
      lane.reason =
          fmt::format("the peer could not make a queue pair: {}", textOf(peer.reason, sizeof peer.reason));
    }
    ++lane.attempts;
    drain(lane, lane.generation + 1, Clock::now() + pauseBefore(lane.attempts, station_.options));
    return;
  }
  lane.state = LaneState::Connected;
  if (const Result<void> connected =
          lane.pair->connect(lane.peer, peer.pairNumber, peer.firstPacket, station_.options);
      !connected) {
    fail(lane, connected.error().message, /*refused=*/false);
    return;
  }
  Note ready;
  ready.kind = NoteKind::Ready;
  ready.lane = static_cast<uint8_t>(indexOf(lane));
  ready.generation = lane.generation;
  tell(ready);
  if (lane.peerReady) {
    rise(lane);
  }
}

void VerbsLink::resendUnarrived(size_t lane, const Note& note) {
  if (note.released > posted_) {
    malformed(fmt::format("it released {} messages of {}", note.released, posted_));
    return;
  }
  setReleased(std::max(released_, note.released));
  for (uint64_t number = released_; number < posted_; ++number) {
    Outgoing& message = outgoing(number);
    const uint64_t bit = number - note.released;
    const bool arrived = bit < 64 && (note.arrived >> bit & 1) != 0;
    if (message.queued || message.lane != lane || message.generation >= lanes_[lane].generation || arrived) {
      if (arrived) {
        acknowledge(number);
      }
      continue;
    }
    message.queued = true;
    ++queued_;
    if (message.acknowledged) {  // its device had it, but the peer did not learn of it
      message.acknowledged = false;
      ++station_.unacknowledged;
    }
  }
  markPending();
}

// This lane is given up. The link goes on over the others, if there are any.
void VerbsLink::bury(Lane& lane) {
  lane.state = LaneState::Dead;
  lane.pair.reset();
  if (std::any_of(lanes_.begin(), lanes_.end(),
                  [](const Lane& other) { return other.state != LaneState::Dead; })) {
    log(LogLevel::Warn, fmt::format("{}: gives up this queue pair and goes on over the others: {}",
                                    nameOf(lane), lane.reason));
    return;
  }
  ibv_port_attr port{};
  const bool known =
      lane.rail.device->library().queryPort(lane.rail.device->context(), lane.rail.port, &port) == 0;
  station_.raise(
      peerRank_,
      {pealRemoteError,
       fmt::format("the verbs link of {} is lost: {}. The port here is {}. Check the peer, the cable and "
                   "the switch (ibv_devinfo, dmesg); leave a bad device out with PEAL_IB_DEVICES.",
                   nameOf(lane), lane.reason,
                   !known                          ? "gone"
                   : port.state == IBV_PORT_ACTIVE ? "ACTIVE"
                                                   : "not ACTIVE")});
}

// ---- what the peer says ----

void VerbsLink::onNote(const Note& note) {
  if (note.kind == NoteKind::Bye) {
    onBye();
    return;
  }
  if (note.kind == NoteKind::Credit && !departed_) {
    onCredit(static_cast<int64_t>(note.released - released_));
    return;
  }
  if (note.lane >= lanes_.size()) {
    malformed(fmt::format("a note about queue pair {} of {}", note.lane, lanes_.size()));
    return;
  }
  Lane& lane = lanes_[note.lane];
  if (lane.state == LaneState::Dead || departed_) {
    return;
  }
  if (note.kind == NoteKind::Rebuild) {
    onRebuild(lane, note);
  } else if (note.kind == NoteKind::Ready) {
    onReady(lane, note);
  } else {
    malformed(fmt::format("a note of kind {}", static_cast<int>(note.kind)));
  }
}

void VerbsLink::onRebuild(Lane& lane, const Note& note) {
  const uint32_t current = lane.state == LaneState::Draining ? lane.next : lane.generation;
  if (note.generation < current) {
    return;  // overtaken: the peer will see our newer one
  }
  if (note.generation == current) {
    if (lane.state == LaneState::Announced) {
      lane.peerNote = note;
      meet(lane);
    } else if (lane.state == LaneState::Draining) {
      lane.peerNote = note;
    }
    return;
  }
  // The peer is ahead: follow at once.
  lane.peerNote = note;
  if (lane.state == LaneState::Up || lane.state == LaneState::Connected) {
    lane.reason = fmt::format("the peer reports: {}", textOf(note.reason, sizeof note.reason));
    lane.refused = false;
    ++lane.attempts;
    log(LogLevel::Info, fmt::format("{}: a queue pair is made anew: {}", nameOf(lane), lane.reason));
  }
  drain(lane, note.generation, Clock::now());
}

void VerbsLink::onReady(Lane& lane, const Note& note) {
  if (note.generation != lane.generation) {
    return;
  }
  if (lane.state == LaneState::Connected) {
    rise(lane);
  } else if (lane.state == LaneState::Announced) {
    lane.peerReady = true;
  }
}

void VerbsLink::onBye() {
  for (uint64_t number = released_; number < posted_; ++number) {
    acknowledge(number);
    outgoing(number).queued = false;
  }
  queued_ = 0;
  departedAt_ = departed_ ? departedAt_ : Clock::now();
  departed_ = true;
}

// Not after a fault: then nobody leaves in good order.
void VerbsLink::sendBye() {
  if (!departed_ && !station_.faults.first()) {
    Note bye;
    bye.kind = NoteKind::Bye;
    tell(bye);
  }
}

}  // namespace peal::verbs
