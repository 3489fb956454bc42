#include "tools/common/sizes.h"

#include <fmt/format.h>

#include <charconv>
#include <cmath>

#include "tools/common/error.h"

namespace peal::tools {
namespace {

constexpr std::string_view kSuffixes = "KMGT";

// The power of 1024 that a suffix stands for; -1 if it is none.
int suffixPower(char suffix) {
  const char upper = static_cast<char>(suffix >= 'a' && suffix <= 'z' ? suffix - 'a' + 'A' : suffix);
  const size_t at = kSuffixes.find(upper);
  return at == std::string_view::npos ? -1 : static_cast<int>(at) + 1;
}

[[noreturn]] void refuse(std::string_view text, std::string_view what) {
  throw UsageError(fmt::format(
      "{} \"{}\" is not a size. Write bytes as a whole number, or a number with K, M, G or T (K is 1024).",
      what, text));
}

}  // namespace

uint64_t parseSizeBytes(std::string_view text, std::string_view what) {
  const int power = text.empty() ? -1 : suffixPower(text.back());
  const std::string_view number = power > 0 ? text.substr(0, text.size() - 1) : text;
  const char* const end = number.data() + number.size();
  const double unit = std::ldexp(1.0, 10 * (power > 0 ? power : 0));

  uint64_t whole = 0;
  if (const auto [at, fault] = std::from_chars(number.data(), end, whole);
      fault == std::errc() && at == end) {
    if (static_cast<double>(whole) * unit >= 0x1p63) {
      refuse(text, what);
    }
    return whole * static_cast<uint64_t>(unit);
  }
  double fraction = 0;
  const auto [at, fault] = std::from_chars(number.data(), end, fraction, std::chars_format::fixed);
  if (power < 0 || fault != std::errc() || at != end || !(fraction >= 0) || fraction * unit >= 0x1p63) {
    refuse(text, what);
  }
  return static_cast<uint64_t>(fraction * unit);
}

std::string formatSizeBytes(uint64_t sizeBytes) {
  int power = 0;
  while (sizeBytes != 0 && sizeBytes % 1024 == 0 && power < static_cast<int>(kSuffixes.size())) {
    sizeBytes /= 1024;
    ++power;
  }
  return power == 0 ? fmt::format("{}", sizeBytes) : fmt::format("{}{}", sizeBytes, kSuffixes[power - 1]);
}

}  // namespace peal::tools
