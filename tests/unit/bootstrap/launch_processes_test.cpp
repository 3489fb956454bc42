// Launches with real processes: under real launchers where they are installed, and under a shell that sets
// the variables that they would.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <cstdio>
#include <string>

#include "tests/unit/bootstrap/roots.h"

namespace peal::test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

const std::string kProbe = PEAL_LAUNCH_PROBE;

struct Outcome {
  int status = -1;  // as of the shell; 124: it hung and was ended
  std::string output;
};

// Runs a shell script. Its traffic stays on the loopback interface.
Outcome run(const std::string& script) {
  const std::string guarded =
      "PEAL_INTERFACE=lo PEAL_INIT_TIMEOUT_MS=${PEAL_INIT_TIMEOUT_MS:-60000} "
      "timeout -k 1 70 sh -c '" +
      script + "' 2>&1";
  Outcome outcome;
  FILE* pipe = popen(guarded.c_str(), "r");
  if (pipe == nullptr) {
    return outcome;
  }
  char buffer[4096];
  for (size_t got = fread(buffer, 1, sizeof buffer, pipe); got > 0;
       got = fread(buffer, 1, sizeof buffer, pipe)) {
    outcome.output.append(buffer, got);
  }
  const int status = pclose(pipe);
  outcome.status = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return outcome;
}

bool installed(const std::string& program, const std::string& versionWord) {
  return run(program + " --version").output.find(versionWord) != std::string::npos;
}

// Starts one probe for each rank from the last to the first, with @ standing for its rank in `variables`, and
// waits for all. The shell's status is 0 even if probes fail: their output tells.
std::string forRanks(int size, const std::string& variables, const std::string& arguments) {
  std::string script;
  for (int rank = size - 1; rank >= 0; --rank) {
    for (const char letter : variables) {
      script += letter == '@' ? std::to_string(rank) : std::string(1, letter);
    }
    script += fmt::format(" {} {} & ", kProbe, arguments);
  }
  return script + "wait";
}

void expectAllMet(const Outcome& outcome, int size, const std::string& launcher) {
  EXPECT_EQ(outcome.status, 0) << outcome.output;
  for (int rank = 0; rank < size; ++rank) {
    EXPECT_THAT(outcome.output, HasSubstr(fmt::format("met as {} of {} local", rank, size)));
  }
  EXPECT_THAT(outcome.output, HasSubstr("by " + launcher));
}

uint16_t freePort() {
  const Result<OpenedRoot> root = openTcpRootAt({loopback()}, "");
  return root ? root->port : uint16_t{0};
}

TEST(LaunchProcesses, OpenMpi) {
  const std::string mpirun = "OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 mpirun";
  if (!installed("mpirun", "Open MPI")) {
    GTEST_SKIP() << "Open MPI's mpirun is not installed (Debian package openmpi-bin)";
  }
  const Outcome outcome = run(mpirun + " --oversubscribe -n 4 " + kProbe + " meet 3");
  expectAllMet(outcome, 4, "openmpi");
  EXPECT_THAT(outcome.output, HasSubstr("met as 3 of 4 local 3 of 4"));
}

TEST(LaunchProcesses, Hydra) {
  if (!installed("mpiexec.hydra", "HYDRA")) {
    GTEST_SKIP() << "MPICH's mpiexec.hydra is not installed (Debian package mpich)";
  }
  // Each rank behind a shell of its own: they still have the same job.
  const Outcome outcome = run("mpiexec.hydra -n 3 sh -c \"" + kProbe + " meet 3; true\"");
  expectAllMet(outcome, 3, "pmi");
  EXPECT_THAT(outcome.output, HasSubstr("met as 2 of 3 local 2 of 3"));
}

TEST(LaunchProcesses, OneShellOnOneMachineNeedsNoRoot) {
  expectAllMet(run(forRanks(4, "PEAL_RANK=@ PEAL_SIZE=4", "meet 5")), 4, "peal");
}

