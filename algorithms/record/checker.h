// Proves a recorded algorithm against what its collective must do and what cost.h promises.
//
// Called by the tests, for every algorithm, number of ranks and shape. A fault names the check, the rank,
// the step and the circumstances; docs/ALGORITHMS.md says how to read it.
#pragma once
#include <span>
#include <vector>

#include "algorithms/record/player.h"

namespace peal::record {

// How many of the possible plays. Full: buffers apart and in place, bytes and references, all schedules, two
// starved ranks, the fewest slots, one more and plenty. Sampled: two plays with the fewest slots, which
// between them cover both kinds of buffers and of sends; the seed decides how they pair and the schedules.
enum class Plays : uint8_t { Sampled, Full };

std::vector<PlayOptions> plays(const AlgorithmTraits& promised, int ranks, Plays plays, uint64_t seed);

// Runs every check; returns at most one fault of each play, besides those of the counts. `run` is the
// algorithm's text: recordedAlgorithm(algorithm), or a mutant of it.
std::vector<Fault> check(AlgorithmId algorithm, const Operation& operation, RecordedAlgorithm run,
                         std::span<const PlayOptions> plays);

}  // namespace peal::record
