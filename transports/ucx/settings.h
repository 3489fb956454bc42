// How peal sets UCX up: which of UCX's own settings it changes, and to what. A UCX_* variable of the
// environment always goes before these.
#pragma once
#include <string>
#include <vector>

#include "transports/ucx/ucx.h"

namespace peal::ucx {

struct Setting {
  std::string name;  // without "UCX_"
  std::string value;
  bool needed;  // false: tuning; a UCX that does not know it is used without
};

// What to set, without what the environment sets.
std::vector<Setting> settingsFor(const FabricOptions& options, const UcxOptions& ucxOptions);

// The RDMA devices and ports ("mlx5_0:1") that belong to these interfaces, as the kernel tells below `root`
// (/sys/class/infiniband).
std::vector<std::string> rdmaDevicesOf(const std::vector<std::string>& interfaces, const std::string& root);

}  // namespace peal::ucx
