// Where a rank runs: for the preamble of the table, so that a number is never read without its machine.
#pragma once
#include <cstdint>
#include <string>

namespace peal::bench {

std::string hostName();
std::string cpuModel();
int allowedCpus();          // in this process's affinity mask
std::string loadAverage();  // of 1, 5 and 15 minutes, as the system prints it
uint64_t availableMemoryBytes();

struct ProcessMemory {
  uint64_t residentBytes = 0, peakBytes = 0;
};
ProcessMemory processMemory();

std::string timestamp();  // "2026-11-29 17:48:53", local time

}  // namespace peal::bench
