// The order in which rounds and their stages run: one loop for executors and the recorder.
//
// An algorithm over nodes falls into stages. Between two stages of a round messages cross the network; so
// that a rank does not wait for them idly, it first does earlier stages of later rounds: stage k of round t
// runs in pass t + k * ahead, in each pass the newest round first. With ahead 0 rounds follow each other
// whole. A flat algorithm has one stage.
//
//   3 rounds of 2 stages, ahead 1:   A0 | A1 B0 | A2 B1 | B2
#pragma once
#include <cstddef>

#include "algorithms/platform.h"

namespace peal {

// run(stage, round)
template <class Run>
PEAL_HD void runStages(size_t rounds, int stages, int ahead, Run&& run) {
  const size_t lag = static_cast<size_t>(ahead);
  const size_t passes = rounds + static_cast<size_t>(stages - 1) * lag;
  for (size_t pass = 0; pass < passes; ++pass) {
    for (int stage = 0; stage < stages; ++stage) {
      const size_t behind = static_cast<size_t>(stage) * lag;
      if (pass >= behind && pass - behind < rounds) {
        run(stage, pass - behind);
      }
    }
  }
}

}  // namespace peal
