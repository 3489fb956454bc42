// What becomes of a save whose last step, bringing the parent directory to the disk, fails. Not in builds
// with sanitizers, which have an fsync of their own.
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>

#include "tests/zero/checkpoint_support.h"

namespace {

std::atomic<ino_t> failingDirectory{0};

}  // namespace

extern "C" int fsync(int file) {
  struct stat status {};
  if (fstat(file, &status) == 0 && status.st_ino == failingDirectory.load()) {
    errno = EIO;
    return -1;
  }
  return static_cast<int>(syscall(SYS_fsync, file));
}

namespace peal::zero::test {
namespace {

TEST(CheckpointSync, NeitherCheckpointIsLostIfTheParentCannotBeBroughtToTheDisk) {
  const CheckpointDirectory directory;
  struct stat status {};
  ASSERT_EQ(stat(directory.path().c_str(), &status), 0);
  const std::string path = directory / "saved";
  onRanks(2, [&](int rank, pealComm_t comm) {
    Trainer trainer(comm, rank, checkpointOptions(1), unevenShape());
    trainer.step();
    trainer.engine().save(path);
    trainer.step();
    failingDirectory.store(status.st_ino);
    const std::string told =
        failureOf(rank == 0 ? pealSystemError : pealRemoteError, [&] { trainer.engine().save(path); });
    EXPECT_CONTAINS(told, path + " is the new checkpoint and whole");
    EXPECT_CONTAINS(told, "; the older one is in " + path + ".saving-");
    // The next save begins by removing what an earlier one left, and does not while that fails.
    trainer.step();
    EXPECT_CONTAINS(
        failureOf(rank == 0 ? pealSystemError : pealRemoteError, [&] { trainer.engine().save(path); }),
        directory.path());
  });
  failingDirectory.store(0);
  EXPECT_EQ(Checkpoint(path).info().step, 2U);
  std::vector<std::string> names = directory.names();
  ASSERT_EQ(names.size(), 2U);
  std::sort(names.begin(), names.end());
  EXPECT_EQ(Checkpoint(directory / names[1]).info().step, 1U);
  saveModel(path, 2, 1);
  EXPECT_EQ(directory.names(), std::vector<std::string>{"saved"});
}

}  // namespace
}  // namespace peal::zero::test
