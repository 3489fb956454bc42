#include "tests/cudasim/core/options.h"

#include <cerrno>
#include <cstdio>
#include <cstdlib>

#include "tests/cudasim/core/run.h"

namespace peal::cudasim {
namespace {

constexpr int64_t kMost = int64_t{1} << 62;

constexpr OptionInfo kTable[] = {
    {"CUDASIM_SEED", &Options::seed, 1, 0, kMost, "seed of everything that is random"},
    {"CUDASIM_RANDOM", &Options::random, 0, 0, 1, "1: the next thread to run is drawn; 0: each in turn"},
    {"CUDASIM_STARVE", &Options::starve, 0, 0, 1, "1: one block at a time hardly runs; implies random"},
    {"CUDASIM_PREEMPT", &Options::preemptEvery, 200, 1, 1 << 20,
     "random: accesses between forced switches, on average"},
    {"CUDASIM_WEAK", &Options::weak, 0, 0, 1, "1: weak memory: delayed stores and stale loads"},
    {"CUDASIM_DRAIN", &Options::drainPerMille, 4, 0, 1000,
     "weak: accesses in a thousand that let a delayed store through"},
    {"CUDASIM_STALE", &Options::stalePercent, 60, 0, 100,
     "weak: loads in a hundred that may find an old copy"},
    {"CUDASIM_DELAY", &Options::delayPercent, 50, 0, 100,
     "weak: relaxed stores in a hundred that are delayed as weak ones are"},
    {"CUDASIM_RESIDENT", &Options::residentBlocks, 256, 1, 1 << 20, "blocks that run at once on a device"},
    {"CUDASIM_POLLS", &Options::deadlockPolls, 2000, 2, kMost,
     "polls in vain of every thread before a run that is alone counts as deadlocked"},
    {"CUDASIM_TIMEOUT_MS", &Options::timeoutMs, 60000, 1, kMost,
     "milliseconds without a change of memory before a run ends with a report"},
    {"CUDASIM_STACK", &Options::stackBytes, 128 << 10, 16 << 10, 64 << 20, "bytes of a thread's stack"},
    {"CUDASIM_SITES", &Options::sites, 1, 0, 1,
     "1: threads of a block that meet at different barriers of the source are an error"},
};

Options readEnvironment() {
  Options values = defaultOptions();
  for (const OptionInfo& info : kTable) {
    const char* text = std::getenv(info.name);
    if (text == nullptr) {
      continue;
    }
    char* end = nullptr;
    errno = 0;
    const int64_t value = std::strtoll(text, &end, 10);
    if (end == text || *end != '\0' || errno != 0 || value < info.least || value > info.most) {
      std::fprintf(stderr, "cudasim: %s=%s: not a whole number from %lld to %lld\n", info.name, text,
                   static_cast<long long>(info.least), static_cast<long long>(info.most));
      std::_Exit(kTrapStatus);
    }
    values.*info.value = value;
  }
  return values;
}

}  // namespace

std::span<const OptionInfo> optionTable() { return kTable; }

Options defaultOptions() {
  Options values{};
  for (const OptionInfo& info : kTable) {
    values.*info.value = info.defaultValue;
  }
  return values;
}

Options& options() {
  static Options values = readEnvironment();
  return values;
}

}  // namespace peal::cudasim
