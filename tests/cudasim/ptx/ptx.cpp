#include <mutex>
#include <vector>

#include "tests/cudasim/core/buffer.h"
#include "tests/cudasim/core/scheduler.h"
#include "tests/cudasim/ptx/memory.h"

namespace peal::cudasim::ptx {
namespace {

char staticSharedKey;  // of the one shared variable that holds all of a kernel's

}  // namespace

u64 moduleVariable(size_t sizeBytes, std::initializer_list<unsigned char> initial) {
  static std::mutex mutex;
  static auto& variables = *new std::vector<DeviceBuffer>;  // kernels may run until the process ends
  const std::lock_guard lock(mutex);
  const DeviceBuffer& variable = variables.emplace_back(sizeBytes);
  auto* const bytes = variable.host<unsigned char>();
  std::fill_n(std::copy(initial.begin(), initial.end(), bytes), sizeBytes - initial.size(), 0);
  return variable.base();
}

void putAddress(u64 variable, size_t offset, u64 address) {
  std::memcpy(toHost(pointer<std::byte>(variable)) + offset, &address, sizeof address);
}

void enterKernel(size_t staticSharedBytes, u32 maxThreads) {
  const Fiber& fiber = self();
  if (maxThreads != 0 && fiber.block->threads > maxThreads) {
    trap(TrapKind::Launch, "%u threads in a block of a kernel that was compiled for at most %u",
         fiber.block->threads, maxThreads);
  }
  if (staticSharedBytes != 0 &&
      sharedVariable(&staticSharedKey, staticSharedBytes, 128) != static_cast<void*>(sharedBase())) {
    trap(TrapKind::SharedMemory, "a kernel's static shared memory does not start at offset 0");
  }
}

u64 dynamicSharedOffset() { return genericToShared(reinterpret_cast<uintptr_t>(dynamicShared())); }

bool isInLocal(u64 generic) {
  const Context& context = self().context;
  return generic - reinterpret_cast<uintptr_t>(context.stack) < context.stackBytes;
}

std::byte* sharedAt(u64 offset, size_t bytes) {
  offset = static_cast<u32>(offset);  // addresses of 32 bits wrap
  if (offset % bytes != 0) {
    trap(TrapKind::Misaligned, "access of %zu bytes at 0x%llx of shared memory", bytes,
         static_cast<unsigned long long>(offset));
  }
  if (offset + bytes > sharedBytes()) {
    trap(TrapKind::OutOfBounds, "access of %zu bytes at 0x%llx of shared memory, of which there are %zu",
         bytes, static_cast<unsigned long long>(offset), sharedBytes());
  }
  return sharedBase() + offset;
}

}  // namespace peal::cudasim::ptx