TEST(LaunchProcesses, TwoShellsDoNotMix) {
  // Their ranks have the same variables.
  const std::string job = forRanks(3, "PEAL_RANK=@ PEAL_SIZE=3", "meet 5");
  const Outcome outcome = run("sh -c \"" + job + "\" & sh -c \"" + job + "\" & wait");
  expectAllMet(outcome, 3, "peal");
  EXPECT_THAT(outcome.output, Not(HasSubstr("failed")));
}

TEST(LaunchProcesses, ARootByNameAndByAddress) {
  for (const std::string host : {"localhost", "127.0.0.1", "[::1]"}) {
    const std::string root = "PEAL_ROOT=" + host + ":" + std::to_string(freePort());
    expectAllMet(run(forRanks(3, root + " PEAL_RANK=@ PEAL_SIZE=3", "meet 5")), 3, "peal");
  }
}

TEST(LaunchProcesses, ARootWhosePortIsInUse) {
  const Result<OpenedRoot> taken = openTcpRootAt({loopback()}, "");
  ASSERT_TRUE(taken) << taken.error().message;
  const std::string root = "PEAL_ROOT=127.0.0.1:" + std::to_string(taken->port);
  const Outcome outcome = run(root + " PEAL_RANK=0 PEAL_SIZE=2 " + kProbe + " meet 1");
  EXPECT_EQ(outcome.status, 1);
  EXPECT_THAT(outcome.output, AllOf(HasSubstr(root), HasSubstr("EADDRINUSE"), HasSubstr("another port")));
}

TEST(LaunchProcesses, SecretsThatDifferKeepRanksApart) {
  const std::string root = "PEAL_INIT_TIMEOUT_MS=3000 PEAL_ROOT=127.0.0.1:" + std::to_string(freePort());
  const Outcome outcome =
      run(forRanks(2, root + " PEAL_RANK=@ PEAL_SIZE=2 PEAL_SECRET=only-rank-@-knows", "meet 1"));
  EXPECT_THAT(outcome.output, AllOf(HasSubstr("rank 1 of 2 did not join"), HasSubstr("another secret"),
                                    HasSubstr("did not prove the secret"), Not(HasSubstr("met as"))));
  // The same one lets them meet.
  expectAllMet(run(forRanks(2, root + " PEAL_RANK=@ PEAL_SIZE=2 PEAL_SECRET=shared", "meet 1")), 2, "peal");
}

TEST(LaunchProcesses, TorchrunsVariablesOnOneMachineAndOnSeveral) {
  const std::string variables =
      "RANK=@ WORLD_SIZE=3 MASTER_ADDR=127.0.0.1 MASTER_PORT=" + std::to_string(freePort());
  expectAllMet(run(forRanks(3, variables + " LOCAL_RANK=@ LOCAL_WORLD_SIZE=3", "meet 3")), 3, "torchrun");
  expectAllMet(run(forRanks(3, variables + " LOCAL_RANK=0 LOCAL_WORLD_SIZE=1", "meet 3")), 3, "torchrun");
}

TEST(LaunchProcesses, SlurmsVariablesOnSeveralMachines) {
  // The job's number decides the port; this one's is as free as any.
  const std::string variables =
      "SLURM_JOB_ID=" + std::to_string(getpid()) +
      " SLURM_STEP_ID=0 SLURM_PROCID=@ SLURM_NTASKS=3 SLURM_LOCALID=0 SLURM_NODEID=@ "
      "SLURM_STEP_TASKS_PER_NODE=\"1(x3)\" SLURM_STEP_NODELIST=\"localhost,n[2-3]\"";
  expectAllMet(run(forRanks(3, variables, "meet 3")), 3, "slurm");
}

TEST(LaunchProcesses, AnyLauncherMayNameTheMasterOfSeveralMachines) {
  // The port follows from the master's.
  const std::string master = "MASTER_ADDR=127.0.0.1 MASTER_PORT=" + std::to_string(freePort());
  expectAllMet(
      run(forRanks(3, master + " PEAL_RANK=@ PEAL_SIZE=3 PEAL_LOCAL_RANK=0 PEAL_LOCAL_SIZE=1", "meet 3")), 3,
      "peal");
  expectAllMet(
      run(forRanks(3, master + " PMI_RANK=@ PMI_SIZE=3 MPI_LOCALRANKID=0 MPI_LOCALNRANKS=1", "meet 3")), 3,
      "pmi");
}

