// busbw over size as a chart for tools::plot.
#pragma once
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "bench/harness/row.h"

namespace peal::bench {

nlohmann::json bandwidthChart(const std::string& title, const std::string& subtitle,
                              const std::vector<Row>& rows);

}  // namespace peal::bench
