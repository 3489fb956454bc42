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

}  // namespace peal::tools
