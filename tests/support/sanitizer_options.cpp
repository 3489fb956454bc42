// Options that every test program built with the thread sanitizer needs; linked into each (peal_test).
//
// A rendezvous's root thread ends by itself and is joined when the next one starts or the process exits. A
// test's child process leaves by _exit(), where that join does not happen, and the sanitizer would call the
// finished thread a leak.
extern "C" const char*
__tsan_default_options();  // NOLINT(bugprone-reserved-identifier): the sanitizer's name
extern "C" const char* __tsan_default_options() { return "report_thread_leaks=0"; }
