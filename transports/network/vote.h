// Collective verdicts: after a step that may fail on any rank, all ranks learn whether it did, where and why.
#pragma once
#include "transports/transport.h"

namespace peal {

// Collective. An error on every rank if `mine` is one on any: it names each failing rank with its reason,
// equal reasons once. Its code is that of the lowest failing rank.
Result<void> agree(Exchange& exchange, const Result<void>& mine);

}  // namespace peal
