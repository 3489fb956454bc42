// The results as JSON: nccl-tests' keys (its file format version 2), and what peal adds under "peal".
#pragma once
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "bench/harness/table.h"

namespace peal::bench {

struct Report {
  const Preamble& preamble;
  std::string startTime, endTime;
  const std::vector<Row>& rows;
  std::optional<Summary> summary;  // empty if the run ended early
  std::vector<MemoryInfo> memory;  // with -M
  std::vector<std::string> errors;
};

nlohmann::ordered_json reportJson(const Report& report);

// Throws ToolError if the file cannot be written. probeFile only tries, before the work is done.
void writeFile(const std::string& path, const std::string& text);
void probeFile(const std::string& path);

}  // namespace peal::bench
