// Command lines: CLI11's errors as one sentence and exit code 2.
#pragma once
#include <CLI/CLI.hpp>
#include <optional>

namespace peal::tools {

// Parses. Returns the exit code if the program is to end now: 0 after -h, 2 after a wrong command line, whose
// sentence is then on the error output. Calls of UsageError in the app's callbacks count as such.
std::optional<int> parseArguments(CLI::App& app, int argc, char** argv);

// A number in [least, most]. CLI::Range would let nan through, which is neither below nor above.
CLI::Validator numberIn(double least, double most);

}  // namespace peal::tools
