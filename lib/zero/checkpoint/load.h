// Loads a checkpoint into an engine: every rank reads what it holds. All is verified on all ranks before
// anything changes on any; what is read is checked again, and if files changed in between the engine holds
// halves, which the result says.
#pragma once
#include <string>

#include "lib/zero/checkpoint/state.h"
#include "lib/zero/checkpoint/vote.h"

namespace peal::zero::checkpoint {

enum class Spoiled { No, Yes };

// Collective. usable: as for Save. spoiled: Yes if the state was changed and is not whole.
Result<void> load(Collectives& collectives, State& state, const std::string& path, const Result<void>& usable,
                  Spoiled& spoiled);

}  // namespace peal::zero::checkpoint
