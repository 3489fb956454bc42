#include "transports/verbs/verbs.h"

#include <algorithm>
#include <cmath>

#include "lib/base/config.h"
#include "transports/verbs/fabric.h"

namespace peal {
namespace {

constexpr double kLongestSilenceMs = 24 * 3600e3;

Result<verbs::Options> configured(const FabricOptions& fabric) {
  const Result<Configuration>& table = configuration();
  return table ? verbs::optionsOf(*table, fabric) : table.error();
}

}  // namespace

Result<verbs::Options> verbs::optionsOf(const Configuration& table, const FabricOptions& fabric) {
  const auto small = [&](Knob knob) { return static_cast<uint8_t>(table.integer(knob)); };
  verbs::Options options;
  options.fabric = fabric;
  options.devices = table.text(Knob::IbDevices);
  options.interfaces = table.text(Knob::Interface);
  const std::string& type = table.text(Knob::IbGidType);
  options.gid.version = type == "v1"   ? verbs::RoceVersion::V1
                        : type == "v2" ? verbs::RoceVersion::V2
                                       : verbs::RoceVersion::Any;
  Result<verbs::Subnet> subnet = verbs::parseSubnet(table.text(Knob::IbGidSubnet));
  if (!subnet) {
    return subnet.error();
  }
  options.gid.subnet = *subnet;
  options.queuePairs = static_cast<int>(table.integer(Knob::IbQueuePairs));
  options.serviceLevel = small(Knob::IbServiceLevel);
  options.trafficClass = small(Knob::IbTrafficClass);
  options.timeout = small(Knob::IbTimeout);
  options.retries = small(Knob::IbRetries);
  const double patienceMs = 4.0 * 4.096e-3 * std::exp2(options.timeout) * (options.retries + 1);
  options.silenceLimitMs =
      static_cast<int>(std::clamp(2 * patienceMs, 1.0 * options.silenceLimitMs, kLongestSilenceMs));
  options.references = table.integer(Knob::DirectRead) != 0;
  return options;
}

Result<std::unique_ptr<Fabric>> openVerbs(const FabricOptions& fabric) {
  const Result<verbs::Options> options = configured(fabric);
  if (!options) {
    return options.error();
  }
  const Result<verbs::Library*> library = verbs::systemLibrary();
  if (!library) {
    return library.error();
  }
  return verbs::VerbsFabric::open(**library, *options);
}

Result<std::vector<VerbsPort>> probeVerbs() {
  const Result<verbs::Options> options = configured({});
  if (!options) {
    return options.error();
  }
  const Result<verbs::Library*> library = verbs::systemLibrary();
  if (!library) {
    return library.error();
  }
  Result<verbs::Inventory> inventory = verbs::takeInventory(**library, *options);
  if (!inventory) {
    return inventory.error();
  }
  if (inventory->ports.empty()) {
    return Error{pealSystemError, verbs::explain({})};
  }
  return inventory->ports;
}

}  // namespace peal
