#include "lib/tuner/tuner.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

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
// Up to these sizes, of the whole array. Beyond, slots win where memory has small pages: the system copies
// page by page with stores that leave nothing else in the cache. And short all-reduces meet too often to call
// it.
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

bool reduces(int kind) {
  return kind == pealStatAllReduce || kind == pealStatReduceScatter || kind == pealStatReduce;
}

bool scatters(int kind) { return kind == pealStatReduceScatter || kind == pealStatAllGather; }

bool severalNodes(const TunerQuestion& question) {
  return question.nodes != nullptr && question.nodes->nodes > 1;
}

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
  if (!question.reachesAll) {
    return 0;
  }
  const size_t bytes = question.bytes;
  switch (question.kind) {
    case pealStatAllGather:
      return algorithm == Algorithm::OneShot && bytes <= kGatherDirectMostBytes ? kWholeBytes : 0;
    case pealStatReduceScatter:
      return algorithm == Algorithm::OneShot && bytes <= kReduceDirectMostBytes ? kWholeBytes : 0;
    case pealStatAllReduce:
      return algorithm == Algorithm::TwoShot && bytes > kTwoShotDirectLeastBytes &&
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

Choice choiceOf(Algorithm algorithm, const TunerQuestion& question) {
  Choice choice;
  choice.algorithm = algorithm;
  choice.chunkBytes = chunkBytesOf(algorithm, question);
  choice.ahead = aheadOf(algorithm, question);
  return choice;
}

Algorithm byThreshold(const TunerQuestion& question) {
  const size_t most = (question.oneShotMostBytes != 0 ? question.oneShotMostBytes : kOneShotMostBytes) /
                      static_cast<size_t>(question.size);
  return question.kind == pealStatAllReduce && question.bytes > most ? Algorithm::TwoShot
                                                                     : Algorithm::OneShot;
}

}  // namespace

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
  // Without several nodes every rank's links are inside its one node.
  std::vector<int> table(groupingTableSize(static_cast<size_t>(question.size)));
  const Grouping one = groupRanks(std::vector<int>(static_cast<size_t>(question.size), 0), table);
  const Grouping& nodes = severalNodes(question) ? *question.nodes : one;
  std::vector<Candidate> found;
  for (const Algorithm family : kFamilies) {
    if (!isLegal(family, question) || standIn(family, question) != family) {
      continue;
    }
    const AlgorithmId id = algorithmOf(question.kind, family, severalNodes(question));
    const bool flatTree = family == Algorithm::Tree && !severalNodes(question);
    Candidate best;
    best.text = traitsOf(id, nodes).name;
    best.choice = choiceOf(family, question);
    LinkTable links = *question.links;
    if (flatTree) {
      links.between = links.inside;  // every rank speaks for itself
    }
    const Grouping apart = Grouping::apart(question.size);
    const Prediction prediction(id, flatTree ? apart : nodes, question.bytes);
    const size_t least = std::min(question.slotBytes, kLeastChunkBytes);
    const size_t most = best.choice.chunkBytes;
    for (size_t chunk = most; chunk >= least && chunk > 0; chunk /= 2) {
      Choice choice = best.choice;
      choice.chunkBytes = chunk;
      const double us = prediction.us(choice, links);
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
        "on one node the tuner goes by size: {} up to {} bytes of an all-reduce, two_shot above; predictions "
        "are not asked",
        algorithmName(Algorithm::OneShot),
        (question.oneShotMostBytes != 0 ? question.oneShotMostBytes : kOneShotMostBytes) /
            static_cast<size_t>(question.size));
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
