// Launchers: what their variables say of this process and of its job. Inside of lib/bootstrap; others call
// detectLaunch and launchUniqueId of bootstrap.h.
#pragma once
#include <functional>
#include <optional>
#include <string>

#include "lib/bootstrap/bootstrap.h"

namespace peal {

// What detection looks at. Tests make their own.
struct Surroundings {
  std::function<std::optional<std::string>(const char* name)> variable;
  // Whether process `processId` is an ancestor of this one and was itself started without `variable`: then
  // who set that variable stands between the two.
  std::function<bool(int processId, const std::string& variable)> setBelow;
};
Surroundings realSurroundings();

// Order: PEAL_RANK, Open MPI, PMI, Slurm, torchrun. All that are present must agree on rank and size, with
// one exception: Slurm's variables are left aside when the process that Slurm started is a launcher of
// another kind (mpirun's daemon, torchrun's agent) that started this one.
//
// Slurm counts only inside a job step that srun made (SLURM_STEP_ID). The shell of an sbatch script has
// SLURM_PROCID=0 too, and the allocation's SLURM_NTASKS; it is no task of anything.
Result<Launch> detectLaunchFrom(const Surroundings& surroundings);

// The variable in which a launcher says the rank; "" for "none".
std::string launcherRankVariable(const std::string& launcher);

// A text that is the same for all ranks of this launch and, as far as the launcher tells, for no other.
std::string jobIdentity(const Launch& launch, const Surroundings& surroundings);

// "host:port", "[::1]:5000".
struct HostAndPort {
  std::string host;
  uint16_t port = 0;
};
Result<HostAndPort> parseHostPort(const std::string& text, const char* variable);

// A whole number of a launcher's variable.
Result<int> launchNumber(const char* variable, const std::string& text, int least, int most);

}  // namespace peal
