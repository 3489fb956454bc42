// What the simulator varies between runs. Read from the environment once (CUDASIM_WEAK=1 and so on: the table
// is in options.cpp), and changed by tests between runs, so that one program goes through seeds and modes.
#pragma once
#include <cstdint>
#include <span>

namespace peal::cudasim {

struct Options {
  int64_t seed;            // of everything that is random
  int64_t random;          // 1: the next thread to run is drawn; 0: each in turn
  int64_t starve;          // 1: one block at a time hardly runs (implies random)
  int64_t preemptEvery;    // random: accesses of memory between forced switches, on average
  int64_t weak;            // 1: weak memory (weak_memory.h)
  int64_t drainPerMille;   // weak: how often an access lets one delayed store through
  int64_t stalePercent;    // weak: how often a weak load finds the block's old copy, where it has one
  int64_t delayPercent;    // weak: how many relaxed stores are delayed as weak ones are
  int64_t residentBlocks;  // blocks that run at once on a device; 0: any number
  int64_t deadlockPolls;   // alone: polls in vain of every thread before it is a deadlock
  int64_t timeoutMs;       // without any change of memory, before the run ends with a report
  int64_t stackBytes;      // of a thread
  int64_t sites;           // 1: threads of a block that meet at different barriers of the source are an error
};

struct OptionInfo {
  const char* name;  // the environment variable
  int64_t Options::*value;
  int64_t defaultValue, least, most;
  const char* help;
};
std::span<const OptionInfo> optionTable();

// This process's options. Change them only while no grid runs.
Options& options();
// The defaults of the table, whatever the environment says.
Options defaultOptions();

}  // namespace peal::cudasim
