// What the handlers of zero-vectors.json share: the printed precision, inputs from a case, and the tables of
// handlers, one per kind of case, that vectors_test.cpp puts together.
#pragma once
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <string>

#include "tests/zero/ranks.h"

namespace peal::zero::test {

using nlohmann::json;
using Handlers = std::map<std::string, std::function<void(const json& test)>>;

Handlers memoryHandlers();         // M, A
Handlers communicationHandlers();  // C
Handlers overlapHandlers();        // T
Handlers numberHandlers();         // N

inline constexpr double kGigabyte = 1e9;

// Parameters that every N and G of the grids divides, so that formulas with fractions hold exactly.
inline constexpr double kEven = 720'720'000;

// Equal to what is printed, to half a unit of its last digit.
void expectPrinted(double actual, const json& printed);

pealZeroPlanInput_t inputOf(double parameters, int64_t ranks);
// P and N of a case.
pealZeroPlanInput_t inputOf(const json& inputs);

void forEachRanks(const std::function<void(double N)>& body);

}  // namespace peal::zero::test
