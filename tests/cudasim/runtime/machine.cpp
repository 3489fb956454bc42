// The machine that a process starts with, from the environment.
#include <cstdio>
#include <cstdlib>
#include <sstream>

#include "tests/cudasim/runtime/state.h"

namespace peal::cudasim {
namespace {

int numberFrom(const char* name, int least, int most, int otherwise) {
  const char* text = std::getenv(name);
  if (text == nullptr) {
    return otherwise;
  }
  char* end = nullptr;
  const long value = std::strtol(text, &end, 10);
  if (end == text || *end != '\0' || value < least || value > most) {
    std::fprintf(stderr, "cudasim: %s=%s: expected a number between %d and %d\n", name, text, least, most);
    std::_Exit(2);
  }
  return static_cast<int>(value);
}

}  // namespace

Machine machineFromEnvironment() {
  Machine machine;
  machine.devices = numberFrom("CUDASIM_DEVICES", 0, kMostDevices, machine.devices);
  machine.driverVersion = numberFrom("CUDASIM_DRIVER", 0, 99990, machine.driverVersion);
  const int capability = numberFrom("CUDASIM_CC", 10, 999, 90);
  machine.capabilityMajor = capability / 10;
  machine.capabilityMinor = capability % 10;
  machine.multiprocessors = numberFrom("CUDASIM_SMS", 1, 1024, machine.multiprocessors);
  machine.blocksPerMultiprocessor =
      numberFrom("CUDASIM_BLOCKS_PER_SM", 1, 32, machine.blocksPerMultiprocessor);
  machine.memoryBytes = static_cast<size_t>(numberFrom("CUDASIM_MEMORY_MIB", 1, 1 << 20,
                                                       static_cast<int>(machine.memoryBytes >> 20)))
                        << 20;
  machine.ipc = numberFrom("CUDASIM_IPC", 0, 1, 1) == 1;
  if (numberFrom("CUDASIM_PEER_ACCESS", 0, 1, 1) == 0) {
    machine.peerAccess = [](int, int) { return false; };
  }
  if (const char* text = std::getenv("CUDA_VISIBLE_DEVICES")) {
    std::istringstream list(text);
    // As the driver does: the first number that is no device ends the list.
    for (std::string item; std::getline(list, item, ',');) {
      char* end = nullptr;
      const long device = std::strtol(item.c_str(), &end, 10);
      if (end == item.c_str() || *end != '\0' || device < 0 || device >= machine.devices) {
        break;
      }
      machine.visible.push_back(static_cast<int>(device));
    }
    if (machine.visible.empty()) {
      machine.devices = 0;
    }
  }
  return machine;
}

size_t sharedPerMultiprocessor(const Machine& machine) {
  return static_cast<size_t>(machine.capabilityMajor >= 9 ? 228 : 164) << 10;
}

}  // namespace peal::cudasim
