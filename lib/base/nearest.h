// The name that somebody meant who wrote another one. Pure.
#pragma once
#include <optional>
#include <span>
#include <string_view>

namespace peal {

// The nearest of `names`; nothing if none is near. Case and underscores do not count; a name is near if it
// takes fewer changes than a third of its letters, or one begins the other, as ALGORITHM does ALGO.
std::optional<std::string_view> nearestName(std::string_view wanted, std::span<const std::string_view> names);

}  // namespace peal
