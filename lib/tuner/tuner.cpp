#include "lib/tuner/tuner.h"

#include <fmt/format.h>

#include <array>

namespace peal {
namespace {

// One-shot reads N−1 whole arrays after one meeting of the ranks, two-shot 2(N−1)/N of one after two: the
// first wins while a meeting costs more than the extra bytes.
constexpr size_t kOneShotMostBytes = 32768;

bool reduces(int kind) {
  return kind == pealStatAllReduce || kind == pealStatReduceScatter || kind == pealStatReduce;
}

bool isLegal(Algorithm algorithm, const TunerQuestion& question) {
  switch (algorithm) {
    case Algorithm::Ring:
      // A ring adds in ring order, starting behind the owner: not the rank order that was asked for.
      return !(question.deterministic && reduces(question.kind));
    case Algorithm::OneShot:
    case Algorithm::TwoShot:
      return true;
  }
  return false;
}

}  // namespace

const char* algorithmName(Algorithm algorithm) {
  constexpr std::array<const char*, 3> kNames{"ring", "one_shot", "two_shot"};
  return kNames[static_cast<size_t>(algorithm)];
}

Result<Choice> choose(const TunerQuestion& question) {
  Choice choice;
  choice.chunkBytes = question.slotBytes;
  if (question.forced == "auto") {
    const size_t most = (question.oneShotMostBytes != 0 ? question.oneShotMostBytes : kOneShotMostBytes) /
                        static_cast<size_t>(question.size);
    const bool large = question.kind == pealStatAllReduce && question.bytes > most;
    choice.algorithm = large ? Algorithm::TwoShot : Algorithm::OneShot;
    return choice;
  }
  std::string legal;
  for (const Algorithm algorithm : {Algorithm::Ring, Algorithm::OneShot, Algorithm::TwoShot}) {
    if (!isLegal(algorithm, question)) {
      continue;
    }
    if (question.forced == algorithmName(algorithm)) {
      // Only all-reduce has two shots, and a barrier has no ring: the direct form stands for the missing one.
      const bool missing = question.kind == pealStatBarrier ||
                           (algorithm == Algorithm::TwoShot && question.kind != pealStatAllReduce);
      choice.algorithm = missing ? Algorithm::OneShot : algorithm;
      return choice;
    }
    legal += fmt::format("{}{}", legal.empty() ? "" : ", ", algorithmName(algorithm));
  }
  return Error{
      pealInvalidUsage,
      fmt::format("PEAL_ALGO={} is not legal for this operation{}; legal are: {}. Unset PEAL_ALGO to let "
                  "the tuner choose.",
                  question.forced, question.deterministic ? " with the deterministic option" : "", legal)};
}

}  // namespace peal
