#include "bench/harness/arena.h"

#include <fmt/format.h>
#include <sys/mman.h>

#include <cerrno>
#include <cstring>

#include "bench/harness/gpu.h"
#include "tools/common/error.h"

namespace peal::bench {
namespace {

// The pattern depends on the place, so that a copy of one guard byte to another is seen too.
std::byte guardByte(int64_t at) { return static_cast<std::byte>(0xa5 ^ (at * 37)); }

}  // namespace

Arena::Arena(size_t capacityBytes, size_t mostShiftBytes, Placement placement, pealComm_t comm, int device)
    : allocatedBytes_(capacityBytes + mostShiftBytes + 2 * kGuardBytes),
      placement_(placement),
      comm_(comm),
      device_(device) {
  const bool onDevice = device != PEAL_DEVICE_HOST;
  if (onDevice) {
    mirror_ = std::make_unique<std::byte[]>(allocatedBytes_);
  }
  if (placement == Placement::Registered) {
    tools::check(onDevice ? pealMemAllocDevice(&memory_, allocatedBytes_, device)
                          : pealMemAlloc(&memory_, allocatedBytes_),
                 onDevice ? "pealMemAllocDevice" : "pealMemAlloc");
    const pealResult_t registered = pealCommRegister(comm_, memory_, allocatedBytes_, &handle_);
    if (registered != pealSuccess) {
      pealMemFree(memory_);
    }
    tools::check(registered, "pealCommRegister", comm_);
  } else if (onDevice) {
    memory_ = allocateOnDevice(allocatedBytes_);
  } else {
    memory_ = mmap(nullptr, allocatedBytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory_ == MAP_FAILED) {
      throw tools::ToolError(
          fmt::format("cannot allocate {} bytes: {}. Ask for smaller sizes or fewer ranks.", allocatedBytes_,
                      strerror(errno)));
    }
  }
  shift(0);
}

void Arena::shift(size_t shiftBytes) { data_ = memory() + kGuardBytes + shiftBytes; }

Arena::~Arena() {
  if (placement_ == Placement::Registered) {
    pealCommDeregister(comm_, handle_);
    pealMemFree(memory_);
  } else if (device_ != PEAL_DEVICE_HOST) {
    freeOnDevice(memory_);
  } else {
    munmap(memory_, allocatedBytes_);
  }
}

void Arena::upload(size_t usedBytes) const {
  if (mirror_ != nullptr) {
    copyToDevice(data_ - kGuardBytes, host() - kGuardBytes, usedBytes + 2 * kGuardBytes);
  }
}

void Arena::download(size_t usedBytes) const {
  if (mirror_ != nullptr) {
    copyFromDevice(host() - kGuardBytes, data_ - kGuardBytes, usedBytes + 2 * kGuardBytes);
  }
}

void Arena::fillGuards(size_t usedBytes) {
  for (int64_t before = -static_cast<int64_t>(kGuardBytes); before < 0; ++before) {
    host()[before] = guardByte(before);
  }
  for (size_t after = usedBytes; after < usedBytes + kGuardBytes; ++after) {
    host()[after] = guardByte(static_cast<int64_t>(after));
  }
}

uint64_t Arena::damagedGuardBytes(size_t usedBytes, int64_t* firstAt) const {
  uint64_t damaged = 0;
  const auto look = [&](int64_t at) {
    if (host()[at] != guardByte(at) && damaged++ == 0) {
      *firstAt = at;
    }
  };
  for (int64_t before = -static_cast<int64_t>(kGuardBytes); before < 0; ++before) {
    look(before);
  }
  for (size_t after = usedBytes; after < usedBytes + kGuardBytes; ++after) {
    look(static_cast<int64_t>(after));
  }
  return damaged;
}

}  // namespace peal::bench
