#include "tests/cudasim/core/fiber.h"

#include <pthread.h>
#include <sys/mman.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "tests/cudasim/core/sanitizers.h"

// Saves what the calling convention lets a callee not destroy, changes stacks, restores. The control words of
// the floating point units are never changed by kernels, so they stay.
extern "C" void pealCudasimSwitch(void** saved, void* loaded);
asm(R"(
.text
.globl pealCudasimSwitch
.hidden pealCudasimSwitch
.type pealCudasimSwitch,@function
pealCudasimSwitch:
  .cfi_startproc
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
  .cfi_endproc
.size pealCudasimSwitch,.-pealCudasimSwitch
)");

namespace peal::cudasim {
namespace {

constexpr size_t kStackPageBytes = 4096, kPatternBytes = 320;
constexpr uint64_t kPattern = 0x5ca1ab1e0ddba11;

size_t strideBytes(size_t stackBytes) { return stackBytes + kPatternBytes; }
size_t mappedBytes(size_t count, size_t stackBytes) {
  const size_t bytes = kStackPageBytes + count * strideBytes(stackBytes);
  return (bytes + kStackPageBytes - 1) / kStackPageBytes * kStackPageBytes;
}

// Mappings to use again, by size: making and touching them costs more than running a small kernel. Never
// destroyed, because streams of the simulated runtime may outlive static objects.
struct Pool {
  std::mutex mutex;  // guards `free`
  std::map<size_t, std::vector<std::byte*>> free;
};
Pool& pool() {
  static Pool* const instance = new Pool;
  return *instance;
}

std::byte* takeMapping(size_t bytes) {
  {
    const std::lock_guard lock(pool().mutex);
    std::vector<std::byte*>& free = pool().free[bytes];
    if (!free.empty()) {
      std::byte* memory = free.back();
      free.pop_back();
      unpoison(memory, bytes);  // frames of threads that never returned
      return memory;
    }
  }
  void* memory =
      mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) {
    return nullptr;
  }
  mprotect(memory, kStackPageBytes, PROT_NONE);
  return static_cast<std::byte*>(memory);
}

}  // namespace

Stacks::Stacks(size_t count, size_t stackBytes) : count_(count), stackBytes_(stackBytes) {
  memory_ = takeMapping(mappedBytes(count, stackBytes));
  for (size_t i = 0; memory_ != nullptr && i < count; ++i) {
    auto* pattern = reinterpret_cast<uint64_t*>(stack(i) - kPatternBytes);
    std::fill_n(pattern, kPatternBytes / sizeof *pattern, kPattern);
  }
}
Stacks::~Stacks() {
  if (memory_ != nullptr) {
    const std::lock_guard lock(pool().mutex);
    pool().free[mappedBytes(count_, stackBytes_)].push_back(memory_);
  }
}
Stacks::Stacks(Stacks&& other) noexcept
    : memory_(std::exchange(other.memory_, nullptr)), count_(other.count_), stackBytes_(other.stackBytes_) {}
Stacks& Stacks::operator=(Stacks&& other) noexcept {
  std::swap(memory_, other.memory_);
  std::swap(count_, other.count_);
  std::swap(stackBytes_, other.stackBytes_);
  return *this;
}

// The pattern of a stack lies right above the stack below: on a page that is touched anyway.
std::byte* Stacks::stack(size_t index) const {
  return memory_ + kStackPageBytes + index * strideBytes(stackBytes_) + kPatternBytes;
}
bool Stacks::whole(size_t index) const {
  const auto* pattern = reinterpret_cast<const uint64_t*>(stack(index) - kPatternBytes);
  return std::all_of(pattern, pattern + kPatternBytes / sizeof *pattern,
                     [](uint64_t word) { return word == kPattern; });
}

void adopt([[maybe_unused]] Context& context) {
#ifdef CUDASIM_TSAN
  context.sanitizerState = __tsan_get_current_fiber();
#endif
#ifdef CUDASIM_ASAN
  pthread_attr_t attributes;
  pthread_getattr_np(pthread_self(), &attributes);
  void* stack = nullptr;
  pthread_attr_getstack(&attributes, &stack, &context.stackBytes);
  context.stack = static_cast<std::byte*>(stack);
  pthread_attr_destroy(&attributes);
#endif
}

void prepare(Context& context, std::byte* stack, size_t stackBytes, void (*entry)()) {
  context.stack = stack;
  context.stackBytes = stackBytes;
  const uintptr_t top = (reinterpret_cast<uintptr_t>(stack) + stackBytes) & ~uintptr_t{63};
  auto* word = reinterpret_cast<uintptr_t*>(top);
  *--word = 0;  // where a call would have put the return address
  *--word = reinterpret_cast<uintptr_t>(entry);
  for (int saved = 0; saved < 6; ++saved) {
    *--word = 0;
  }
  context.stackPointer = word;
#ifdef CUDASIM_TSAN
  context.sanitizerState = __tsan_create_fiber(0);
#endif
}

void destroy([[maybe_unused]] Context& context) {
#ifdef CUDASIM_TSAN
  __tsan_destroy_fiber(context.sanitizerState);
  context.sanitizerState = nullptr;
#endif
}

void switchContext(Context& from, Context& to, [[maybe_unused]] Leaving leaving) {
#ifdef CUDASIM_TSAN
  __tsan_switch_to_fiber(to.sanitizerState, __tsan_switch_to_fiber_no_sync);
#endif
#ifdef CUDASIM_ASAN
  __sanitizer_start_switch_fiber(leaving == Leaving::ForGood ? nullptr : &from.sanitizerState, to.stack,
                                 to.stackBytes);
#endif
  pealCudasimSwitch(&from.stackPointer, to.stackPointer);
#ifdef CUDASIM_ASAN
  __sanitizer_finish_switch_fiber(from.sanitizerState, nullptr, nullptr);
#endif
}

void arrived() {
#ifdef CUDASIM_ASAN
  __sanitizer_finish_switch_fiber(nullptr, nullptr, nullptr);
#endif
}

}  // namespace peal::cudasim
