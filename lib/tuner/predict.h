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

// bytes: of the whole array, in even blocks.
double predictUs(AlgorithmId algorithm, const Choice& choice, const Grouping& nodes, size_t bytes,
                 const LinkTable& links);

}  // namespace peal
