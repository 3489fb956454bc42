#include "lib/base/cpu.h"

#include <sched.h>

#include <algorithm>

#include "lib/base/config.h"

namespace peal {
namespace {

Isa detectIsa() {
#if defined(__x86_64__)
  __builtin_cpu_init();
  const bool avx2 = __builtin_cpu_supports("avx2") != 0 && __builtin_cpu_supports("fma") != 0 &&
                    __builtin_cpu_supports("f16c") != 0;
  if (avx2 && __builtin_cpu_supports("avx512f") != 0 && __builtin_cpu_supports("avx512bw") != 0 &&
      __builtin_cpu_supports("avx512dq") != 0 && __builtin_cpu_supports("avx512vl") != 0) {
    return Isa::Avx512;
  }
  if (avx2) {
    return Isa::Avx2;
  }
#endif
  return Isa::Baseline;
}

}  // namespace

Isa bestIsa() {
  static const Isa isa = [] {
    const Isa found = detectIsa();
    const Result<Configuration>& table = configuration();
    if (!table || table->text(Knob::Isa) == "auto" || table->text(Knob::Isa) == "avx512") {
      return found;
    }
    return std::min(found, table->text(Knob::Isa) == "avx2" ? Isa::Avx2 : Isa::Baseline);
  }();
  return isa;
}

const char* isaName(Isa isa) {
  switch (isa) {
    case Isa::Avx2:
      return "avx2";
    case Isa::Avx512:
      return "avx512";
    case Isa::Baseline:
      break;
  }
  return "baseline";
}

int allowedCpus() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof set, &set) != 0) {
    return 1;
  }
  return std::max(1, CPU_COUNT(&set));
}

}  // namespace peal
