// Checkpoints of processes that are killed while they save, or whose disk is full: what was complete before
// always loads, and nothing is left behind.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <filesystem>
#include <random>

#include "tests/support/processes.h"
#include "tests/support/scratch_folder.h"
#include "tests/zero/breadth.h"
#include "tests/zero/ranks.h"

namespace peal::zero::test {
namespace {

namespace fs = std::filesystem;
using peal::test::Child;
using peal::test::ChildResult;
using peal::test::Processes;

// Several blocks, so that there are many moments inside a save.
Shape savedShape() { return {{40'000, 0}, {70'001, 1}, {3, 1}, {20'000, 2}}; }

pealZeroOptions_t savedOptions() {
  pealZeroOptions_t options = defaultOptions();
  options.stage = 2;
  options.bucketBytes = 1 << 16;
  return options;
}

// Reads and so verifies all of it; the step.
uint64_t verifyAll(const std::string& path) {
  const Checkpoint checkpoint(path);
  for (uint64_t i = 0; i < checkpoint.info().parameters; ++i) {
    std::vector<float> values(checkpoint.parameter(i).elements);
    for (const pealZeroTensor_t tensor : {pealZeroMaster, pealZeroMoment1, pealZeroMoment2}) {
      checkpoint.read(i, tensor, 0, values);
    }
  }
  return checkpoint.info().step;
}

size_t entriesOf(const fs::path& directory) {
  return static_cast<size_t>(std::distance(fs::directory_iterator(directory), fs::directory_iterator()));
}

// Saves without end, over the same name and under new ones, at once and beside steps.
int saveForever(const Child& child, const std::string& directory) {
  onRanks(2, [&](int rank, pealComm_t comm) {
    Trainer trainer(comm, rank, savedOptions(), savedShape());
    for (uint64_t round = 0;; ++round) {
      trainer.engine().save(directory + "/same");
      if (round == 0 && rank == 0) {
        child.say("saved");
      }
      trainer.engine().saveBegin(fmt::format("{}/round{}", directory, round % 2));
      trainer.step();
      trainer.engine().saveWait();
    }
  });
  return 0;
}

TEST(Kill, AtRandomMomentsOfSavingLeavesTheLastCheckpointWhole) {
  const peal::test::ScratchFolder folder("peal-kill-");
  const std::string directory = folder.path();
  constexpr unsigned kSeed = 20261130;
  std::mt19937 random(kSeed);
  int leftovers = 0;
  for (int kill = 0; kill < kKills; ++kill) {
    Processes saver(1, [&](const Child& child) { return saveForever(child, directory); });
    ASSERT_TRUE(saver.waitForMessage(0, peal::test::kHangs)) << kill;
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 40'000));
    saver.kill(0);
    const std::vector<ChildResult> ended = saver.wait(peal::test::kHangs);
    ASSERT_EQ(ended[0].signal, SIGKILL) << ended[0].message;
    verifyAll(directory + "/same");
    const std::string latest = latestCheckpoint(directory);
    ASSERT_FALSE(latest.empty());
    verifyAll(latest);
    for (const auto& entry : fs::directory_iterator(directory)) {
      leftovers += entry.path().filename().string().find(".saving-") != std::string::npos ? 1 : 0;
    }
  }
  EXPECT_GT(leftovers, 0) << "no kill met a save in flight";
  onRanks(3, [&](int rank, pealComm_t comm) {
    Trainer trainer(comm, rank, savedOptions(), savedShape());
    trainer.engine().load(directory + "/same");
    trainer.engine().save(directory + "/after");
  });
  EXPECT_LE(entriesOf(directory), 4u);  // same, round0, round1, after: no leftovers
}

TEST(DiskFull, IsAnErrorOnAllRanksAndLeavesTheOldCheckpoint) {
  const peal::test::ScratchFolder folder("peal-full-");
  const std::string directory = folder.path();
  const auto body = [&](const Child&) {
    signal(SIGXFSZ, SIG_IGN);
    onRanks(2, [&](int rank, pealComm_t comm) {
      Trainer trainer(comm, rank, savedOptions(), savedShape());
      trainer.engine().save(directory + "/a");
      trainer.step();
      pealBarrier(comm, nullptr);
      const rlimit limit{300'000, 300'000};
      EXPECT_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
      pealBarrier(comm, nullptr);
      for (const bool beside : {false, true}) {
        try {
          if (beside) {
            trainer.engine().saveBegin(directory + "/a");
            trainer.engine().saveWait();
          } else {
            trainer.engine().save(directory + "/a");
          }
          ADD_FAILURE() << "saved more than the limit";
        } catch (const Failure& failure) {
          EXPECT_NE(std::string(failure.what()).find("File too large"), std::string::npos) << failure.what();
          EXPECT_NE(std::string(failure.what()).find("at offset"), std::string::npos) << failure.what();
        }
      }
      EXPECT_EQ(trainer.step().step, 2u);
    });
    return 0;
  };
  peal::test::expectAllSucceeded(peal::test::runProcesses(1, peal::test::kHangs, body));
  EXPECT_EQ(verifyAll(directory + "/a"), 0u);
  EXPECT_EQ(entriesOf(directory), 1u);
}

}  // namespace
}  // namespace peal::zero::test
