// A plan as a table for people and as JSON for programs. Knows nothing of the command line.
#pragma once
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "peal/zero.h"
#include "tools/plan/cluster.h"

namespace peal::tools {

// "0", "1", "2", "3", "hsdp".
const char* stageName(int stage);

// stages: which columns, in this order. cluster: the machines, if they are known.
std::string planTable(const pealZeroPlanInput_t& input, const pealZeroPlan_t& plan,
                      const std::vector<int>& stages, const std::optional<Cluster>& cluster = {});
nlohmann::ordered_json planJson(const pealZeroPlanInput_t& input, const pealZeroPlan_t& plan,
                                const std::vector<int>& stages, const std::optional<Cluster>& cluster = {});

}  // namespace peal::tools
