// What the ranks of one launch have in common. See launch.h.
#include <fmt/format.h>
#include <unistd.h>

#include "lib/bootstrap/launch.h"
#include "lib/bootstrap/process_tree.h"

namespace peal {

std::string jobIdentity(const Launch& launch, const Surroundings& surroundings) {
  std::string identity = fmt::format("{} {} user {}", launch.launcher, launch.size, geteuid());
  const size_t bare = identity.size();
  const auto add = [&](const char* variable) {
    if (const auto value = surroundings.variable(variable)) {
      identity += fmt::format("\n{}={}", variable, *value);
    }
  };
  add("PEAL_ROOT");
  if (launch.launcher == "openmpi") {
    // The last is 128 random bits that mpirun makes for each job.
    add("OMPI_MCA_ess_base_jobid");
    add("PMIX_NAMESPACE");
    add("OMPI_MCA_orte_precondition_transports");
  } else if (launch.launcher == "slurm") {
    add("SLURM_CLUSTER_NAME");
    add("SLURM_JOB_ID");
    add("SLURM_STEP_ID");
    add("SLURM_RESTART_COUNT");
  } else if (launch.launcher == "torchrun") {
    // Not MASTER_ADDR: rank 0 may know its own machine by another name.
    add("MASTER_PORT");
    add("TORCHELASTIC_RUN_ID");
    add("TORCHELASTIC_RESTART_COUNT");
  }
  if (identity.size() == bare && launch.localSize != launch.size) {
    // The launcher itself says nothing that all machines would know.
    add("MASTER_ADDR");
    add("MASTER_PORT");
  }
  if (identity.size() > bare) {
    return identity;
  }
  // No word from the launcher: the process that started all local ranks stands for the job. It is the nearest
  // one that was not itself started as a rank.
  const std::string rankVariable = launcherRankVariable(launch.launcher);
  for (const Ancestor& ancestor : ancestors()) {
    if (!startedWith(ancestor.processId, rankVariable)) {
      return identity + fmt::format("\nstarted by {} at {}", ancestor.processId, ancestor.startTime);
    }
  }
  return identity;
}

Result<HostAndPort> parseHostPort(const std::string& text, const char* variable) {
  const Error malformed{
      pealInvalidUsage,
      fmt::format("{}=\"{}\" is not host:port, with a port from 1 to 65535 and an IPv6 address "
                  "in brackets ([fd00::2]:5000).",
                  variable, text)};
  const size_t colon = text.rfind(':');
  if (colon == std::string::npos || colon == 0) {
    return malformed;
  }
  std::string host = text.substr(0, colon);
  if (host.front() == '[' && host.back() == ']') {
    host = host.substr(1, host.size() - 2);
  } else if (host.find_first_of(":[]") != std::string::npos) {
    return malformed;
  }
  const Result<int> port = launchNumber(variable, text.substr(colon + 1), 1, 65535);
  if (host.empty() || !port) {
    return malformed;
  }
  return HostAndPort{host, static_cast<uint16_t>(*port)};
}

}  // namespace peal
