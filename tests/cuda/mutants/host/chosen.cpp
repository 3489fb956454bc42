// Switches on the defect that run.py names, before any test runs.
#include <cstdlib>

#include "tests/cuda/mutants/mutant.h"

namespace {

[[maybe_unused]] const bool kChosen = [] {
  const char* const number = std::getenv("PEAL_TEST_MUTANT");
  peal::cuda::test::chosenMutant = number != nullptr ? std::atoi(number) : 0;
  return true;
}();

}  // namespace
