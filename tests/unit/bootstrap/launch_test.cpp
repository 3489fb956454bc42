// Launchers' variables, alone and together. The environment is the test's own; nothing here starts a process.
#include "lib/bootstrap/launch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "lib/bootstrap/nodelist.h"

namespace peal::test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

using Variables = std::map<std::string, std::string>;

Surroundings surroundings(const Variables& variables, int launcherTask = 0) {
  return {[variables](const char* name) {
            const auto found = variables.find(name);
            return found == variables.end() ? std::nullopt : std::optional(found->second);
          },
          [launcherTask](int processId, const std::string&) { return processId == launcherTask; }};
}

Launch detected(const Variables& variables, int launcherTask = 0) {
  const Result<Launch> launch = detectLaunchFrom(surroundings(variables, launcherTask));
  EXPECT_TRUE(launch) << launch.error().message;
  return launch ? *launch : Launch{-7, -7, -7, -7, "error"};
}

std::string refused(const Variables& variables) {
  const Result<Launch> launch = detectLaunchFrom(surroundings(variables));
  EXPECT_FALSE(launch) << "rank " << launch->rank << " of " << launch->size << " by " << launch->launcher;
  if (launch) {
    return "";
  }
  EXPECT_EQ(launch.error().code, pealInvalidUsage);
  return launch.error().message;
}

void expectLaunch(const Launch& launch, const std::string& launcher, int rank, int size, int localRank,
                  int localSize) {
  EXPECT_EQ(launch.launcher, launcher);
  EXPECT_EQ(launch.rank, rank);
  EXPECT_EQ(launch.size, size);
  EXPECT_EQ(launch.localRank, localRank);
  EXPECT_EQ(launch.localSize, localSize);
}

Variables operator+(Variables a, const Variables& b) {
  a.insert(b.begin(), b.end());
  return a;
}

