// The network endpoint over UCX, which runs over the loopback interface.
#include "tests/transports/transports.h"
#include "transports/ucx/ucx.h"

namespace peal::test {

std::vector<Transport> moreTransports() {
  const auto ucx = [](Exchange& exchange, const TransportOptions& options) {
    const auto open = [](const FabricOptions& fabric) { return openUcx(fabric, {{"lo"}}); };
    return connectOver({"ucx", open}, exchange, options);
  };
  return {{"ucx_threads", RanksAre::Threads, ucx, true}, {"ucx_processes", RanksAre::Processes, ucx, true}};
}

}  // namespace peal::test
