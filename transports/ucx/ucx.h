// The network over UCX (its UCP layer): TCP everywhere, InfiniBand and RoCE where UCX has them. libucp is
// opened at run time, so that one binary runs with and without it.
//
// Called by lib/comm (openUcx) and lib/api (probeUcx). No file outside this folder sees UCX's headers; a
// build without them has ucx_absent.cpp, which says so.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "transports/fabric.h"

namespace peal {

struct UcxOptions {
  // Network interfaces that may be used, by name; RDMA devices come along with their interfaces. Empty: UCX
  // chooses among all. A UCX_NET_DEVICES in the environment goes before it.
  std::vector<std::string> interfaces;
};

// A fabric that is not connected yet. An error says which UCX was found and what is needed.
Result<std::unique_ptr<Fabric>> openUcx(const FabricOptions& options, const UcxOptions& ucxOptions);

struct UcxSupport {
  bool available = false;
  // Version, path and the transports with their devices; or why not.
  std::string reason;
};
UcxSupport probeUcx();

}  // namespace peal
