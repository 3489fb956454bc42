// In place of verbs.cpp where libibverbs' headers were not there at build time.
#include "transports/verbs/verbs.h"

namespace peal {
namespace {

Error absent() {
  return {
      pealInvalidUsage,
      "this build of peal has no verbs: libibverbs' headers (Debian's libibverbs-dev) were not there when it "
      "was configured."};
}

}  // namespace

Result<std::unique_ptr<Fabric>> openVerbs(const FabricOptions&) { return absent(); }
Result<std::vector<VerbsPort>> probeVerbs() { return absent(); }

}  // namespace peal
