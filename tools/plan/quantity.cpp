#include "tools/plan/quantity.h"

#include <fmt/format.h>

#include <array>
#include <charconv>
#include <cmath>
#include <utility>

#include "tools/common/error.h"

namespace peal::tools {
namespace {

constexpr std::string_view kDecimalSuffixes = "kMGTP";

[[noreturn]] void refuse(std::string_view text, std::string_view what, const char* examples) {
  throw UsageError(fmt::format("{}: \"{}\" is not a quantity; write it like {}", what, text, examples));
}

// The number at the front; the rest stays in `text`.
double takeNumber(std::string_view& text, std::string_view what, const char* examples) {
  double value = 0;
  const auto [end, fault] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (fault != std::errc() || !std::isfinite(value) || value < 0) {
    refuse(text, what, examples);
  }
  text.remove_prefix(static_cast<size_t>(end - text.data()));
  return value;
}

// The factor of a suffix at the front, 1 if there is none; with binary allowed, "Gi" too.
double takeFactor(std::string_view& text, bool binary) {
  if (text.empty()) {
    return 1;
  }
  const char letter = text[0] == 'K' ? 'k' : text[0];
  const size_t power = kDecimalSuffixes.find(letter);
  if (power == std::string_view::npos) {
    return 1;
  }
  text.remove_prefix(1);
  double base = 1000;
  if (binary && !text.empty() && text[0] == 'i') {
    text.remove_prefix(1);
    base = 1024;
  }
  return std::pow(base, static_cast<double>(power + 1));
}

}  // namespace

double parseCount(std::string_view text, std::string_view what) {
  constexpr const char* kExamples = "7B, 350M or 6738149376";
  std::string_view rest = text;
  double value = takeNumber(rest, what, kExamples);
  if (rest == "B" || rest == "b") {
    return value * 1e9;
  }
  value *= takeFactor(rest, false);
  if (!rest.empty()) {
    refuse(text, what, kExamples);
  }
  return value;
}

double parseAmount(std::string_view text, std::string_view what) {
  constexpr const char* kExamples = "80GB, 25MiB or 5e10";
  std::string_view rest = text;
  double value = takeNumber(rest, what, kExamples);
  value *= takeFactor(rest, true);
  if (!rest.empty() && rest != "B") {
    refuse(text, what, kExamples);
  }
  return value;
}

double parseRate(std::string_view text, std::string_view what) {
  constexpr std::string_view kBits = "bit";
  if (!text.ends_with(kBits)) {
    return parseAmount(text, what);
  }
  const std::string_view number = text.substr(0, text.size() - kBits.size());
  if (number.ends_with('B')) {
    refuse(text, what, "400Gbit or 50GB");
  }
  return parseAmount(number, what) / 8;
}

double parseTime(std::string_view text, std::string_view what) {
  constexpr const char* kExamples = "5us, 1.5ms or 5e-6";
  std::string_view rest = text;
  const double value = takeNumber(rest, what, kExamples);
  for (const auto& [unit, perSecond] :
       {std::pair{"ns", 1e9}, std::pair{"us", 1e6}, std::pair{"ms", 1e3}, std::pair{"s", 1.0}}) {
    if (rest == unit) {
      return value / perSecond;
    }
  }
  if (!rest.empty()) {
    refuse(text, what, kExamples);
  }
  return value;
}

std::string formatAmount(double amount) {
  constexpr std::array<const char*, 6> kUnits{"", " k", " M", " G", " T", " P"};
  size_t unit = 0;
  while (amount >= 999.95 && unit + 1 < kUnits.size()) {
    amount /= 1000;
    ++unit;
  }
  if (unit == 0) {
    return fmt::format("{:.4g}", amount);
  }
  return fmt::format("{:.{}f}{}", amount, amount < 9.9995 ? 3 : amount < 99.995 ? 2 : 1, kUnits[unit]);
}

std::string formatSeconds(double seconds) {
  if (seconds <= 0) {
    return "0";
  }
  if (seconds >= 1) {
    return fmt::format("{:.4g} s", seconds);
  }
  return seconds >= 1e-3 ? fmt::format("{:.4g} ms", seconds * 1e3) : fmt::format("{:.4g} us", seconds * 1e6);
}

}  // namespace peal::tools
