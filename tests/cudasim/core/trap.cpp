// How a run ends early.
#include <unistd.h>

#include <cstdarg>
#include <cstdio>
#include <mutex>
#include <string>
#include <utility>

#include "tests/cudasim/core/sanitizers.h"
#include "tests/cudasim/core/scheduler.h"

namespace peal::cudasim {
namespace {

struct Observer {
  std::mutex mutex;  // guards `call`
  TrapObserver call;
};
Observer& observer() {
  static Observer* const instance = new Observer;
  return *instance;
}

[[noreturn]] void endProcess(const RunResult& result) {
  std::fprintf(stderr, "cudasim, process %d, CUDASIM_SEED=%lld: %s\n", static_cast<int>(getpid()),
               static_cast<long long>(options().seed), result.text.c_str());
  std::fflush(nullptr);
  _exit(kTrapStatus);
}

}  // namespace

TrapObserver setTrapObserver(TrapObserver call) {
  const std::lock_guard lock(observer().mutex);
  return std::exchange(observer().call, std::move(call));
}

std::string where(const Thread& thread) {
  std::string text = "device " + std::to_string(thread.device) + ", block " +
                     std::to_string(thread.blockIndex.x) + ", thread " + std::to_string(thread.linear);
  if (!thread.grid->name.empty()) {
    text += " of " + thread.grid->name;
  }
  return text;
}

void endRun(TrapKind kind, std::string text) {
  RunResult result;
  result.kind = kind;
  result.text = std::move(text);
  TrapObserver call;
  {
    const std::lock_guard lock(observer().mutex);
    call = observer().call;
  }
  if (call) {
    call(result);
  }
  if (executor == nullptr || executor->onTrap == OnTrap::EndProcess) {
    endProcess(result);
  }
  executor->result.kind = kind;
  executor->result.text = std::move(result.text);
  orderRelease(&executor->result);  // run() acquires
  throw RunEnded{};
}

void trap(TrapKind kind, const char* format, ...) {
  char sentence[1024];
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(sentence, sizeof sentence, format, arguments);
  va_end(arguments);
  std::string text = sentence;
  if (hot.thread != nullptr) {
    text += " (" + where(*hot.thread) + ")";
  }
  endRun(kind, std::move(text));
}

}  // namespace peal::cudasim
