#include "bench/harness/main.h"

#include "bench/harness/gpu.h"
#include "bench/harness/json_report.h"
#include "bench/harness/options.h"
#include "bench/harness/session.h"
#include "tools/common/error.h"
#include "tools/common/ranks.h"

namespace peal::bench {
namespace {

int runAll(const Collective& collective, const Options& options) {
  if (!options.jsonPath.empty()) {
    probeFile(options.jsonPath);
  }
  tools::RankSetup setup;
  setup.config.commName = collective.program;
  if (options.timeoutSeconds > 0) {
    setup.config.timeoutMs = options.timeoutSeconds * 1000;
  }
  if (options.deterministic) {
    setup.config.deterministic = 1;
  }
  if (options.parallelInit) {
    setup.threadInit = tools::ThreadInit::EachItself;
  }
  if (options.device != PEAL_DEVICE_HOST) {
    expectGpus();
    setup.device = [&](const tools::RankContext& ranks) {
      return chooseDevice(options.device, ranks.localRank);
    };
  }
  return tools::runRanks(options.ranks, setup, [&](tools::RankContext& ranks) {
    Session session(options, collective, ranks);
    return session.run();
  });
}

}  // namespace

int benchMain(const Collective& collective, int argc, char** argv) {
  return tools::guard(collective.program, [&] {
    Options options;
    if (const std::optional<int> code = parseOptions(collective, argc, argv, options)) {
      return *code;
    }
    return runAll(collective, options);
  });
}

}  // namespace peal::bench
