// Families of algorithms as the tuner's parts for the host (tuner.cpp) and for GPUs (device.cpp) ask for
// them.
#pragma once
#include <cstddef>
#include <vector>

#include "algorithms/grouping.h"
#include "lib/tuner/predict.h"
#include "lib/tuner/tuner.h"

namespace peal {

bool reduces(int kind);
bool severalNodes(const TunerQuestion& question);
// Those that are legal for the call and have a text of their own for it.
std::vector<Algorithm> legalFamilies(const TunerQuestion& question);
// With the longest chunk that it may have.
Choice choiceOf(Algorithm family, const TunerQuestion& question);

// What a family's text takes, on the question's nodes; on one node a tree runs flat there: every rank speaks
// for itself.
class Forecast {
 public:
  Forecast(Algorithm family, const TunerQuestion& question);
  Forecast(const Forecast&) = delete;
  Forecast& operator=(const Forecast&) = delete;
  // sumUsPerByte: as Prediction::us has it.
  double us(const Choice& choice, LinkTable links, double sumUsPerByte = kSumUsPerByte) const;
  const char* text() const;  // the function's name
  // The longest block of the array: what a rank hands to a peer in the largest step.
  size_t blockBytes() const { return prediction_.blockBytes(); }

 private:
  std::vector<int> table_;
  const bool flatTree_;
  const Grouping nodes_;  // a view of table_
  const AlgorithmId algorithm_;
  const Prediction prediction_;
};

}  // namespace peal
