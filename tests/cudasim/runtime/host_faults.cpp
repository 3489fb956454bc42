// What the process says when host code touches device memory, before it dies of it: tagged addresses are no
// addresses to the processor, so that the fault itself does not tell which one it was; the registers do.
#include <execinfo.h>
#include <ucontext.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstring>

#include "tests/cudasim/core/memory.h"
#include "tests/cudasim/runtime/state.h"

namespace peal::cudasim {
namespace {

struct sigaction segvBefore {};
struct sigaction busBefore {};

void say(const char* text, size_t bytes) {
  if (write(STDERR_FILENO, text, bytes) < 0) {
    return;  // nobody listens
  }
}

void describe(uintptr_t address, char* text, size_t bytes) {
  Lock lock(runtime().mutex, std::try_to_lock);
  const Range* range =
      lock.owns_lock() ? runtime().memory.holding(reinterpret_cast<void*>(address)) : nullptr;
  if (range != nullptr) {
    std::snprintf(text, bytes,
                  "cudasim: host code touched device memory, at or near %#lx: byte %zu of an allocation of "
                  "%zu bytes on "
                  "device %d. Copy with cudaMemcpy.\n",
                  static_cast<unsigned long>(address), static_cast<size_t>(address - range->base),
                  range->bytes, range->device);
  } else {
    std::snprintf(text, bytes,
                  "cudasim: host code touched the device address %#lx (freed, or past an end).\n",
                  static_cast<unsigned long>(address));
  }
}

// An address with the tag and otherwise one of user space.
bool looksTagged(uintptr_t value) { return (value & kTag) != 0 && (value & ~kTag) >> 47 == 0; }

void onSegv(int, siginfo_t* info, void* context) {
  if (info->si_code == SI_KERNEL) {
    const auto& registers = static_cast<ucontext_t*>(context)->uc_mcontext.gregs;
    for (const greg_t value : registers) {
      if (looksTagged(static_cast<uintptr_t>(value))) {
        char text[256];
        describe(static_cast<uintptr_t>(value), text, sizeof text);
        say(text, std::strlen(text));
        void* frames[32];
        backtrace_symbols_fd(frames, backtrace(frames, 32), STDERR_FILENO);
        break;
      }
    }
  }
  sigaction(SIGSEGV, &segvBefore, nullptr);  // and it faults again
}

void onBus(int, siginfo_t*, void*) {
  constexpr char kText[] =
      "cudasim: memory of another process was used after that process had freed it (cudaFree before "
      "cudaIpcCloseMemHandle).\n";
  say(kText, sizeof kText - 1);
  sigaction(SIGBUS, &busBefore, nullptr);
}

}  // namespace

void watchForHostFaults() {
  void* frame = nullptr;
  backtrace(&frame, 1);  // loads what it needs now, not in the handler
  struct sigaction action {};
  action.sa_flags = SA_SIGINFO | SA_NODEFER;
  action.sa_sigaction = onSegv;
  sigaction(SIGSEGV, &action, &segvBefore);
  action.sa_sigaction = onBus;
  sigaction(SIGBUS, &action, &busBefore);
}

}  // namespace peal::cudasim
