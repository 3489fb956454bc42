// A plan as a table for people and as JSON for programs. Knows nothing of the command line.
#pragma once
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "peal/zero.h"

namespace peal::tools {

// "0", "1", "2", "3", "hsdp".
const char* stageName(int stage);

// stages: which columns, in this order.
std::string planTable(const pealZeroPlanInput_t& input, const pealZeroPlan_t& plan,
                      const std::vector<int>& stages);
nlohmann::ordered_json planJson(const pealZeroPlanInput_t& input, const pealZeroPlan_t& plan,
                                const std::vector<int>& stages);

}  // namespace peal::tools
