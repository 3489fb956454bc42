// Command lines: CLI11's errors as one sentence and exit code 2.
#pragma once
#include <CLI/CLI.hpp>
#include <initializer_list>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace peal::tools {

// Parses. Returns the exit code if the program is to end now: 0 after -h, 2 after a wrong command line, whose
// sentence is then on the error output. Calls of UsageError in the app's callbacks count as such.
std::optional<int> parseArguments(CLI::App& app, int argc, char** argv);

// A number in [least, most]. CLI::Range would let nan through, which is neither below nor above.
CLI::Validator numberIn(double least, double most);

// For Option::transform: one of these names, each of which stands for a value of an enumeration. CLI11's own
// would show the numbers, and let others through.
CLI::Validator oneOf(const std::vector<std::pair<std::string, int>>& values);
template <class Enum>
CLI::Validator oneOf(std::initializer_list<std::pair<const char*, Enum>> values) {
  std::vector<std::pair<std::string, int>> numbers;
  for (const auto& [name, value] : values) {
    numbers.emplace_back(name, static_cast<int>(value));
  }
  return oneOf(numbers);
}

}  // namespace peal::tools
