// What every C entry point of zero.h does: null checks, the last error's sentence, and the barrier that no
// exception passes. Included by the files that hold entry points, and by no others.
#pragma once
#include <fmt/format.h>

#include <exception>
#include <memory>
#include <new>
#include <string>

#include "lib/base/log.h"
#include "lib/zero/engine.h"
#include "peal/zero.h"
#ifdef __GLIBCXX__
#include <cxxabi.h>
#endif

struct pealZero {
  std::unique_ptr<peal::zero::Engine> engine;
  std::string lastError;
};

namespace peal::zero {

// The sentence of calls without an engine.
inline std::string& threadError() {
  static thread_local std::string sentence;
  return sentence;
}

inline pealResult_t fail(pealZero_t zero, const char* function, const Error& error) {
  std::string& last = zero != nullptr ? zero->lastError : threadError();
  last = fmt::format("{}: {}", function, error.message);
  log(LogLevel::Info, last);
  return error.code;
}

// Runs body, which returns a Result, and turns what goes wrong into a code.
template <class Body>
pealResult_t guard(pealZero_t zero, const char* function, Body body) {
  const auto interrupted = [&](const Error& error) {
    if (zero != nullptr) {
      zero->engine->interrupted(function, error);
    }
    return fail(zero, function, error);
  };
  try {
    const auto result = body();
    return result ? pealSuccess : fail(zero, function, result.error());
  } catch (const std::bad_alloc&) {
    return interrupted({pealSystemError, "out of memory"});
  } catch (const std::exception& exception) {
    return interrupted({pealInternalError, exception.what()});
#ifdef __GLIBCXX__  // other libraries have no name for it
  } catch (const abi::__forced_unwind&) {
    throw;  // the thread is being cancelled
#endif
  } catch (...) {  // of a function that the caller passed
    return interrupted({pealInternalError, "an exception that is no std::exception"});
  }
}

inline Error nullArgument(const char* name) { return {pealInvalidArgument, fmt::format("{} is NULL", name)}; }

// The same for functions of an engine. pointer: an argument that must not be null, called `name`.
template <class Body>
pealResult_t call(pealZero_t zero, const char* function, const void* pointer, const char* name, Body body) {
  if (zero == nullptr) {
    return fail(nullptr, function, nullArgument("zero"));
  }
  if (pointer == nullptr) {
    return fail(zero, function, nullArgument(name));
  }
  return guard(zero, function, [&] { return body(*zero->engine); });
}

template <class Body>
pealResult_t call(pealZero_t zero, const char* function, Body body) {
  return call(zero, function, zero, "zero", body);
}

}  // namespace peal::zero
