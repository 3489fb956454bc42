#include "lib/tuner/links.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>

namespace peal {
namespace {

struct Entry {
  const char* name;
  double& (*in)(LinkTable& links);
  bool needed = true;
};

constexpr std::array<Entry, 13> kKeys{{
    {"inside_latency_us", [](LinkTable& links) -> double& { return links.inside.latencyUs; }},
    {"inside_gap_us", [](LinkTable& links) -> double& { return links.inside.gapUs; }},
    {"inside_us_per_byte", [](LinkTable& links) -> double& { return links.inside.usPerByte; }},
    {"between_latency_us", [](LinkTable& links) -> double& { return links.between.latencyUs; }},
    {"between_gap_us", [](LinkTable& links) -> double& { return links.between.gapUs; }},
    {"between_us_per_byte", [](LinkTable& links) -> double& { return links.between.usPerByte; }},
    {"gpu_launch_us", [](LinkTable& links) -> double& { return links.gpu.launchUs; }, false},
    {"gpu_block_us", [](LinkTable& links) -> double& { return links.gpu.blockUs; }, false},
    {"gpu_ll_us", [](LinkTable& links) -> double& { return links.gpu.llUs; }, false},
    {"gpu_ll128_us", [](LinkTable& links) -> double& { return links.gpu.ll128Us; }, false},
    {"gpu_simple_us", [](LinkTable& links) -> double& { return links.gpu.simpleUs; }, false},
    {"gpu_block_us_per_byte", [](LinkTable& links) -> double& { return links.gpu.blockUsPerByte; }, false},
    {"gpu_link_us_per_byte", [](LinkTable& links) -> double& { return links.gpu.linkUsPerByte; }, false},
}};

constexpr std::string_view kBlanks = " \t\r";

std::string_view trimmed(std::string_view text) {
  const size_t begin = text.find_first_not_of(kBlanks);
  if (begin == std::string_view::npos) {
    return {};
  }
  return text.substr(begin, text.find_last_not_of(kBlanks) - begin + 1);
}

// One line with something on it: fills in the key's number, and says which key it was.
Result<size_t> parseLine(std::string_view line, const std::string& where, LinkTable& links) {
  const size_t blank = line.find_first_of(kBlanks);
  const std::string_view name = line.substr(0, blank);
  const std::string_view text = blank == std::string_view::npos ? "" : trimmed(line.substr(blank));
  std::string names;
  for (size_t i = 0; i < kKeys.size(); ++i) {
    names += fmt::format("{}{}", i == 0 ? "" : ", ", kKeys[i].name);
    if (name != kKeys[i].name) {
      continue;
    }
    double value = 0;
    const auto [end, fault] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (fault != std::errc() || end != text.data() + text.size() || !std::isfinite(value) || value < 0) {
      return Error{pealInvalidArgument,
                   fmt::format("{}: \"{}\" of {} is not a number from 0.", where, text, name)};
    }
    kKeys[i].in(links) = value;
    return i;
  }
  return Error{pealInvalidArgument, fmt::format("{}: unknown key \"{}\"; known are {}.", where, name, names)};
}

}  // namespace

double bytesUs(double longMessageUs, double emptyMessageUs) {
  return std::max(longMessageUs - emptyMessageUs, longMessageUs / 4);
}

LinkTable assumedLinks() {
  return {.inside = {.latencyUs = 1, .gapUs = 0.3, .usPerByte = 1.0 / 8000},
          .between = {.latencyUs = 30, .gapUs = 5, .usPerByte = 1.0 / 1250}};
}

Result<LinkTable> parseLinks(std::string_view text, const std::string& source) {
  LinkTable links;
  std::array<bool, kKeys.size()> seen{};
  int number = 0;
  while (!text.empty()) {
    ++number;
    const size_t end = std::min(text.find('\n'), text.size());
    const std::string_view line = trimmed(text.substr(0, std::min(end, text.find('#'))));
    text.remove_prefix(std::min(end + 1, text.size()));
    if (line.empty()) {
      continue;
    }
    const std::string where = fmt::format("{}, line {}", source, number);
    const Result<size_t> key = parseLine(line, where, links);
    if (!key) {
      return key.error();
    }
    if (seen[*key]) {
      return Error{pealInvalidArgument, fmt::format("{}: {} stands there twice.", where, kKeys[*key].name)};
    }
    seen[*key] = true;
  }
  for (size_t i = 0; i < kKeys.size(); ++i) {
    if (kKeys[i].needed && !seen[i]) {
      return Error{pealInvalidArgument,
                   fmt::format("{}: {} is missing. Delete the file to have it measured and written anew.",
                               source, kKeys[i].name)};
    }
  }
  return links;
}

std::string formatLinks(const LinkTable& links) {
  std::string text = "# peal: what a message costs inside a node and between nodes (PEAL_TUNER_FILE)\n";
  LinkTable said = links;
  for (const Entry& key : kKeys) {
    if (const double value = key.in(said); value >= 0) {
      text += fmt::format("{} {}\n", key.name, value);
    }
  }
  return text;
}

uint64_t hashOf(const LinkTable& links) {
  uint64_t hash = 0xcbf29ce484222325u;  // FNV-1a over the text, which holds every digit
  for (const char c : formatLinks(links)) {
    hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  }
  return hash;
}

}  // namespace peal
