// Where the ranks of a tool come from: exactly one of --ranks N (processes), threads of this process (-t/-g),
// or a launcher (mpirun, srun, torchrun, PEAL_RANK). Two at once are refused with a sentence.
#pragma once
#include <functional>
#include <string>

#include "peal/peal.h"
#include "tools/common/local_ranks.h"

namespace CLI {  // NOLINT(readability-identifier-naming): CLI11's name
class App;
}

namespace peal::tools {

struct RankOptions {
  int processes = 0;  // --ranks; 0: not given
  int threads = 1;    // -t times -g of the benches; other tools leave it at 1
  int graceMs = 10000;
};

enum class RankSource { Alone, Processes, Threads, Launcher };

// One rank of this run, with its communicator, as the tool's body sees it.
struct RankContext {
  int rank = 0;
  int size = 1;
  RankSource source = RankSource::Alone;
  std::string launcher = "none";  // pealLaunch_t::launcher
  int localRank = 0;              // index on this machine; the rank where the launcher does not say
  int device = PEAL_DEVICE_HOST;  // of the communicator
  pealComm_t comm = nullptr;
};

// Decides; throws UsageError for two sources at once. launchSize is what the launcher says, 1 without one.
RankSource chooseRankSource(const RankOptions& options, int launchSize, const std::string& launcher);

// Adds --ranks to a command line.
void addRanksOption(CLI::App& app, RankOptions& options);

// How a communicator is made; config may be changed by the tool (deterministic, commName).
enum class ThreadInit { Together, EachItself };  // pealCommInitAll, or pealCommInitRank in every thread
struct RankSetup {
  pealConfig_t config = PEAL_CONFIG_INITIALIZER;
  ThreadInit threadInit = ThreadInit::Together;
  // Chooses the device of a rank, in the rank's own process. Unset: config.device as it is.
  std::function<int(const RankContext&)> device;
};

// Makes the ranks, runs body once per rank and returns the tool's exit code: 0, or the first failure's. A
// body that throws aborts its communicator, so that the other ranks return too. Communicators are destroyed
// after the body. Call it before any thread or communicator is made.
int runRanks(const RankOptions& options, const RankSetup& setup,
             const std::function<int(RankContext&)>& body);

}  // namespace peal::tools
