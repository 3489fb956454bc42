// The runtime of this process: the machine it pretends, and the tables of what is alive. One mutex guards all
// of it; nothing runs while it is held but bookkeeping. Seen by the files of runtime/ only.
#pragma once
#include <cuda_runtime.h>

#include <array>
#include <atomic>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "tests/cudasim/include/cudasim/runtime.h"
#include "tests/cudasim/runtime/engine.h"
#include "tests/cudasim/runtime/events.h"
#include "tests/cudasim/runtime/graphs.h"
#include "tests/cudasim/runtime/memory.h"
#include "tests/cudasim/runtime/pieces.h"

namespace peal::cudasim {

constexpr int kMostDevices = 64;  // of a process: bits of core's Allocation::devices

struct Runtime {
  std::mutex mutex;

  Machine machine;
  std::set<std::pair<int, int>> peers;  // (device, peer) with access enabled
  std::map<int, cudaError_t> lost;      // devices that a trap has made useless to this process
  std::array<std::atomic<bool>, kMostDevices> cancelled{};  // kernels of this device shall end
  std::vector<std::string> trapReports;
  std::atomic<bool> trapsAreErrors = false;

  Engine engine;
  MemoryTable memory;
  PieceTable pieces;
  EventTable events;
  GraphTable graphs;

  // Never the same twice, and no address.
  template <class Handle>
  Handle nextHandle() {
    return reinterpret_cast<Handle>(uintptr_t{0x600000000000} + 16 * ++handles_);
  }
  // A device of this process as the machine numbers it.
  int physical(int device) const {
    return machine.visible.empty() ? device : machine.visible[static_cast<size_t>(device)];
  }
  int visibleDevices() const {
    return machine.visible.empty() ? machine.devices : static_cast<int>(machine.visible.size());
  }
  // The other way round; -1: the machine's device is not visible here.
  int visibleNumber(int physicalDevice) const {
    for (int device = 0; device < visibleDevices(); ++device) {
      if (physical(device) == physicalDevice) {
        return device;
      }
    }
    return -1;
  }
  // Whether a device of this process can address memory of one of the machine.
  bool reachesPhysical(int device, int physicalDevice) const {
    const int own = physical(device);
    return own == physicalDevice || !machine.peerAccess || machine.peerAccess(own, physicalDevice);
  }
  cudaError_t lostOr(int device, cudaError_t error) const {
    const auto found = lost.find(device);
    return found != lost.end() ? found->second : error;
  }
  bool isDevice(int device) const { return device >= 0 && device < visibleDevices(); }
  bool mayAccess(int device, int peer) const {  // whether peer access can be enabled
    return device != peer && (!machine.peerAccess || machine.peerAccess(physical(device), physical(peer)));
  }

 private:
  uintptr_t handles_ = 0;
};

Runtime& runtime();
// Whether this is a child of fork() whose parent had used the runtime.
bool isForkedCopy();

// Shared memory of a multiprocessor of this machine.
size_t sharedPerMultiprocessor(const Machine& machine);
// A function's name if the program's symbols tell it, else its address.
std::string symbolName(const void* function);
// Reports of host code that touches device memory; once for a process.
void watchForHostFaults();

// Of the calling thread.
int currentDevice();
void setCurrentDevice(int device);

}  // namespace peal::cudasim
