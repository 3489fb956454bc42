// What GCC has to be told. Tests compile some loops with clang, which finds out by itself or does without.
#pragma once

// Before a `for`: its rounds do not depend on each other.
#ifdef __clang__
#define PEAL_INDEPENDENT_ROUNDS
#else
#define PEAL_INDEPENDENT_ROUNDS _Pragma("GCC ivdep")
#endif
