// The verbs fabric: InfiniBand and RoCE through libibverbs, which is opened at run time. See
// docs/NETWORKS.md.
//
// Used by transports/network/ (openVerbs) and by lib/api for peal-info (probeVerbs). Without libibverbs, at
// build time or at run time, both say so in a sentence.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "transports/fabric.h"

namespace peal {

// Opens the devices that the configuration selects (PEAL_IB_...). The error says what was looked for, what
// exists, and what to do.
Result<std::unique_ptr<Fabric>> openVerbs(const FabricOptions& options);

// One port of one device, for people. `unused` is empty where the verbs fabric would use the port, else why
// it would not.
struct VerbsPort {
  std::string device;
  int port = 0;
  std::string link;     // "InfiniBand" or "Ethernet"
  std::string state;    // "ACTIVE", ...
  std::string address;  // the GID chosen and its type, or the LID
  int mtuBytes = 0;
  std::string unused;
};

// What verbs finds on this machine. An error: there is no libibverbs, or no device.
Result<std::vector<VerbsPort>> probeVerbs();

}  // namespace peal
