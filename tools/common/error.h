// How a tool or a bench fails: exceptions inside the program, one sentence and an exit code at its end.
//
// Exit codes: 0 all well; 1 the work failed or its result is wrong; 2 the command line or the environment
// asks for something impossible. Used by tools and benches only; nothing here crosses into the library.
#pragma once
#include <functional>
#include <stdexcept>
#include <string>

#include "peal/peal.h"

namespace peal::tools {

inline constexpr int kExitFailure = 1;
inline constexpr int kExitUsage = 2;

// The work failed. The text is a whole sentence for the user.
struct ToolError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// The user asked for something that cannot be.
struct UsageError : ToolError {
  using ToolError::ToolError;
};

// A peal call failed.
struct PealError : ToolError {
  PealError(pealResult_t failed, const std::string& sentence) : ToolError(sentence), result(failed) {}
  pealResult_t result;
};

// Throws PealError with the library's sentence unless result is pealSuccess. `call` names what was called.
// comm may be nullptr: then the calling thread's last error is told.
void check(pealResult_t result, const char* call, pealComm_t comm = nullptr);

// The text with a full stop, unless it ends as a sentence does.
std::string asSentence(std::string text);

// Runs body and turns what it throws into a sentence on the error output, "program: sentence", and an exit
// code.
int guard(const std::string& program, const std::function<int()>& body);

}  // namespace peal::tools
