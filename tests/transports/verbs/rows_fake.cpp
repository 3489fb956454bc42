// The network endpoint over verbs over the fake library: ranks that are threads.
#include <deque>
#include <mutex>

#include "tests/transports/transports.h"
#include "tests/transports/verbs/fake.h"
#include "transports/verbs/fabric.h"

namespace peal::test {
namespace {

Result<std::unique_ptr<Fabric>> openOverFake(int rank, const FabricOptions& fabric) {
  // They outlive every fabric.
  static World world;
  static std::mutex mutex;
  static std::deque<FakeVerbs> libraries;
  const std::lock_guard lock(mutex);
  const std::string last = std::to_string(rank + 1);
  FakeVerbs& library =
      libraries.emplace_back(world, rank,
                             std::vector<FakeDeviceSpec>{roceDevice("fake0", "10.0.0." + last),
                                                         roceDevice("fake1", "10.0.1." + last)});
  verbs::Options options;
  options.fabric = fabric;
  return verbs::VerbsFabric::open(library, options);
}

}  // namespace

std::vector<NamedFabric> moreFabrics() {
  const auto ofRank = [](int rank) {
    return FabricCandidate{"verbs",
                           [rank](const FabricOptions& chosen) { return openOverFake(rank, chosen); }};
  };
  return {{"verbs_faulty", ofRank, false}};
}

std::vector<Transport> moreTransports() {
  const auto verbs = [](Exchange& exchange, const TransportOptions& options) {
    return connectOver(moreFabrics().front().candidate(exchange.rank()), exchange, options);
  };
  return {{"verbs_threads", RanksAre::Threads, verbs, true}};
}

}  // namespace peal::test
