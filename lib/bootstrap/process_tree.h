// Who started this process: its ancestors, as /proc shows them. Launchers hand their variables down to all
// that they start, so only the tree tells which of two launchers stands nearer, and what one job is.
#pragma once
#include <string>
#include <vector>

namespace peal {

struct Ancestor {
  int processId = 0;
  std::string startTime;  // in ticks since the machine started: with the id, never used twice
};

// The parent first. Ends early at a process that may not be looked at.
std::vector<Ancestor> ancestors();

// Whether the process was started with that variable. A process that may not be looked at counts as not.
bool startedWith(int processId, const std::string& variable);

}  // namespace peal
