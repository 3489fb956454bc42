// What messages cost inside a node and between nodes, for the tuner: measured once, while a communicator over
// several nodes is made, or read from PEAL_TUNER_FILE. What GPUs cost is never measured, only read.
//
// Called by lib/comm/create.cpp only, on all ranks, when their links exist and nothing else uses them.
#pragma once
#include <vector>

#include "lib/executor/host/operation.h"
#include "lib/tuner/links.h"

namespace peal {

// Rank 0's numbers, the same on every rank. Collective over the exchange; takes milliseconds, on a network of
// 1 Gbit/s about ten. On one node nothing is measured, and without a file links cost what assumedLinks()
// says. sendSequence, recvSequence: the communicator's counts of point-to-point operations, per peer.
Result<LinkTable> agreeOnLinks(Exchange& exchange, HostContext& context, std::vector<uint32_t>& sendSequence,
                               std::vector<uint32_t>& recvSequence);

}  // namespace peal
