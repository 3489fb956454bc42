// The part that all drivers share: it takes cases and batches from bench/peers/run over a socket, times them
// the same way for every contender, verifies, and answers. A driver is a Peer and a main() that makes it.
//
// Rank 0 reads a command per line and answers with a line; every rank obeys:
//   case ID COLLECTIVE TYPE BYTES   ok SECONDS-PER-CALL | absent REASON | wrong ELEMENTS
//   batch ID CALLS [realtime|fresh] batch SECONDS-PER-CALL SWITCHES PROBE-NS-BEFORE PROBE-NS-AFTER
//   end ID                          end WRONG-ELEMENTS
//   quit
// The time of a batch is the mean over its calls on the rank that took longest. In a fresh one that includes
// writing each call's input, as a program does that computes it. The end of the socket is quit.
#pragma once
#include <functional>
#include <memory>
#include <string>

#include "bench/peers/case.h"
#include "bench/peers/control.h"

namespace peers {

// One call of a case.
struct Call {
  std::function<void()> run;  // none: this contender has no such call, for this reason
  std::string absence;
  // It works in the receive buffer only. Its input is copied there before verified calls, not before timed
  // ones, which run on zeros: the contender is not charged for the copy.
  bool isInPlace = false;
};

class Peer {
 public:
  virtual ~Peer() = default;
  // Memory that is good for this contender. The buffers of a case are allocated on all ranks, in the same
  // order.
  virtual void* allocate(size_t bytes) { return allocatePrivate(bytes); }
  virtual void release(void* memory, size_t bytes) { releasePrivate(memory, bytes); }
  // On all ranks in the same order. `send` and `recv` outlive the call.
  virtual Call prepare(const Case& what, void* send, void* recv) = 0;
};

// Until the coordinator says quit. Returns the program's exit code.
int serve(Peer& peer, Ranks& ranks, const char* socketPath);

}  // namespace peers
