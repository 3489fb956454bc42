// Collectives of one short message to each peer that needs one: what the direct algorithms do over a host
// port, without the port. Latency is all that counts here: one look at each thing that the call needs, and no
// more.
//
// Called by runCollective only.
#pragma once
#include <optional>

#include "lib/executor/host/operation.h"

namespace peal {

bool isShort(const HostContext& context, const Collective& call);
std::optional<Fault> runShort(HostContext& context, const Collective& call, const Digest& digest);

}  // namespace peal
