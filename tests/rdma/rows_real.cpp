// The network endpoint over verbs over the real libibverbs: in the virtual machine, where there is a device.
#include "tests/transports/transports.h"
#include "transports/verbs/verbs.h"

namespace peal::test {

std::vector<Transport> moreTransports() {
  const auto verbs = [](Exchange& exchange, const TransportOptions& options) {
    return connectOver({"verbs", openVerbs}, exchange, options);
  };
  const auto routed = [](Exchange& exchange, const TransportOptions& options) {
    return connectRouted({"verbs", openVerbs}, exchange, options);
  };
  return {{"verbs_processes", RanksAre::Processes, verbs, true, true},
          {"verbs_routed", RanksAre::Processes, routed, true, true}};
}

}  // namespace peal::test
