#include "tools/common/arguments.h"

#include <fmt/format.h>

#include <string_view>

#include "peal/peal.h"
#include "tools/common/error.h"

namespace peal::tools {
namespace {

int refuse(const CLI::App& app, std::string_view sentence) {
  fmt::print(stderr, "{}: {} Try {} --help.\n", app.get_name(), sentence, app.get_name());
  return kExitUsage;
}

// "list, verify or compare"; empty if there are none.
std::string commandsOf(const CLI::App& app) {
  const std::vector<const CLI::App*> commands = app.get_subcommands([](const CLI::App*) { return true; });
  std::string text;
  for (size_t i = 0; i < commands.size(); ++i) {
    text += i == 0 ? "" : i + 1 == commands.size() ? " or " : ", ";
    text += commands[i]->get_name();
  }
  return text;
}

}  // namespace

std::optional<int> parseArguments(CLI::App& app, int argc, char** argv) {
  app.set_version_flag("--version", [&app] {
    return fmt::format("{} {}.{}.{} of peal", app.get_name(), PEAL_MAJOR, PEAL_MINOR, PEAL_PATCH);
  });
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForVersion& version) {
    fmt::print("{}\n", version.what());
    return 0;
  } catch (const CLI::RequiredError& error) {
    const std::vector<std::string> unknown = app.remaining(true);
    const std::string commands = commandsOf(app);
    return refuse(app, unknown.empty() || commands.empty()
                           ? asSentence(error.what())
                           : fmt::format("it knows no \"{}\": {}.", unknown.front(), commands));
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
