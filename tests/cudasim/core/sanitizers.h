// Which sanitizer watches, and the few of its functions that fibers need; none of them does anything without
// one. CUDASIM_TSAN comes from the build, because the simulator itself is not instrumented then; the address
// sanitizer is seen from the compiler.
#pragma once
#include <cstddef>

#if defined(__SANITIZE_ADDRESS__)
#define CUDASIM_ASAN
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define CUDASIM_ASAN
#endif
#endif

#ifdef CUDASIM_ASAN
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif
#ifdef CUDASIM_TSAN
#include <sanitizer/tsan_interface.h>
extern "C" void __tsan_acquire(void* address);  // NOLINT(bugprone-reserved-identifier)
extern "C" void __tsan_release(void* address);  // NOLINT(bugprone-reserved-identifier)
#endif

namespace peal::cudasim {

// Memory that nobody may touch, and that may be touched again.
inline void poison([[maybe_unused]] const void* begin, [[maybe_unused]] size_t bytes) {
#ifdef CUDASIM_ASAN
  __asan_poison_memory_region(begin, bytes);
#endif
}
inline void unpoison([[maybe_unused]] const void* begin, [[maybe_unused]] size_t bytes) {
#ifdef CUDASIM_ASAN
  __asan_unpoison_memory_region(begin, bytes);
#endif
}

// What happened before orderRelease(x) happened before what follows orderAcquire(x).
inline void orderRelease([[maybe_unused]] void* x) {
#ifdef CUDASIM_TSAN
  __tsan_release(x);
#endif
}
inline void orderAcquire([[maybe_unused]] void* x) {
#ifdef CUDASIM_TSAN
  __tsan_acquire(x);
#endif
}

}  // namespace peal::cudasim
