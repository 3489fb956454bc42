// Places of PCI devices, as /sys tells them.
#pragma once
#include <string>
#include <string_view>

#include "lib/topology/placement.h"
#include "lib/topology/topology.h"

namespace peal {

bool isPciAddress(std::string_view text);     // "0000:0c:00.0"
bool isPciHostBridge(std::string_view text);  // "pci0000:00"

// Of the PCI device that a path below /sys/devices belongs to, such as that of a virtio device on it; an
// empty place if there is none.
PciPlace pciPlaceOfPath(const std::string& devicePath);
// Of an address in any case; only the address if /sys does not know it.
PciPlace pciPlaceOfAddress(const std::string& address, const SystemRoots& roots = {});

}  // namespace peal
