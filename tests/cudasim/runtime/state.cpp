#include "tests/cudasim/runtime/state.h"

#include <cxxabi.h>
#include <dlfcn.h>
#include <fmt/format.h>
#include <pthread.h>

#include <algorithm>
#include <cstdlib>
#include <memory>

#include "tests/cudasim/core/options.h"
#include "tests/cudasim/runtime/api.h"
#include "tests/cudasim/runtime/calls.h"
#include "tests/cudasim/runtime/kernels.h"

namespace peal::cudasim {
namespace {

// Never destroyed: streams' threads may outlive main.
std::atomic<Runtime*> instance{nullptr};
std::mutex making;
std::atomic<bool> forkedCopy{false};
// A thread's device counts from 0 again after a restart.
std::atomic<uint64_t> generation{1};
thread_local int device = 0;
thread_local uint64_t deviceGeneration = 0;

void setMachine(Runtime& all, const Machine& machine) {
  all.machine = machine;
  // Core's cap if it is lower, so that a process has room for its threads' stacks.
  static const int64_t most = options().residentBlocks;
  options().residentBlocks =
      std::min(most, int64_t{machine.multiprocessors} * machine.blocksPerMultiprocessor);
}

Runtime* makeRuntime() {
  auto* made = new Runtime;
  setMachine(*made, machineFromEnvironment());
  const char* traps = std::getenv("CUDASIM_TRAPS");
  made->trapsAreErrors = traps != nullptr && std::string(traps) == "error";
  return made;
}

}  // namespace

Runtime& runtime() {
  if (Runtime* made = instance.load()) {
    return *made;
  }
  const std::lock_guard lock(making);
  if (instance.load() == nullptr) {
    static const int watchesForks = pthread_atfork(nullptr, nullptr, [] { forkedCopy = true; });
    (void)watchesForks;
    watchForHostFaults();
    instance = makeRuntime();
  }
  return *instance.load();
}

bool isForkedCopy() { return forkedCopy.load(); }

int currentDevice() {
  if (deviceGeneration != generation.load()) {
    deviceGeneration = generation.load();
    device = 0;
  }
  return device;
}

void setCurrentDevice(int chosen) {
  deviceGeneration = generation.load();
  device = chosen;
}

std::string symbolName(const void* function) {
  Dl_info info{};
  if (dladdr(function, &info) == 0 || info.dli_sname == nullptr || info.dli_saddr != function) {
    return fmt::format("the kernel at {}", function);
  }
  const std::unique_ptr<char, void (*)(void*)> text(
      abi::__cxa_demangle(info.dli_sname, nullptr, nullptr, nullptr), std::free);
  return text ? text.get() : info.dli_sname;
}

// ---- cudasim/runtime.h ----

void restart(const Machine& machine) {
  Runtime& all = runtime();
  Lock lock(all.mutex);
  for (std::atomic<bool>& cancelled : all.cancelled) {
    cancelled = true;
  }
  all.engine.stop(lock);
  all.graphs.clear(lock);
  all.events.clear();
  all.memory.removeAll(lock);
  all.pieces.removeAll();
  all.peers.clear();
  all.lost.clear();
  all.trapReports.clear();
  for (std::atomic<bool>& cancelled : all.cancelled) {
    cancelled = false;
  }
  setMachine(all, machine);
  forgetKernelAttributes();
  generation++;
  setLastError(cudaSuccess);
  restartCalls();
}

void restart() { restart(machineFromEnvironment()); }

void restartAfterFork() {
  generation++;
  setLastError(cudaSuccess);
  if (forkedCopy.exchange(false)) {
    instance.load()->memory.forgetAll();
    instance = makeRuntime();  // the parent's is left as it was: its locks may be held
  }
  restartCalls();
}

void setTraps(Traps traps) { runtime().trapsAreErrors = traps == Traps::Error; }

std::vector<std::string> trapReports() {
  Runtime& all = runtime();
  const Lock lock(all.mutex);
  return all.trapReports;
}

std::vector<std::string> liveObjects() {
  Runtime& all = runtime();
  Lock lock(all.mutex);
  all.graphs.settle(lock);
  std::vector<std::string> lines;
  all.memory.describe(lines);
  all.pieces.describe(lines);
  for (const StreamRef& stream : all.engine.userStreams(lock)) {
    lines.push_back("cudaStreamCreate: stream " + std::to_string(stream->id) + " of device " +
                    std::to_string(stream->device));
  }
  all.events.describe(lines);
  all.graphs.describe(lines);
  return lines;
}

std::string describeStreams() {
  Runtime& all = runtime();
  Lock lock(all.mutex);
  return all.engine.describe(lock);
}

void settle() {
  Runtime& all = runtime();
  Lock lock(all.mutex);
  all.graphs.settle(lock);
}

}  // namespace peal::cudasim
