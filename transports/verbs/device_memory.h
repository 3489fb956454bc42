// Registering a GPU's memory with a NIC: first as a dmabuf, the kernel's own way, then through a peer memory
// module (nvidia_peermem).
//
// Nobody calls it yet: messages of GPUs go through the proxy's host memory. Not tested, not verified on
// hardware; soft-RoCE refuses both ways.
#pragma once
#include <cstddef>

#include "transports/verbs/memory.h"

namespace peal::verbs {

// `dmabufFile` is the descriptor that the GPU's driver gave for [address, address + bytes), -1: it gave none.
// The error says what each way answered.
Result<Registration> registerDeviceMemory(Device& device, void* address, size_t bytes, int dmabufFile,
                                          int access);

}  // namespace peal::verbs
