// A lane: one queue pair of a link, and where it stands when that has to be rebuilt. Plain data of the link.
//
// Rebuilding (recovery.cpp), the same on both sides, whoever notices first:
//   Up        -> Draining   a request failed, or the peer announces a newer generation. The queue pair goes
//                           into the error state and everything posted to it comes back.
//   Draining  -> Announced  it is destroyed: nothing can arrive over it any more. Only now it is certain what
//                           has arrived, and a Rebuild note says so, with the new queue pair's number.
//   Announced -> Connected  the peer's note of the same generation is here: what of mine was sent over an
//                           older generation of this lane and has not arrived is sent again, over any lane
//                           that is up; the new queue pair is connected; a Ready note says so.
//   Connected -> Up         the peer's Ready note.
// Either side may fail on the way: it drains and announces the next generation, and the other follows.
#pragma once
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "lib/base/clock.h"
#include "transports/verbs/queue_pair.h"
#include "transports/verbs/wire.h"

namespace peal::verbs {

enum class LaneState { Connecting, Up, Draining, Announced, Connected, Dead };

struct Lane {
  Rail rail;                // of this rank
  PortAddress peer;         // the port of the peer
  size_t peerPort = 0;      // ... in the peer's list
  uint32_t peerGpuKey = 0;  // of the memory of the peer's GPU, on that port's device
  std::unique_ptr<QueuePair> pair;
  LaneState state = LaneState::Connecting;
  uint32_t generation = 0;  // of `pair`, or the one announced
  uint32_t next = 0;        // Draining: the generation to come

  int attempts = 0;       // to make it anew, since a message with data last went over it
  bool doubtful = false;  // nothing at all has gone over it since it failed
  bool refused = false;   // the last failure is one that a new queue pair is unlikely to heal
  std::string reason;     // of the last failure
  Clock::time_point failedAt{};
  Clock::time_point drainUntil{};
  Clock::time_point retryAt{};
  std::optional<Note> peerNote;  // of a generation not yet connected
  bool peerReady = false;

  uint32_t endedSends = 0;          // of `pair`, when it was last looked at
  Clock::time_point silentSince{};  // no more have ended since

  bool pingAcknowledged = false;  // Connecting
  bool pingSeen = false;
};

}  // namespace peal::verbs
