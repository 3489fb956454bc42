// How ranks agree on what each did by itself: one all-gather of a ballot per rank. A rank that failed still
// votes, so its failure becomes one of all ranks, with its sentence, and nobody waits for it.
#pragma once
#include <array>
#include <vector>

#include "lib/zero/collectives.h"

namespace peal::zero::checkpoint {

inline constexpr size_t kVoteValues = 6;
using VoteValues = std::array<uint64_t, kVoteValues>;

// Collective. All ranks' values, by rank, if `own` is no error on any rank. Else an error on every rank: its
// own on one that failed, pealRemoteError with the first failed rank's sentence on the others.
Result<std::vector<VoteValues>> vote(Collectives& collectives, const Result<void>& own,
                                     const VoteValues& values);

}  // namespace peal::zero::checkpoint
