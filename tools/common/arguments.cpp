#include "tools/common/arguments.h"

#include <fmt/format.h>

#include "tools/common/error.h"

namespace peal::tools {

std::optional<int> parseArguments(CLI::App& app, int argc, char** argv) {
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp&) {
    fmt::print("{}", app.help());
    return 0;
  } catch (const CLI::ParseError& error) {
    fmt::print(stderr, "{}: {}. Try {} --help.\n", app.get_name(), error.what(), app.get_name());
    return kExitUsage;
  } catch (const UsageError& error) {
    fmt::print(stderr, "{}: {} Try {} --help.\n", app.get_name(), error.what(), app.get_name());
    return kExitUsage;
  }
  return std::nullopt;
}

CLI::Validator numberIn(double least, double most) {
  const auto fault = [least, most](const std::string& text) {
    double value = 0;
    if (CLI::detail::lexical_cast(text, value) && value >= least && value <= most) {
      return std::string();
    }
    return fmt::format("{} is not a number from {} to {}", text, least, most);
  };
  return {fault, fmt::format("FLOAT in [{} - {}]", least, most)};
}

}  // namespace peal::tools
