#include "tests/cudasim/ptx/memory.h"

#include <memory>
#include <mutex>
#include <vector>

#include "tests/cudasim/core/buffer.h"
#include "tests/cudasim/core/options.h"
#include "tests/cudasim/core/run.h"

namespace peal::cudasim::ptx {
namespace {

char staticSharedKey;

}  // namespace

u64 moduleVariable(size_t sizeBytes, std::initializer_list<unsigned char> initial) {
  static std::mutex mutex;
  static auto& variables = *new std::vector<DeviceBuffer>;  // kernels may run until the process ends
  const std::lock_guard lock(mutex);
  DeviceBuffer& variable = variables.emplace_back(sizeBytes);
  variable.fill(0);
  std::copy(initial.begin(), initial.end(), variable.host<unsigned char>());
  return variable.base();
}

void putAddress(u64 variable, size_t offset, u64 address) {
  std::memcpy(toHost(pointer<std::byte>(variable)) + offset, &address, sizeof address);
}
}  // namespace peal::cudasim::ptx
