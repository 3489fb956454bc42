#include "lib/base/cpu.h"

#include <sched.h>
#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include <algorithm>

#include "lib/base/config.h"

namespace peal {
namespace {

#if defined(__x86_64__)
// Asked of the processor itself: clang 14's __builtin_cpu_supports does not know the name.
bool hasF16c() {
  unsigned int eax = 0;
  unsigned int ebx = 0;
  unsigned int ecx = 0;
  unsigned int edx = 0;
  return __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 && (ecx & bit_F16C) != 0;
}
#endif

Isa detectIsa() {
#if defined(__x86_64__)
  __builtin_cpu_init();
  const bool avx2 = __builtin_cpu_supports("avx2") != 0 && __builtin_cpu_supports("fma") != 0 && hasF16c();
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
