// Registering a GPU's memory with a NIC, for whoever sends from it: first as a dmabuf, the kernel's own way,
// then through a peer memory module (nvidia_peermem).
//
// Not verified on hardware: soft-RoCE refuses both, so tests reach only the order of attempts and the errors.
#pragma once
#include <cstddef>

#include "transports/verbs/memory.h"

namespace peal::verbs {

// `dmabufFile` is the descriptor that the GPU's driver gave for [address, address + bytes), -1: it gave none.
// The error says what each way answered.
Result<Registration> registerDeviceMemory(Device& device, void* address, size_t bytes, int dmabufFile,
                                          int access);

}  // namespace peal::verbs
