// pealTopology: discovery, or a described file, as JSON.
#include "lib/api/api.h"
#include "lib/topology/described.h"
#include "lib/topology/discover.h"
#include "peal/peal.h"

pealResult_t pealTopology(const char* file, const char** json) {
  return peal::api::guarded([&]() -> peal::Result<void> {
    if (json == nullptr) {
      return peal::api::nullArgument("pealTopology", "json");
    }
    const peal::Result<peal::Topology> topology = peal::currentTopology(file != nullptr ? file : "");
    if (!topology) {
      return topology.error();
    }
    thread_local std::string text;
    text = peal::topologyJson(*topology);
    *json = text.c_str();
    return {};
  });
}
