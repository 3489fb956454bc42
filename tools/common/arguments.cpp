#include "tools/common/arguments.h"

#include <fmt/format.h>

#include <string_view>

#include "tools/common/error.h"

namespace peal::tools {
namespace {

int refuse(const CLI::App& app, std::string_view sentence) {
  fmt::print(stderr, "{}: {} Try {} --help.\n", app.get_name(), sentence, app.get_name());
  return kExitUsage;
}

}  // namespace

std::optional<int> parseArguments(CLI::App& app, int argc, char** argv) {
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp&) {
    fmt::print("{}", app.help());
    return 0;
  } catch (const CLI::ExtrasError&) {
    return refuse(app, fmt::format("it knows no \"{}\".", fmt::join(app.remaining(true), "\" and no \"")));
  } catch (const CLI::ParseError& error) {
    return refuse(app, asSentence(error.what()));
  } catch (const UsageError& error) {
    return refuse(app, asSentence(error.what()));
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

CLI::Validator oneOf(const std::vector<std::pair<std::string, int>>& values) {
  std::vector<std::string> names;
  for (const auto& [name, value] : values) {
    names.push_back(name);
  }
  const auto translate = [values, names](std::string& text) {
    for (const auto& [name, value] : values) {
      if (text == name) {
        text = std::to_string(value);
        return std::string();
      }
    }
    return fmt::format("\"{}\" is none of {}", text, fmt::join(names, ", "));
  };
  return {translate, fmt::format("{{{}}}", fmt::join(names, ","))};
}

}  // namespace peal::tools
