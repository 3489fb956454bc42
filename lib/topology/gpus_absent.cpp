// GPUs of a library that was built without CUDA: none, and a note if the machine seems to have some. See
// gpus.h.
#include <algorithm>

#include "lib/topology/gpus.h"

namespace peal {

void discoverGpus(const SystemRoots&, MachineNode& node) {
  if (std::any_of(node.pciDevices.begin(), node.pciDevices.end(),
                  [](const PciDevice& device) { return device.kind == "3D"; })) {
    node.notes.emplace_back("this peal was built without CUDA: the GPUs on PCI are not looked at");
  }
}

}  // namespace peal
