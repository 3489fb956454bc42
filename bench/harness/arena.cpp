#include "bench/harness/arena.h"

#include <fmt/format.h>
#include <sys/mman.h>

#include <cerrno>
#include <cstring>

#include "tools/common/error.h"

namespace peal::bench {
namespace {

// The pattern depends on the place, so that a copy of one guard byte to another is seen too.
std::byte guardByte(int64_t at) { return static_cast<std::byte>(0xa5 ^ (at * 37)); }

}  // namespace

Arena::Arena(size_t capacityBytes, size_t mostShiftBytes, Placement placement, pealComm_t comm)
    : allocatedBytes_(capacityBytes + mostShiftBytes + 2 * kGuardBytes), placement_(placement), comm_(comm) {
  if (placement == Placement::Registered) {
    tools::check(pealMemAlloc(&memory_, allocatedBytes_), "pealMemAlloc");
    const pealResult_t registered = pealCommRegister(comm_, memory_, allocatedBytes_, &handle_);
    if (registered != pealSuccess) {
      pealMemFree(memory_);
    }
    tools::check(registered, "pealCommRegister", comm_);
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

void Arena::shift(size_t shiftBytes) { data_ = static_cast<std::byte*>(memory_) + kGuardBytes + shiftBytes; }

Arena::~Arena() {
  if (placement_ == Placement::Registered) {
    pealCommDeregister(comm_, handle_);
    pealMemFree(memory_);
  } else {
    munmap(memory_, allocatedBytes_);
  }
}

void Arena::fillGuards(size_t usedBytes) {
  for (int64_t before = -static_cast<int64_t>(kGuardBytes); before < 0; ++before) {
    data_[before] = guardByte(before);
  }
  for (size_t after = usedBytes; after < usedBytes + kGuardBytes; ++after) {
    data_[after] = guardByte(static_cast<int64_t>(after));
  }
}

uint64_t Arena::damagedGuardBytes(size_t usedBytes, int64_t* firstAt) const {
  uint64_t damaged = 0;
  const auto look = [&](int64_t at) {
    if (data_[at] != guardByte(at) && damaged++ == 0) {
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
