// What the ranks of a communicator on GPUs agree on before anything is made: how many channels, and how large
// slots are. Called by setup.cpp.
#pragma once
#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "lib/base/result.h"
#include "lib/executor/cuda/view.h"
#include "lib/executor/device_executor.h"
#include "transports/transport.h"

namespace peal::cuda {

// A text in a struct that ranks exchange, cut where it is too long.
using Text = std::array<char, 1024>;
void setText(Text& text, const std::string& value);
std::string textOf(const Text& text);

struct Agreement {
  BoxShape shape;
  int threads = 0;  // of a block; this rank's
};

// Collective: every rank comes with what it found, an error included, so that all fail or none.
Result<Agreement> agree(Exchange& exchange, const DeviceOptions& options);

// Collective: passes this rank's result on, and returns the first error of any rank.
Result<void> agreeOn(Exchange& exchange, const Result<void>& mine);

}  // namespace peal::cuda
