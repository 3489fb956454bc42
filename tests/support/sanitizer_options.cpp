// What every test program needs in order to run under the sanitizers; linked into each (peal_test).
#include <cstdlib>

// Of thread-local variables of a library opened at run time (UCX has some), g++ 12's runtime guesses where
// they are: if their address ends with 0x010 it takes what stands before them for a header of old glibc,
// although that is the address sanitizer's own, and the leak check reads wild memory ("Tracer caught signal
// 11"). Without its guess the check still reaches them, through the loader's tables. The thread sanitizer
// guesses likewise, and then resets a wild range: "failed to allocate 0x1ed1000068000 bytes", seen once with
// UCX.
extern "C" const char*
__asan_default_options();  // NOLINT(bugprone-reserved-identifier): the sanitizer's name
extern "C" const char* __asan_default_options() { return "intercept_tls_get_addr=0"; }

// A rendezvous's root thread ends by itself and is joined when the next one starts or the process exits. A
// test's child process leaves by _exit(), where that join does not happen, and the sanitizer would call the
// finished thread a leak.
extern "C" const char*
__tsan_default_options();  // NOLINT(bugprone-reserved-identifier): the sanitizer's name
extern "C" const char* __tsan_default_options() { return "report_thread_leaks=0:intercept_tls_get_addr=0"; }

#ifdef __SANITIZE_THREAD__
namespace {

// UCX replaces madvise and others in the whole process, also where the sanitizer calls them before a thread
// is ready for its locks: the process would crash. It has no other switch for that.
__attribute__((constructor)) void keepUcxFromReplacingFunctions() {
  setenv("UCX_MEM_EVENTS", "n", 0);
  setenv("UCX_MEM_MMAP_HOOK_MODE", "none", 0);
}

}  // namespace
#endif
