// The network endpoint over UCX, which runs over the loopback interface.
#include "tests/transports/transports.h"
#include "transports/ucx/ucx.h"

namespace peal::test {

std::vector<Transport> moreTransports() {
  const auto open = [](const FabricOptions& fabric) { return openUcx(fabric, {{"lo"}}); };
  const auto ucx = [open](Exchange& exchange, const TransportOptions& options) {
    return connectOver({"ucx", open}, exchange, options);
  };
  const auto routed = [open](Exchange& exchange, const TransportOptions& options) {
    return connectRouted({"ucx", open}, exchange, options);
  };
  return {{"ucx_threads", RanksAre::Threads, ucx, true},
          {"ucx_processes", RanksAre::Processes, ucx, true},
          {"ucx_routed_processes", RanksAre::Processes, routed, true}};
}

std::vector<NamedFabric> moreFabrics() {
  return {
      {"ucx_faulty", [](int) {
         return FabricCandidate{"ucx", [](const FabricOptions& fabric) { return openUcx(fabric, {{"lo"}}); }};
       }}};
}

}  // namespace peal::test
