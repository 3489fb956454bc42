// One-shot all-reduces (and barriers) of one message each: what oneShotAllReduce does over a host port,
// without the port. Latency is all that counts here: one look at each thing that the call needs, and no more.
//
// Called by runCollective only.
#pragma once
#include <optional>

#include "lib/executor/host/operation.h"

namespace peal {

bool isShort(const HostContext& context, const Collective& call);
std::optional<Fault> runShortAllReduce(HostContext& context, const Collective& call, const Digest& digest);

}  // namespace peal
