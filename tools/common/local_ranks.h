// Ranks as processes of this machine: fork, hand out the unique id, wait, clean up.
//
// Called by tools with --ranks N, before the parent has made a thread or a communicator. The parent never
// joins a communicator itself; it leaves no process behind, whatever way it ends.
#pragma once
#include <functional>

#include "peal/peal.h"

namespace peal::tools {

// What a forked rank knows.
class LocalRank {
 public:
  LocalRank(int rank, int size, int idReadFd, int idWriteFd)
      : rank_(rank), size_(size), idReadFd_(idReadFd), idWriteFd_(idWriteFd) {}
  int rank() const { return rank_; }
  int size() const { return size_; }
  // One id for all ranks: rank 0 makes it, the others read it from a pipe. Call it once, on every rank.
  // Throws ToolError if rank 0 ended before it made one.
  pealUniqueId takeUniqueId();

 private:
  int rank_, size_;
  int idReadFd_, idWriteFd_;
};

struct LocalRanksOptions {
  // How long the others may take to end by themselves after a rank has failed, before they are killed.
  // Where all that are left are stopped (SIGSTOP), a second is enough.
  int graceMs = 10000;
};

// Runs body in `ranks` child processes and returns when all have ended: 0 if all returned 0, else the first
// failure's exit code, 128 + signal for a rank that a signal killed; the error output then has a sentence
// such as "rank 2 was killed by signal 9 (Killed)". What body throws becomes its rank's sentence and code.
// SIGINT, SIGTERM and SIGHUP end all ranks, then this process by the same signal. Children die with the
// parent.
int runLocalRanks(int ranks, const std::function<int(LocalRank&)>& body,
                  const LocalRanksOptions& options = {});

}  // namespace peal::tools
