// Reading another process's memory with process_vm_readv: whether the system lets peers do it, tried rather
// than guessed.
#pragma once
#include <sys/types.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

namespace peal::shm {

using Cookie = std::array<uint8_t, 16>;

// Where the other side may try to read this process: if it finds `cookie` at `address`, it can.
struct Probe {
  uint64_t address;
  Cookie cookie;
};

// Lets peers read this process where the system asks for its consent (Yama's mode 1).
void allowPeersToRead();

bool canReadProbe(pid_t pid, const Probe& probe);

// Copies [address, address + bytes) of that process. Empty text: done; else the reason.
std::string readProcess(pid_t pid, uint64_t address, void* destination, size_t bytes);

// Why reading between processes works or does not, as far as one process alone can tell. `works` is set.
std::string describeCrossRead(bool& works);

}  // namespace peal::shm
