// The tuner: which algorithm an operation runs and in chunks of what size; on a GPU also the protocol and the
// number of channels. Depends only on facts that are the same on every rank, so all ranks choose alike; the
// digest carries the choice and would expose a difference.
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
  size_t oneShotMostBytes = 0;       // of the array, times the ranks; 0: as on the host
};

// An illegal forced algorithm is an error that lists the legal ones.
Result<Choice> choose(const TunerQuestion& question);

// The same on a GPU. call.slotBytes is the payload of a Simple message.
struct DeviceQuestion {
  TunerQuestion call;
  size_t llBytes = 0, ll128Bytes = 0;  // payload of a message
  int channels = 1;                    // the most
  bool linesWhole = false;             // LL128 is legal
  std::string_view forced = "auto";    // PEAL_PROTOCOL
};
Result<Choice> chooseOnDevice(const DeviceQuestion& question);

}  // namespace peal
