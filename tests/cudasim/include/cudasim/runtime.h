// What tests say to the simulated CUDA runtime and ask of it: which machine to pretend, which call to fail,
// what is still alive, and when held launches run. Included by tests only; host code under test sees
// <cuda_runtime.h> and nothing of this. tests/cudasim/README.md describes the semantics.
#pragma once
#include <cuda_runtime.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "tests/cudasim/core/run.h"

namespace peal::cudasim {

// ---- the machine ----

// All devices of a machine are alike. Devices are numbered twice: physically, the same in all processes of
// the machine, and as a process sees them. They differ if `visible` is not empty.
struct Machine {
  int devices = 8;                     // physical; 0: none
  std::vector<int> visible;            // physical numbers of this process's devices 0, 1, ...; empty: all
  int driverVersion = CUDART_VERSION;  // older than 13.0: cudaErrorInsufficientDriver; 0: no driver at all
  int capabilityMajor = 9, capabilityMinor = 0;
  int multiprocessors = 132;
  int blocksPerMultiprocessor = 32;  // resident at once; times multiprocessors: the cap for all of a
                                     // process's grids on a device together
  int threadsPerMultiprocessor = 2048;
  size_t memoryBytes = size_t{4} << 30;
  bool ipc = true;     // false: cudaErrorNotSupported from cudaIpc...
  bool dmabuf = true;  // false: cuMemGetHandleForAddressRange is not supported
  // Empty: devices order what a network's device writes to them. Else they do not, and this is what
  // cudaDeviceFlushGPUDirectRDMAWrites does. It must not call the runtime.
  std::function<void(int device)> flushWrites;
  bool canFlushWrites = true;  // false: they neither order nor flush
  // By physical numbers; empty: every pair has it.
  std::function<bool(int device, int peer)> peerAccess;
  // Empty: rank 0, access as above, native atomics where there is access.
  std::function<int(cudaDeviceP2PAttr attribute, int srcDevice, int dstDevice)> p2pAttribute;
};

// Defaults overridden by CUDASIM_DEVICES, CUDASIM_DRIVER, CUDASIM_CC (90), CUDASIM_SMS,
// CUDASIM_BLOCKS_PER_SM, CUDASIM_MEMORY_MIB, CUDASIM_IPC (0), CUDASIM_PEER_ACCESS (0) and
// CUDA_VISIBLE_DEVICES (2,3). The machine that a process starts with.
Machine machineFromEnvironment();

// Ends everything that is alive, device faults included, and starts again with this machine: a fresh process
// as far as CUDA is concerned. No other thread may be inside the runtime.
void restart(const Machine& machine);
void restart();  // with machineFromEnvironment()

// In a child of fork(), all calls return cudaErrorInitializationError if the parent had used the runtime, as
// on a GPU. This makes it a fresh process instead. Only in the child, before any other call.
void restartAfterFork();

// ---- faults of kernels ----

// What a trap (an illegal access, a deadlock, halt()) does to the process.
enum class Traps {
  End,   // prints its report and ends the process: the default, so that no test overlooks one
  Error  // as on a GPU: the device is lost to this process, all calls that use it return the error
};
void setTraps(Traps traps);  // CUDASIM_TRAPS=error sets it for a process
// The reports of traps since the last restart.
std::vector<std::string> trapReports();

// ---- error injection ----

// The n-th call (from 1) from now on of this function, or of any function for "*", returns `error`. Calls
// that make something do nothing then; calls that end something (cudaFree, cudaStreamDestroy, ...) do it all
// the same, since a GPU reports errors of earlier work there. cudaSuccess: an error that suits the function.
// CUDASIM_FAIL=function:n[:error] does it for a process; the error by name or number.
void failCall(const std::string& function, uint64_t n, cudaError_t error = cudaSuccess);
// Takes every failCall back.
void failNothing();

// Calls of this process since the last restart or countCalls(), in order. Queries of errors do not count.
uint64_t callCount();
uint64_t callCount(const std::string& function);
std::string callName(uint64_t n);  // of the n-th, from 1
void countCalls();                 // from zero again
// CUDASIM_CALLS_FILE=path: the process appends the names of its calls, a line each, when it exits.

// ---- what is alive ----

// Allocations, pinned and registered ranges, IPC mappings, streams, events, graphs, executable graphs and
// user objects: a line each. Default streams do not count. Waits for destructors of user objects that are
// due.
std::vector<std::string> liveObjects();
// What every stream is doing: for a watchdog's report.
std::string describeStreams();
// Waits until the destructors of user objects that are due have run (on a thread of their own, as on a GPU).
void settle();

// ---- deterministic runs ----

// While a Hold lives, streams only collect: nothing of what is issued runs. run(), the end of the Hold, and
// every call of its thread that waits for a device (cudaStreamSynchronize, cudaFree, ...) run all of it on
// that thread, in this order, until nothing is left:
//   1. streams in the order of their creation: each runs its copies, host functions and events in order, up
//   to
//      a kernel or a wait for an event that has not happened;
//   2. then the kernels at the heads of all streams run together, as one program of core's seeded scheduler.
//      A kernel that becomes ready when another ends joins the running ones at once.
// So the same issue order and seed give the same execution. Other threads may issue; their waits last until
// the holder runs. One Hold at a time.
class Hold {
 public:
  // Alone: nobody else writes meanwhile what the kernels read, so that a deadlock is found at once. Shared:
  // other threads of the process may, for instance to stop kernels.
  explicit Hold(World world = World::Alone);
  ~Hold();
  Hold(const Hold&) = delete;
  Hold& operator=(const Hold&) = delete;
  void run();
};

// ---- driver functions ----

// cudaGetDriverEntryPointByVersion finds `function` under this name from now on; nullptr: not any more. Known
// from the start: cuMemGetAddressRange, cuMemGetHandleForAddressRange, cuPointerGetAttribute, cuGetErrorName,
// cuGetErrorString, and those of memory by pieces (runtime/pieces_api.cpp).
void setDriverFunction(const std::string& name, void* function);

// Attributes that cudaFuncGetAttributes reports of a kernel; the simulator cannot know registers or spills.
void setKernelAttributes(const void* kernel, const cudaFuncAttributes& attributes);

}  // namespace peal::cudasim
