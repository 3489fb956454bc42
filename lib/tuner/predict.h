// How long an algorithm takes on links of known cost: closed formulas over algorithms/cost.h.
//
// It is a model: it ranks algorithms, and bench/tuner_error.py says how far it is off. Called by the tuner
// and by explanations.
#pragma once
#include "algorithms/choice.h"
#include "algorithms/cost.h"
#include "lib/tuner/links.h"

namespace peal {

// The text that a family runs for a collective (pealStat...) on these nodes; what lib/executor/selection.h
// does. Families that have none for it are answered by the direct one.
AlgorithmId algorithmOf(int kind, Algorithm family, bool severalNodes);

// What a rank reads to add it up, in its cache: measured at 24 to 30 GB/s (docs/BENCH.md). Counted where a
// rank adds more than its share, which all others do in the time that their bytes take on the wire.
constexpr double kSumUsPerByte = 1.0 / 30000;

// One algorithm on one array (bytes in all, in even blocks), for choices of chunk and ahead. Making it takes
// time with the square of the ranks.
class Prediction {
 public:
  // nodes must outlive it.
  Prediction(AlgorithmId algorithm, const Grouping& nodes, size_t bytes);
  double us(const Choice& choice, const LinkTable& links, double sumUsPerByte = kSumUsPerByte) const;
  size_t blockBytes() const;  // of the longest block

 private:
  // The most that one rank or one node sends (or receives, where that is more), in bytes and messages.
  struct Load {
    double insideBytes = 0;      // of a rank, in all rounds
    double insideMessages = 0;   // of a rank, in one round
    double betweenBytes = 0;     // of a node, in all rounds
    double betweenMessages = 0;  // of a rank, in one round
  };
  static Load loadOf(AlgorithmId algorithm, const Blocks& blocks, const Grouping& nodes);

  AlgorithmId algorithm_;
  const Grouping& nodes_;
  size_t bytes_;
  Load load_;
};

}  // namespace peal
