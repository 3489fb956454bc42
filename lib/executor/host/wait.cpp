#include "lib/executor/host/wait.h"

#include <fmt/format.h>
#include <sched.h>

#include <utility>

namespace peal {
namespace {

// How often a wait that does not sleep looks at the peers' health, which costs a system call.
constexpr int64_t kHealthEveryUs = 1000;
// The longest sleep: bounds how late a dead peer or a missed wake-up is noticed.
constexpr int64_t kLongestSleepUs = 20000;
// Yields before sleeping. A yield is cheap when the peer is about to run on this very core, and a thief of
// its time when it is computing: so only briefly.
constexpr int64_t kYieldUs = 60;
constexpr int kSpinsPerClockRead = 32;
// Ranks that share a processor: what the others of it send is there after a turn or two of theirs.
constexpr int kYieldsBeforeClock = 4;
// Waits in a row that the first yield ended, so the peer runs on this rank's processor although there is one
// for each: others use them, or the system has not moved it yet, which takes tens of milliseconds. To spin
// then only keeps it from answering.
constexpr int kMeetingsByYield = 3;

int64_t elapsedUs(Clock::time_point since) {
  return std::chrono::duration_cast<std::chrono::microseconds>(Clock::now() - since).count();
}

}  // namespace

void Waiter::fail(Error error, int culpritRank) {
  if (!fault_) {
    fault_ = Fault{std::move(error), culpritRank};
  }
}

bool Waiter::slow(int peerRank, ReadyCheck ready) {
  // What comes within the time of a few messages needs no clock.
  if (!context_.oversubscribed && context_.spinUs > 0) {
    for (int i = 0; i < kSpinsPerClockRead; ++i) {
      cpuRelax();
      poll();
      if (ready()) {
        return true;
      }
    }
  }
  const bool takesTurns = context_.oversubscribed || context_.metByYield >= kMeetingsByYield;
  for (int i = 0; takesTurns && i < kYieldsBeforeClock; ++i) {
    sched_yield();
    poll();
    if (ready()) {
      return true;
    }
  }
  context_.metByYield = takesTurns ? 0 : context_.metByYield;
  const auto start = Clock::now();
  const Deadline deadline = Deadline::afterMs(context_.timeoutMs);
  const int64_t spinUs = context_.oversubscribed ? 0 : context_.spinUs;
  int yields = 0;
  int64_t healthDueUs = kHealthEveryUs;
  for (;;) {
    const int64_t waitedUs = elapsedUs(start);
    if (waitedUs < spinUs) {
      for (int i = 0; i < kSpinsPerClockRead; ++i) {
        cpuRelax();
        poll();
        if (ready()) {
          return true;
        }
      }
    } else if (waitedUs < spinUs + kYieldUs) {
      sched_yield();
      ++yields;
    } else {
      const uint32_t token = context_.endpoint->prepareSleep();
      if (ready()) {
        context_.endpoint->cancelSleep();
        return true;
      }
      if (context_.abort->load(std::memory_order_acquire)) {  // pairs with the store in Communicator::abort
        context_.endpoint->cancelSleep();
      } else {
        context_.endpoint->sleep(token, kLongestSleepUs);
      }
    }
    poll();
    if (ready()) {
      context_.metByYield = yields == 1 ? context_.metByYield + 1 : 0;
      return true;
    }
    if (context_.abort->load(std::memory_order_acquire) || context_.endpoint->faulted() ||
        waitedUs >= healthDueUs) {
      healthDueUs = waitedUs + kHealthEveryUs;
      if (!healthy(peerRank)) {
        // What arrived before the peer left or died still counts. Asked without the fault, which a check
        // may look at itself.
        std::optional<Fault> found = std::exchange(fault_, std::nullopt);
        poll();
        if (!context_.abort->load(std::memory_order_acquire) && ready() && !fault_) {
          return true;
        }
        if (!fault_) {
          fault_ = std::move(found);
        }
        return false;
      }
    }
    if (deadline.passed()) {
      fail({pealTimeout,
            fmt::format("{}: {} did not finish within {} ms: {}. If the ranks are only slow, raise "
                        "PEAL_TIMEOUT_MS or pealConfig_t::timeoutMs.",
                        context_.name, describe(digest_), context_.timeoutMs, missingRanks(peerRank))},
           peerRank);
      return false;
    }
  }
}

bool Waiter::healthy(int peerRank) {
  if (context_.abort->load(std::memory_order_acquire)) {
    fail({pealRemoteError,
          fmt::format("{}: {} was aborted by pealCommAbort on this rank.", context_.name, describe(digest_))},
         context_.rank);
    return false;
  }
  if (Result<void> health = context_.endpoint->progress(peerRank); !health) {
    fail({health.error().code,
          fmt::format("{}: {} failed: {}", context_.name, describe(digest_), health.error().message)},
         context_.endpoint->culpritRank());
    return false;
  }
  return agreed(peerRank);
}

// Ranks that disagree on a root may exchange no message that shows it: each waits for another. So a wait also
// looks at which call its peers are in.
bool Waiter::agreed(int peerRank) {
  if (digest_.collective == pealStatSend || digest_.collective == pealStatRecv) {
    if (peerRank >= 0 && peerRank != context_.rank) {
      context_.endpoint->peerState(peerRank);  // asks for it, so that the sentence of a deadline has it
    }
    return true;  // numbered by pair, and a rank may be in several
  }
  for (int rank = 0; rank < context_.size; ++rank) {
    if (rank == context_.rank) {
      continue;
    }
    const PeerState state = context_.endpoint->peerState(rank);
    const bool pairwise = state.digest.collective == pealStatSend || state.digest.collective == pealStatRecv;
    if (!state.known || pairwise || state.digest.sequence != digest_.sequence || state.digest == digest_) {
      continue;
    }
    fail({pealInvalidUsage,
          fmt::format(
              "{}: the ranks disagree on a call: {}. Every rank must make the same calls in the same order.",
              context_.name, disagreement(digest_, context_.rank, state.digest, rank))},
         rank);
    return false;
  }
  return true;
}

std::string Waiter::missingRanks(int peerRank) const {
  std::string text;
  for (int rank = 0; rank < context_.size; ++rank) {
    if (rank == context_.rank) {
      continue;
    }
    const PeerState state = context_.endpoint->peerState(rank);
    // The sequence counts collectives, so a rank that is further on is not missing. Of a point-to-point
    // operation only the peer itself can be.
    const bool pairwise = digest_.collective == pealStatSend || digest_.collective == pealStatRecv;
    const bool arrived =
        pairwise ? rank != peerRank : state.known && state.digest.sequence >= digest_.sequence;
    if (arrived) {
      continue;
    }
    const std::string last = !state.known ? "has done nothing yet"
                                          : fmt::format("{} {}", state.inside ? "is inside" : "last finished",
                                                        describe(state.digest));
    text += fmt::format("{}rank {} has not arrived (it {})", text.empty() ? "" : ", ", rank, last);
    if (digest_.collective == pealStatSend && state.known && state.inside &&
        state.digest.collective == pealStatSend) {
      text +=
          ". Two ranks that send to each other before they receive wait for each other: put both calls of "
          "each into one group (pealGroupStart, pealGroupEnd)";
    }
  }
  if (!text.empty()) {
    return text;
  }
  return peerRank < 0 ? std::string("all ranks have arrived, and one of them does not take what was sent")
                      : fmt::format("all ranks have arrived, and rank {} does not go on", peerRank);
}

}  // namespace peal
