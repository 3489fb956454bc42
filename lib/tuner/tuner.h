// The tuner: which algorithm an operation runs and in chunks of what size. Depends only on facts that are the
// same on every rank, so all ranks choose alike; the digest carries the choice and would expose a difference.
#pragma once
#include <cstddef>
#include <string>
#include <string_view>

#include "algorithms/choice.h"
#include "lib/base/result.h"

namespace peal {

const char* algorithmName(Algorithm algorithm);

struct TunerQuestion {
  int kind = 0;      // pealStatAllReduce ... pealStatBarrier
  size_t bytes = 0;  // of the whole array
  int size = 1;      // ranks
  bool deterministic = false;
  size_t slotBytes = 0;
  std::string_view forced = "auto";  // PEAL_ALGO
};

// An illegal forced algorithm is an error that lists the legal ones.
Result<Choice> choose(const TunerQuestion& question);

}  // namespace peal
