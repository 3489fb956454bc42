// Runs tasks that wait for each other, each on a thread of its own: all start, or none does.
#pragma once
#include <functional>
#include <vector>

#include "lib/base/result.h"

namespace peal {

// The first error in list order, errors of this rank's own before the news of another's. A single task runs
// on the calling thread. If a thread cannot be started no task runs, since those that did would wait for the
// missing one: pealSystemError.
Result<void> runTogether(const std::vector<std::function<Result<void>()>>& tasks);

}  // namespace peal
