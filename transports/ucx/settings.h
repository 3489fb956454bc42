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

// Whether UCX will have nothing but TCP: this machine has no RDMA device, or UCX_TLS says so.
bool usesOnlyTcp();

// How much of a link's messages a TCP socket takes at least, however late the peer reads: with that, what was
// sent is on its way without further calls of UCX, which does not say whether a full socket holds back a part
// of it.
// mostText: what a socket may ask for, as the system's net.core.wmem_max says it; the second form reads that.
size_t socketBytes(const FabricOptions& options, const std::string& mostText);
size_t socketBytes(const FabricOptions& options);

// "64k", "2MB", "1000" as UCX reads them; 0 for "auto" and all else.
size_t parseBytes(const std::string& text);

// The RDMA devices and ports ("mlx5_0:1") that belong to these interfaces, and those of InfiniBand that
// belong to none and are active, as the kernel tells below `root` (/sys/class/infiniband).
std::vector<std::string> rdmaDevicesOf(const std::vector<std::string>& interfaces, const std::string& root);

}  // namespace peal::ucx
