// C entry points: memory that peers read in place, of the host and of GPUs.
#include <fmt/format.h>

#include "lib/api/api.h"
#include "lib/executor/device_executor.h"
#include "lib/memory/registry.h"

using namespace peal;
using namespace peal::api;

pealResult_t pealMemAlloc(void** ptr, size_t size) {
  return guarded([&]() -> Result<void> {
    if (ptr == nullptr) {
      return nullArgument("pealMemAlloc", "ptr");
    }
    *ptr = nullptr;
    if (size == 0) {
      return {};
    }
    Result<void*> memory = allocateShared(size);
    if (!memory) {
      return memory.error();
    }
    *ptr = *memory;
    return {};
  });
}

pealResult_t pealMemAllocDevice(void** ptr, size_t size, int device) {
  return guarded([&]() -> Result<void> {
    if (ptr == nullptr) {
      return nullArgument("pealMemAllocDevice", "ptr");
    }
    *ptr = nullptr;
    if (device < 0) {
      return Error{pealInvalidArgument,
                   fmt::format("pealMemAllocDevice: device is {}; it is a GPU's number, from 0. pealMemAlloc "
                               "gives host memory.",
                               device)};
    }
    if (size == 0) {
      return {};
    }
    Result<void*> memory = allocateDevice(device, size);
    if (!memory) {
      return memory.error();
    }
    *ptr = *memory;
    return {};
  });
}

pealResult_t pealMemFree(void* ptr) {
  return guarded([&]() -> Result<void> {
    if (ptr == nullptr) {
      return {};
    }
    return isDeviceAllocation(ptr) ? freeDevice(ptr) : freeShared(ptr);
  });
}

pealResult_t pealCommRegister(const pealComm_t comm, void* buff, size_t size, void** handle) {
  return guarded([&]() -> Result<void> {
    PEAL_TRY(checkComm("pealCommRegister", comm));
    if (buff == nullptr || handle == nullptr) {
      return nullArgument("pealCommRegister", buff == nullptr ? "buff" : "handle");
    }
    if (size == 0) {
      return Error{pealInvalidArgument, "pealCommRegister: size is 0; there is nothing to register."};
    }
    const CommUse use(*comm);
    Communicator& communicator = *comm->comm;
    Result<uint64_t> id =
        communicator.onDevice() ? communicator.registerBuffer(buff, size) : registerRange(buff, size);
    if (!id) {
      return id.error();
    }
    *handle = reinterpret_cast<void*>(static_cast<uintptr_t>(*id));
    return {};
  });
}

pealResult_t pealCommDeregister(const pealComm_t comm, void* handle) {
  return guarded([&]() -> Result<void> {
    PEAL_TRY(checkComm("pealCommDeregister", comm));
    if (handle == nullptr) {
      return nullArgument("pealCommDeregister", "handle");
    }
    const CommUse use(*comm);
    const auto id = static_cast<uint64_t>(reinterpret_cast<uintptr_t>(handle));
    return comm->comm->onDevice() ? comm->comm->deregisterBuffer(id) : deregisterRange(id);
  });
}
