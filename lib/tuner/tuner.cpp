#include "lib/tuner/tuner.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "lib/tuner/families.h"
#include "lib/tuner/predict.h"

namespace peal {
namespace {

// One-shot reads N−1 whole arrays after one meeting of the ranks, two-shot 2(N−1)/N of one after two: the
// first wins while a meeting costs more than the extra bytes.
constexpr size_t kOneShotMostBytes = 65536;

// Messages that need no slot are whole, or in an all-reduce so long that what is summed is still in a cache
// when the peers take it.
constexpr size_t kWholeBytes = size_t{1} << 40;
constexpr size_t kTwoShotChunkBytes = size_t{512} << 10;
// Between these sizes, of the whole array. Beyond, slots win where memory has small pages: the system copies
// page by page with stores that leave nothing else in the cache. Below, its call costs more than a slot, and
// short all-reduces meet too often to call it.
constexpr size_t kDirectLeastBytes = size_t{64} << 10;
constexpr size_t kGatherDirectMostBytes = size_t{8} << 20;
constexpr size_t kReduceDirectMostBytes = size_t{2} << 20;
constexpr size_t kTwoShotDirectLeastBytes = size_t{512} << 10;

// Running further ahead than this hides no more: the network then holds several messages of every rank.
constexpr int kMostAhead = 3;
// Chunks are tried from a slot down to this.
constexpr size_t kLeastChunkBytes = 8192;

constexpr std::array<Algorithm, kAlgorithmFamilies> kFamilies{
    Algorithm::Hierarchical, Algorithm::Tree, Algorithm::OneShot,
    Algorithm::TwoShot,      Algorithm::Ring, Algorithm::HierarchicalRing};

bool scatters(int kind) { return kind == pealStatReduceScatter || kind == pealStatAllGather; }

bool isLegal(Algorithm algorithm, const TunerQuestion& question) {
  switch (algorithm) {
    case Algorithm::OneShot:
    case Algorithm::TwoShot:
      return true;
    case Algorithm::HierarchicalRing:
      if (question.onDevice) {
        return false;  // the kernels have no such text
      }
      break;
    case Algorithm::Ring:
    case Algorithm::Hierarchical:
    case Algorithm::Tree:
      break;
  }
  // These add in an order of their own: not the rank order that was asked for.
  return !(question.deterministic && reduces(question.kind));
}

// Only all-reduce has two shots, a barrier has no ring, reduce-scatter and all-gather have no tree; and on
// one node hierarchical algorithms are the direct ones. With every rank on a node of its own they are, too,
// but that they run ahead in single messages where bursts are better; and a ring between nodes is the ring.
// The direct form stands for the missing one.
Algorithm standIn(Algorithm algorithm, const TunerQuestion& question) {
  const int kind = question.kind;
  const bool allReduce = kind == pealStatAllReduce;
  switch (algorithm) {
    case Algorithm::Hierarchical:
      if (kind == pealStatBarrier) {
        return severalNodes(question) ? Algorithm::Tree : Algorithm::OneShot;
      }
      if (severalNodes(question) &&
          (question.burst == 1 || kind == pealStatBroadcast || kind == pealStatReduce)) {
        return algorithm;
      }
      return allReduce ? Algorithm::TwoShot : Algorithm::OneShot;
    case Algorithm::Tree:
      return scatters(kind) ? Algorithm::OneShot : algorithm;
    case Algorithm::TwoShot:
      return allReduce ? algorithm : Algorithm::OneShot;
    case Algorithm::Ring:
      return kind == pealStatBarrier ? Algorithm::OneShot : algorithm;
    case Algorithm::HierarchicalRing:
      if (!severalNodes(question) || (!allReduce && !scatters(kind))) {
        return standIn(Algorithm::Hierarchical, question);
      }
      return question.nodes->nodes == question.size ? Algorithm::Ring : algorithm;
    case Algorithm::OneShot:
      break;
  }
  return algorithm;
}

// As far ahead as the slots allow (cost.h: traitsOf).
int aheadOf(Algorithm algorithm, const TunerQuestion& question) {
  if (algorithm == Algorithm::TwoShot && question.size == 2 && question.burst == 1) {
    // With one peer, rounds that run ahead cost nothing, and the ranks meet less often.
    return stagesAhead(algorithm, question.slots);
  }
  if (algorithm != Algorithm::Hierarchical) {
    return 0;
  }
  const int spare = question.slots - 1;
  return std::clamp(question.kind == pealStatAllReduce ? spare / 2 : spare, 0, kMostAhead);
}

}  // namespace

int stagesAhead(Algorithm algorithm, int slots) {
  const bool staged = algorithm == Algorithm::Hierarchical || algorithm == Algorithm::TwoShot;
  return staged ? std::clamp((slots - 1) / 2, 0, kMostAhead) : 0;
}

namespace {

// The longest message of a direct algorithm that needs no slots; 0: it keeps them. Broadcast and reduce do:
// there one rank has little else to do than filling them while the other empties them.
size_t directBytesOf(Algorithm algorithm, const TunerQuestion& question) {
  const size_t bytes = question.bytes;
  if (!question.reachesAll || bytes < kDirectLeastBytes) {
    return 0;
  }
  switch (question.kind) {
    case pealStatAllGather:
      return algorithm == Algorithm::OneShot && bytes <= kGatherDirectMostBytes ? kWholeBytes : 0;
    case pealStatReduceScatter:
      return algorithm == Algorithm::OneShot && bytes <= kReduceDirectMostBytes ? kWholeBytes : 0;
    case pealStatAllReduce:
      // Between two ranks slots are as quick, and quicker where cores are far apart.
      return algorithm == Algorithm::TwoShot && question.size > 2 && bytes > kTwoShotDirectLeastBytes &&
                     bytes <= kReduceDirectMostBytes
                 ? kTwoShotChunkBytes
                 : 0;
    default:
      return 0;
  }
}

size_t chunkBytesOf(Algorithm algorithm, const TunerQuestion& question) {
  // Of direct algorithms a rank's next message waits for none of its last ones.
  const bool direct = algorithm == Algorithm::OneShot || algorithm == Algorithm::TwoShot;
  return std::max(question.slotBytes * static_cast<size_t>(direct ? question.burst : 1),
                  directBytesOf(algorithm, question));
}

// With fewer processors than ranks each meeting costs turns of the scheduler, so one-shot all-reduces win up
// to this size of the array: of 32 KiB 78 us on 8 ranks and 2 processors, in two shots 142. With more ranks
// it shrinks, since everybody reads everything. And private memory is better summed from slots, which are in
// the cache of whoever runs next: 1 MiB on 4 ranks 750 us, copied by the system 1072.
constexpr size_t kCrowdedOneShotMostBytes = 32768;
constexpr int kCrowdedMeasuredRanks = 8;

// Of the array.
size_t oneShotMostBytes(const TunerQuestion& question) {
  const auto ranks = static_cast<size_t>(question.size);
  const size_t most = question.crowded
                          ? kCrowdedOneShotMostBytes * std::min<size_t>(ranks, kCrowdedMeasuredRanks)
                          : kOneShotMostBytes;
  return most / ranks;
}

Algorithm byThreshold(const TunerQuestion& question) {
  return question.kind == pealStatAllReduce && question.bytes > oneShotMostBytes(question)
             ? Algorithm::TwoShot
             : Algorithm::OneShot;
}

}  // namespace

// ---- families ---------------------------------------------------------------------------------------------

bool reduces(int kind) {
  return kind == pealStatAllReduce || kind == pealStatReduceScatter || kind == pealStatReduce;
}

bool severalNodes(const TunerQuestion& question) {
  return question.nodes != nullptr && question.nodes->nodes > 1;
}

std::vector<Algorithm> legalFamilies(const TunerQuestion& question) {
  std::vector<Algorithm> families;
  for (const Algorithm family : kFamilies) {
    if (isLegal(family, question) && standIn(family, question) == family) {
      families.push_back(family);
    }
  }
  return families;
}

Choice choiceOf(Algorithm family, const TunerQuestion& question) {
  Choice choice;
  choice.algorithm = family;
  choice.chunkBytes = chunkBytesOf(family, question);
  choice.ahead = aheadOf(family, question);
  return choice;
}

// Without several nodes every rank's links are inside its one node.
Forecast::Forecast(Algorithm family, const TunerQuestion& question)
    : table_(groupingTableSize(static_cast<size_t>(question.size))),
      flatTree_(family == Algorithm::Tree && !severalNodes(question)),
      nodes_(flatTree_ ? Grouping::apart(question.size)
             : severalNodes(question)
                 ? *question.nodes
                 : groupRanks(std::vector<int>(static_cast<size_t>(question.size)), table_)),
      algorithm_(algorithmOf(question.kind, family, severalNodes(question))),
      prediction_(algorithm_, nodes_, question.bytes) {}

double Forecast::us(const Choice& choice, LinkTable links, double sumUsPerByte) const {
  if (flatTree_) {
    links.between = links.inside;
  }
  return prediction_.us(choice, links, sumUsPerByte);
}

const char* Forecast::text() const { return traitsOf(algorithm_, nodes_).name; }

// ---- choosing ---------------------------------------------------------------------------------------------

const char* algorithmName(Algorithm algorithm) { return kAlgorithmNames[static_cast<size_t>(algorithm)]; }

bool isAlgorithmName(std::string_view name) {
  return name == "auto" || std::any_of(kFamilies.begin(), kFamilies.end(),
                                       [&](Algorithm family) { return name == algorithmName(family); });
}

std::string algorithmNames() {
  std::string names = "auto";
  for (const Algorithm family : kFamilies) {
    names += fmt::format(", {}", algorithmName(family));
  }
  return names;
}

std::vector<Candidate> candidates(const TunerQuestion& question) {
  std::vector<Candidate> found;
  for (const Algorithm family : legalFamilies(question)) {
    const Forecast forecast(family, question);
    Candidate best;
    best.text = forecast.text();
    best.choice = choiceOf(family, question);
    const size_t least = std::min(question.slotBytes, kLeastChunkBytes);
    const size_t most = best.choice.chunkBytes;
    for (size_t chunk = most; chunk >= least && chunk > 0; chunk /= 2) {
      Choice choice = best.choice;
      choice.chunkBytes = chunk;
      const double us = forecast.us(choice, *question.links);
      if (chunk == most || us < best.us) {
        best.us = us;
        best.choice = choice;
      }
    }
    found.push_back(best);
  }
  std::stable_sort(found.begin(), found.end(),
                   [](const Candidate& a, const Candidate& b) { return a.us < b.us; });
  return found;
}

std::string reasonFor(const TunerQuestion& question, const Choice& choice,
                      const std::vector<Candidate>& all) {
  if (!severalNodes(question)) {
    return fmt::format(
        "on one node the tuner goes by size: {} up to {} bytes of an all-reduce{}, two_shot above; "
        "predictions "
        "are not asked",
        algorithmName(Algorithm::OneShot), oneShotMostBytes(question),
        question.crowded ? " of more ranks than there are processors" : "");
  }
  if (all.size() < 2) {
    return fmt::format("{} is the only legal algorithm", algorithmName(choice.algorithm));
  }
  return fmt::format("{} is predicted to be {:.2f} times as fast as the next, {}",
                     algorithmName(all[0].choice.algorithm), all[1].us / std::max(all[0].us, 1e-9),
                     algorithmName(all[1].choice.algorithm));
}

Result<Choice> choose(const TunerQuestion& question) {
  if (question.forced == "auto") {
    if (severalNodes(question) && question.links != nullptr) {
      return candidates(question).front().choice;
    }
    return choiceOf(byThreshold(question), question);
  }
  std::string legal;
  for (const Algorithm algorithm : kFamilies) {
    if (!isLegal(algorithm, question)) {
      continue;
    }
    if (question.forced == algorithmName(algorithm)) {
      return choiceOf(standIn(algorithm, question), question);
    }
    legal += fmt::format("{}{}", legal.empty() ? "" : ", ", algorithmName(algorithm));
  }
  const char* const why = question.forced == algorithmName(Algorithm::HierarchicalRing) && question.onDevice
                              ? " on GPUs"
                          : question.deterministic ? " with the deterministic option"
                                                   : "";
  return Error{
      pealInvalidUsage,
      fmt::format(
          "PEAL_ALGO={}, or pealCommForceAlgorithm of it, is not legal for this operation{}; legal are: {}. "
          "To let the tuner choose, unset PEAL_ALGO, or force \"auto\".",
          question.forced, why, legal)};
}

}  // namespace peal
