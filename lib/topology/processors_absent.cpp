// Processors of a library that was built without hwloc: what /sys says, and a note. See processors.h.
#include "lib/topology/processors.h"

namespace peal {
namespace {

constexpr const char* kWhy =
    "this peal was built without hwloc's headers (Debian: libhwloc-dev): packages, caches, cores and PCI "
    "devices "
    "are not known";

}  // namespace

Result<void> discoverProcessors(const ProcessorSource& source, MachineNode& node) {
  if (!source.synthetic.empty() || !source.xml.empty()) {
    return Error{pealInvalidArgument, std::string("a topology in hwloc's own form cannot be read: ") + kWhy};
  }
  discoverProcessorsBySys(source, node);
  node.notes.push_back(kWhy);
  return {};
}

HwlocSupport probeHwloc() { return {.available = false, .reason = kWhy}; }

}  // namespace peal