TEST(LaunchProcesses, OpenMpisVariablesOnSeveralMachines) {
  const std::string variables = "OMPI_MCA_ess_base_jobid=" + std::to_string(getpid()) +
                                " OMPI_COMM_WORLD_RANK=@ OMPI_COMM_WORLD_SIZE=3 OMPI_COMM_WORLD_LOCAL_RANK=0 "
                                "OMPI_COMM_WORLD_LOCAL_SIZE=1 OMPI_MCA_orte_hnp_uri=\"77.0;tcp://";
  expectAllMet(run(forRanks(3, variables + "127.0.0.1:4711\"", "meet 3")), 3, "openmpi");
  // An address that is nobody's (RFC 5737): rank 0 is not where mpirun is.
  const Outcome elsewhere = run(forRanks(1, variables + "192.0.2.7,198.51.100.7:4711\"", "meet 1"));
  EXPECT_THAT(elsewhere.output,
              AllOf(HasSubstr("mpirun does not run on this machine"), HasSubstr("PEAL_ROOT")));
}

TEST(LaunchProcesses, AnAgentThatSlurmStartedSpeaksForItsRanks) {
  // The shell is Slurm's task and starts the ranks as torchrun's agent does.
  const std::string task =
      "export SLURM_JOB_ID=1 SLURM_STEP_ID=0 SLURM_PROCID=0 SLURM_NTASKS=1 "
      "SLURM_TASK_PID=$$; ";
  const std::string agent = "RANK=@ WORLD_SIZE=2 LOCAL_RANK=@ LOCAL_WORLD_SIZE=2 MASTER_PORT=29500";
  expectAllMet(run(task + forRanks(2, agent, "meet 1")), 2, "torchrun");
  // Variables that were there before Slurm's task began are not its doing.
  const Outcome stale =
      run("export RANK=1 WORLD_SIZE=2; sh -c \"export SLURM_STEP_ID=0 SLURM_PROCID=0 "
          "SLURM_NTASKS=1 SLURM_TASK_PID=\\$\\$; " +
          kProbe + " meet 1; false\"");
  EXPECT_THAT(stale.output, HasSubstr("two launchers disagree"));
}

TEST(LaunchProcesses, SeveralMachinesWithoutAMeetingPlaceAskForOne) {
  const Outcome outcome =
      run("OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_LOCAL_RANK=0 "
          "OMPI_COMM_WORLD_LOCAL_SIZE=1 " +
          kProbe + " meet 1");
  EXPECT_EQ(outcome.status, 1);
  EXPECT_THAT(outcome.output, AllOf(HasSubstr("PEAL_ROOT=host:port"), HasSubstr("openmpi")));
}

TEST(LaunchProcesses, AKilledRankIsNamedByTheOthers) {
  const Clock::time_point start = Clock::now();
  const Outcome outcome = run(forRanks(3, "PEAL_RANK=@ PEAL_SIZE=3", "kill 1"));
  EXPECT_LT(Clock::now() - start, kAtOnce);
  EXPECT_THAT(outcome.output, HasSubstr("probe failed with 6: rank 1 of 3"));
}

TEST(LaunchProcesses, AKilledRootIsNoticedByTheOthers) {
  const Clock::time_point start = Clock::now();
  const Outcome outcome = run(forRanks(3, "PEAL_RANK=@ PEAL_SIZE=3", "kill 0"));
  EXPECT_LT(Clock::now() - start, kAtOnce);
  EXPECT_THAT(outcome.output, AllOf(HasSubstr("is gone"), Not(HasSubstr("met as"))));
}

TEST(LaunchProcesses, AnIdThatNobodyUsesKeepsNoProcessAlive) {
  const Clock::time_point start = Clock::now();
  const Outcome outcome = run(kProbe + " leave");
  EXPECT_LT(Clock::now() - start, kAtOnce);
  EXPECT_EQ(outcome.status, 0) << outcome.output;
  EXPECT_THAT(outcome.output, HasSubstr("child left with 0"));
}

}  // namespace
}  // namespace peal::test
