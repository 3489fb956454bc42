// peal-info: what pealSystemInfo says, as tables for people or as it is.
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "peal/peal.h"
#include "tools/common/arguments.h"
#include "tools/common/error.h"

namespace {

using nlohmann::json;
using peal::tools::check;

// Rows in columns as wide as their longest cell; the last column is not padded.
void printTable(const std::vector<std::vector<std::string>>& rows) {
  std::vector<size_t> widths;
  for (const std::vector<std::string>& row : rows) {
    widths.resize(std::max(widths.size(), row.size()));
    for (size_t i = 0; i < row.size(); ++i) {
      widths[i] = std::max(widths[i], row[i].size());
    }
  }
  for (const std::vector<std::string>& row : rows) {
    for (size_t i = 0; i < row.size(); ++i) {
      fmt::print("  {:{}}", row[i], i + 1 < row.size() ? widths[i] : 0);
    }
    fmt::print("\n");
  }
}

void printParts(const char* title, const json& parts) {
  fmt::print("\n{}\n", title);
  std::vector<std::vector<std::string>> rows;
  for (const json& part : parts) {
    rows.push_back({part.at("name"), part.at("found").get<bool>() ? "yes" : "no", part.at("why")});
  }
  printTable(rows);
}

std::string valueText(const json& knob) {
  if (knob.at("origin").is_null()) {
    return "unknown";
  }
  if (knob.at("secret").get<bool>()) {
    return knob.at("origin") == "default" ? "not set" : "(hidden)";
  }
  const std::string value = knob.at("value");
  return value.empty() ? "(empty)" : value;
}

std::string originText(const json& knob) {
  return knob.at("origin").is_null() ? "unknown" : knob.at("origin").get<std::string>();
}

void printValues(const json& knobs) {
  fmt::print("\nconfiguration (by environment variables; peal-info --config explains them)\n");
  std::vector<std::vector<std::string>> rows;
  for (const json& knob : knobs) {
    rows.push_back({knob.at("name"), valueText(knob), originText(knob)});
  }
  printTable(rows);
}

void printExplained(const json& knobs) {
  for (const json& knob : knobs) {
    const std::string range = knob.at("range");
    const std::string fallback = knob.at("default");
    fmt::print("{} = {}\n    from {}; default {}{}\n    {}\n", knob.at("name").get<std::string>(),
               valueText(knob), originText(knob), fallback.empty() ? "(empty)" : fallback,
               range.empty() ? "" : "; legal " + range, knob.at("help").get<std::string>());
  }
}

// 0, or the exit code for a configuration in error, once the error is told.
int tellConfigurationError(const json& configuration) {
  if (configuration.at("error").is_null()) {
    return 0;
  }
  fmt::print(stderr, "peal-info: the configuration is in error, so no communicator can be made: {}\n",
             configuration.at("error").get<std::string>());
  return peal::tools::kExitUsage;
}

int run(int argc, char** argv) {
  CLI::App app("Shows what this peal library is, what it found on this machine, and its configuration.",
               "peal-info");
  bool configOnly = false;
  bool asJson = false;
  app.add_flag("--config", configOnly, "Only the configuration table, every knob explained");
  app.add_flag("--json", asJson, "JSON instead of tables (with --config: the configuration's part)");
  if (const auto code = peal::tools::parseArguments(app, argc, argv)) {
    return *code;
  }
  const char* text = nullptr;
  check(pealSystemInfo(&text), "pealSystemInfo");
  const json info = json::parse(text);
  const json& configuration = info.at("configuration");
  if (asJson) {
    fmt::print("{}\n", (configOnly ? configuration : info).dump(2));
  } else if (configOnly) {
    printExplained(configuration.at("knobs"));
  } else {
    fmt::print("peal {}\n  processor: {} loops, {} processors allowed\n",
               info.at("version").get<std::string>(), info.at("cpu").at("isa").get<std::string>(),
               info.at("cpu").at("allowedCpus").get<int>());
    printParts("devices", info.at("devices"));
    printParts("transports", info.at("transports"));
    printValues(configuration.at("knobs"));
  }
  return tellConfigurationError(configuration);
}

}  // namespace

int main(int argc, char** argv) {
  return peal::tools::guard("peal-info", [&] { return run(argc, argv); });
}
