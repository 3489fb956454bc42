// Result: how functions inside peal report failure. A code for the C API and a sentence for people.
//
// Owns nothing global. Used by every folder. Exceptions are for out-of-memory only and are stopped at the
// C API (lib/api/).
#pragma once
#include <optional>
#include <string>
#include <utility>

#include "peal/peal.h"

namespace peal {

// What went wrong: what was observed, with values, rank and peer; then the likely remedy.
struct Error {
  pealResult_t code = pealInternalError;
  std::string message;
};

// A value or an error. Result<void> has only the error.
template <class T>
class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::move(value)) {}      // NOLINT(google-explicit-constructor)
  Result(Error error) : error_(std::move(error)) {}  // NOLINT(google-explicit-constructor)
  explicit operator bool() const { return value_.has_value(); }
  T& operator*() { return *value_; }
  const T& operator*() const { return *value_; }
  T* operator->() { return &*value_; }
  const T* operator->() const { return &*value_; }
  const Error& error() const { return error_; }

 private:
  std::optional<T> value_;
  Error error_;
};

template <>
class [[nodiscard]] Result<void> {
 public:
  Result() = default;
  Result(Error error) : error_(std::move(error)) {}  // NOLINT(google-explicit-constructor)
  explicit operator bool() const { return !error_.has_value(); }
  const Error& error() const { return *error_; }

 private:
  std::optional<Error> error_;
};

}  // namespace peal

// Returns the error of a Result expression to the caller, if it has one.
#define PEAL_TRY(expression)                            \
  do {                                                  \
    if (const auto& pealTry = (expression); !pealTry) { \
      return pealTry.error();                           \
    }                                                   \
  } while (false)