const Variables kOpenMpi{{"OMPI_COMM_WORLD_RANK", "3"},
                         {"OMPI_COMM_WORLD_SIZE", "8"},
                         {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                         {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}};
const Variables kSlurm{{"SLURM_JOB_ID", "77"},     {"SLURM_STEP_ID", "0"},
                       {"SLURM_PROCID", "3"},      {"SLURM_NTASKS", "8"},
                       {"SLURM_LOCALID", "1"},     {"SLURM_STEP_NUM_TASKS", "8"},
                       {"SLURM_NODEID", "1"},      {"SLURM_STEP_TASKS_PER_NODE", "2(x4)"},
                       {"SLURM_TASK_PID", "4711"}, {"SLURM_STEP_NODELIST", "n[1-4]"}};
const Variables kTorchrun{{"RANK", "3"},         {"WORLD_SIZE", "8"},
                          {"LOCAL_RANK", "3"},   {"LOCAL_WORLD_SIZE", "4"},
                          {"MASTER_ADDR", "n1"}, {"MASTER_PORT", "29500"}};

TEST(Launch, NobodyMeansOneRank) { expectLaunch(detected({}), "none", 0, 1, -1, -1); }

TEST(Launch, EachLauncherIsRead) {
  expectLaunch(detected({{"PEAL_RANK", "1"}, {"PEAL_SIZE", "4"}, {"PEAL_ROOT", "h:1"}}), "peal", 1, 4, -1,
               -1);
  expectLaunch(detected({{"PEAL_RANK", "1"}, {"PEAL_SIZE", "4"}}), "peal", 1, 4, 1, 4);
  expectLaunch(
      detected({{"PEAL_RANK", "1"}, {"PEAL_SIZE", "4"}, {"PEAL_LOCAL_RANK", "0"}, {"PEAL_LOCAL_SIZE", "2"}}),
      "peal", 1, 4, 0, 2);
  expectLaunch(detected(kOpenMpi), "openmpi", 3, 8, 1, 2);
  expectLaunch(detected({{"PMI_RANK", "3"}, {"PMI_SIZE", "8"}}), "pmi", 3, 8, -1, -1);
  expectLaunch(
      detected({{"PMI_RANK", "3"}, {"PMI_SIZE", "8"}, {"MPI_LOCALRANKID", "3"}, {"MPI_LOCALNRANKS", "8"}}),
      "pmi", 3, 8, 3, 8);
  expectLaunch(detected(kSlurm), "slurm", 3, 8, 1, 2);
  expectLaunch(detected(kTorchrun), "torchrun", 3, 8, 3, 4);
}

TEST(Launch, ThoseThatAgreeGoByTheirOrder) {
  expectLaunch(detected(kOpenMpi + kTorchrun), "openmpi", 3, 8, 1, 2);
  expectLaunch(detected(kSlurm + kTorchrun), "slurm", 3, 8, 1, 2);
  expectLaunch(detected(Variables{{"PEAL_RANK", "3"}, {"PEAL_SIZE", "8"}} + kOpenMpi), "peal", 3, 8, 3, 8);
  expectLaunch(detected(Variables{{"PMI_RANK", "3"}, {"PMI_SIZE", "8"}} + kSlurm), "pmi", 3, 8, -1, -1);
}

TEST(Launch, TwoThatDisagreeAreNamedWithTheirValues) {
  EXPECT_THAT(refused(Variables{{"PEAL_RANK", "0"}, {"PEAL_SIZE", "2"}} + kOpenMpi),
              AllOf(HasSubstr("PEAL_RANK=0 PEAL_SIZE=2"),
                    HasSubstr("OMPI_COMM_WORLD_RANK=3 OMPI_COMM_WORLD_SIZE=8")));
  EXPECT_THAT(refused(Variables{{"PMI_RANK", "3"}, {"PMI_SIZE", "4"}} + kTorchrun),
              AllOf(HasSubstr("PMI_RANK=3 PMI_SIZE=4"), HasSubstr("RANK=3 WORLD_SIZE=8")));
  EXPECT_THAT(refused(kSlurm + Variables{{"RANK", "2"}, {"WORLD_SIZE", "8"}}),
              AllOf(HasSubstr("SLURM_PROCID=3 SLURM_STEP_NUM_TASKS=8"), HasSubstr("RANK=2")));
}

TEST(Launch, HalfAPairIsAnErrorUnlessAnotherLauncherAgrees) {
  EXPECT_THAT(refused({{"PEAL_RANK", "0"}}), AllOf(HasSubstr("PEAL_RANK=0"), HasSubstr("PEAL_SIZE is not")));
  EXPECT_THAT(refused({{"OMPI_COMM_WORLD_SIZE", "4"}}), HasSubstr("OMPI_COMM_WORLD_RANK is not"));
  EXPECT_THAT(refused({{"RANK", "0"}}), HasSubstr("WORLD_SIZE is not"));
  EXPECT_THAT(refused(Variables{{"PEAL_SIZE", "4"}} + kOpenMpi), HasSubstr("PEAL_SIZE=4"));
  expectLaunch(detected(kOpenMpi + Variables{{"WORLD_SIZE", "8"}}), "openmpi", 3, 8, 1, 2);
}

TEST(Launch, WhatIsNotARankIsRefusedWithItsText) {
  const auto peal = [](const char* rank, const char* size) {
    return Variables{{"PEAL_RANK", rank}, {"PEAL_SIZE", size}};
  };
  EXPECT_THAT(refused(peal("zero", "2")), HasSubstr("PEAL_RANK=\"zero\""));
  EXPECT_THAT(refused(peal("", "2")), HasSubstr("PEAL_RANK=\"\""));
  EXPECT_THAT(refused(peal("-1", "2")), HasSubstr("PEAL_RANK=\"-1\""));
  EXPECT_THAT(refused(peal("1x", "2")), HasSubstr("PEAL_RANK=\"1x\""));
  EXPECT_THAT(refused(peal("0", "0")), HasSubstr("PEAL_SIZE=\"0\""));
  EXPECT_THAT(refused(peal("0", "99999999999")), HasSubstr("PEAL_SIZE=\"99999999999\""));
  EXPECT_THAT(refused(peal("2", "2")), AllOf(HasSubstr("PEAL_RANK=2"), HasSubstr("PEAL_SIZE=2")));
  EXPECT_THAT(refused(peal("0", "2") + Variables{{"PEAL_LOCAL_RANK", "1"}, {"PEAL_LOCAL_SIZE", "1"}}),
              AllOf(HasSubstr("PEAL_LOCAL_RANK=1"), HasSubstr("PEAL_LOCAL_SIZE=1")));
}

TEST(Launch, SlurmCountsOnlyInsideAStep) {
  Variables allocation = kSlurm;
  allocation.erase("SLURM_STEP_ID");
  allocation["SLURM_PROCID"] = "0";
  expectLaunch(detected(allocation), "none", 0, 1, -1, -1);
  // mpirun in a batch script on the script's own node: its shell is Slurm's process 0.
  expectLaunch(detected(allocation + kOpenMpi), "openmpi", 3, 8, 1, 2);
  for (const char* special : {"4294967291", "4294967290", "batch", ""}) {
    allocation["SLURM_STEP_ID"] = special;
    expectLaunch(detected(allocation), "none", 0, 1, -1, -1);
  }
}

TEST(Launch, SlurmsWordAboutALauncherIsNotAboutItsRanks) {
  // srun starts one daemon (or agent) for each node; that starts this process.
  Variables daemon = kSlurm;
  daemon["SLURM_PROCID"] = "1";
  daemon["SLURM_STEP_NUM_TASKS"] = "4";
  expectLaunch(detected(daemon + kOpenMpi, 4711), "openmpi", 3, 8, 1, 2);
  expectLaunch(detected(daemon + kTorchrun, 4711), "torchrun", 3, 8, 3, 4);
  // Slurm started this process itself, out of an mpirun that left its variables behind.
  EXPECT_THAT(refused(daemon + kOpenMpi),
              AllOf(HasSubstr("SLURM_PROCID=1"), HasSubstr("OMPI_COMM_WORLD_RANK=3")));
}

TEST(Launch, SlurmsLocalSizeIsLeftOpenWhereItCannotBeKnown) {
  Variables step = kSlurm;
  step.erase("SLURM_STEP_TASKS_PER_NODE");
  expectLaunch(detected(step), "slurm", 3, 8, 1, -1);
  step["SLURM_NTASKS_PER_NODE"] = "2";
  expectLaunch(detected(step), "slurm", 3, 8, 1, 2);
  step["SLURM_NTASKS_PER_NODE"] = "64";
  expectLaunch(detected(step), "slurm", 3, 8, 1, -1);
  step.erase("SLURM_STEP_NUM_TASKS");
  expectLaunch(detected(step), "slurm", 3, 8, 1, -1);
}

TEST(Launch, NodeListsGiveTheirFirstHost) {
  EXPECT_EQ(firstHost("node1"), "node1");
  EXPECT_EQ(firstHost("node[01-03,7],gpu1"), "node01");
  EXPECT_EQ(firstHost("gpu1,node[01-03]"), "gpu1");
  EXPECT_EQ(firstHost("n[7,9-12]"), "n7");
  EXPECT_EQ(firstHost("rack[2-3]n[04,06].cluster"), "rack2n04.cluster");
  EXPECT_EQ(firstHost(""), std::nullopt);
  EXPECT_EQ(firstHost(",a"), std::nullopt);
  EXPECT_EQ(firstHost("n[1-"), std::nullopt);
}

TEST(Launch, TaskCountsUnfold) {
  EXPECT_EQ(tasksOnNode("4", 0), 4);
  EXPECT_EQ(tasksOnNode("4", 1), std::nullopt);
  EXPECT_EQ(tasksOnNode("4(x3),2", 2), 4);
  EXPECT_EQ(tasksOnNode("4(x3),2", 3), 2);
  EXPECT_EQ(tasksOnNode("4(x3),2", 4), std::nullopt);
  EXPECT_EQ(tasksOnNode("4(x", 0), std::nullopt);
  EXPECT_EQ(tasksOnNode("many", 0), std::nullopt);
}

TEST(Launch, RootsAreHostAndPort) {
  const auto parsed = [](const std::string& text) {
    const Result<HostAndPort> at = parseHostPort(text, "PEAL_ROOT");
    return at ? at->host + " " + std::to_string(at->port) : at.error().message;
  };
  EXPECT_EQ(parsed("node1:5000"), "node1 5000");
  EXPECT_EQ(parsed("[fd00::2]:5000"), "fd00::2 5000");
  EXPECT_EQ(parsed("192.0.2.2:1"), "192.0.2.2 1");
  for (const char* wrong : {"", "node1", "node1:", ":5000", "node1:0", "node1:65536", "node1:x",
                            "fd00::2:5000", "[]:1", "[fd00::2]", "a:b:1"}) {
    EXPECT_THAT(parsed(wrong), HasSubstr("PEAL_ROOT=\"" + std::string(wrong) + "\" is not host:port"));
  }
}

TEST(Launch, JobsAreToldApartByWhatTheirLauncherSays) {
  const Launch slurm{3, 8, 1, 2, "slurm"};
  const std::string job = jobIdentity(slurm, surroundings(kSlurm));
  EXPECT_EQ(job, jobIdentity({0, 8, 0, 2, "slurm"}, surroundings(kSlurm))) << "the same for another rank";
  Variables nextStep = kSlurm;
  nextStep["SLURM_STEP_ID"] = "1";
  EXPECT_NE(job, jobIdentity(slurm, surroundings(nextStep)));
  // Without a word from the launcher: by the process that started the ranks.
  const Launch plain{0, 2, 0, 2, "peal"};
  EXPECT_THAT(jobIdentity(plain, surroundings({})), HasSubstr("started by"));
}

}  // namespace
}  // namespace peal::test
