// What mutate.py writes: copies of the algorithms, each with one defect, and copies that were left alone.
#pragma once
#include <span>

#include "algorithms/record/recorder.h"

namespace peal::test {

struct Mutant {
  const char* name;       // the line and what took its place
  AlgorithmId algorithm;  // whose promises it is checked against
  record::RecordedAlgorithm run;
};

std::span<const Mutant> mutants();
std::span<const Mutant> originals();

}  // namespace peal::test
