#include "lib/zero/checkpoint/vote.h"

#include <fmt/format.h>

#include <algorithm>

namespace peal::zero::checkpoint {
namespace {

struct Ballot {
  uint64_t code;  // 0, or the failure's pealResult_t
  VoteValues values;
  std::array<char, 456> sentence;  // ends with 0; cut off if it is longer
};
constexpr size_t kBallotWords = sizeof(Ballot) / sizeof(uint64_t);
static_assert(sizeof(Ballot) == kBallotWords * sizeof(uint64_t));

}  // namespace

Result<std::vector<VoteValues>> vote(Collectives& collectives, const Result<void>& own,
                                     const VoteValues& values) {
  std::vector<Ballot> ballots(static_cast<size_t>(collectives.ranks()));
  Ballot& mine = ballots[static_cast<size_t>(collectives.rank())];
  mine.values = values;
  if (!own) {
    const std::string& sentence = own.error().message;
    mine.code = static_cast<uint64_t>(own.error().code);
    std::copy_n(sentence.data(), std::min(sentence.size(), mine.sentence.size() - 1), mine.sentence.data());
  }
  const std::vector<size_t> counts(ballots.size(), kBallotWords);
  const Collectives::Lending lending(collectives);
  PEAL_TRY(collectives.allGather(Among::All, pealZeroInspect, &mine, ballots.data(), counts, pealUint64,
                                 Data::Host));
  PEAL_TRY(collectives.finish());
  if (!own) {
    return own.error();
  }
  std::vector<VoteValues> all;
  for (size_t rank = 0; rank < ballots.size(); ++rank) {
    if (ballots[rank].code != 0) {
      return Error{pealRemoteError, fmt::format("rank {}: {}", rank, ballots[rank].sentence.data())};
    }
    all.push_back(ballots[rank].values);
  }
  return all;
}

}  // namespace peal::zero::checkpoint
