#include "lib/base/nearest.h"

#include <algorithm>
#include <cctype>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

namespace peal {
namespace {

// Without what people get wrong most: case and underscores.
std::string essence(std::string_view name) {
  std::string letters;
  for (const char c : name) {
    if (c != '_') {
      letters += static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
    }
  }
  return letters;
}

// How many letters must be added, taken away or changed to make one of the other (Levenshtein 1966).
size_t editDistance(std::string_view from, std::string_view to) {
  std::vector<size_t> row(to.size() + 1);  // from the letters of `from` so far to each beginning of `to`
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 0; i < from.size(); ++i) {
    size_t diagonal = std::exchange(row[0], i + 1);
    for (size_t k = 0; k < to.size(); ++k) {
      const size_t changed = diagonal + (from[i] != to[k] ? 1 : 0);
      diagonal = std::exchange(row[k + 1], std::min({changed, row[k] + 1, row[k + 1] + 1}));
    }
  }
  return row.back();
}

}  // namespace

std::optional<std::string_view> nearestName(std::string_view wanted,
                                            std::span<const std::string_view> names) {
  const std::string given = essence(wanted);
  std::optional<std::string_view> nearest;
  size_t least = 0;
  for (const std::string_view name : names) {
    const std::string known = essence(name);
    const size_t distance = editDistance(given, known);
    const bool begins = given.starts_with(known) || (given.size() > 2 && known.starts_with(given));
    if ((begins || distance * 3 < known.size()) && (!nearest || distance < least)) {
      nearest = name;
      least = distance;
    }
  }
  return nearest;
}

}  // namespace peal
