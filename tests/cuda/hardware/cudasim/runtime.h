// Stands in for the simulator's header where its tests run on real GPUs (tools/gpu-check): the machine is
// what it is, and nobody can tell what is alive.
#pragma once
#include <chrono>
#include <functional>
#include <string>
#include <thread>
#include <vector>

namespace peal::cudasim {

struct Machine {
  int devices = 0, multiprocessors = 0, blocksPerMultiprocessor = 0;
  std::function<bool(int device, int peer)> peerAccess;
};
inline void restartAfterFork() {}
inline void restart(const Machine&) {}
inline std::vector<std::string> liveObjects() { return {}; }
// CUDA tells that a graph is gone on a thread of its own.
inline void settle() { std::this_thread::sleep_for(std::chrono::milliseconds(50)); }

}  // namespace peal::cudasim
