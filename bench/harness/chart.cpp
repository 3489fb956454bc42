#include "bench/harness/chart.h"

#include <fmt/format.h>

#include <map>
#include <set>

namespace peal::bench {
namespace {

using Json = nlohmann::json;

// What tells one curve from another: only what differs within the run is named.
struct CurveNames {
  std::set<pealDataType_t> types;
  std::set<Combine> combines;
  std::set<int> roots;

  std::string name(const Row& row, const char* place) const {
    std::string text;
    const auto add = [&](const std::string& part) { text += (text.empty() ? "" : ", ") + part; };
    if (types.size() > 1) {
      add(typeInfo(row.type).name);
    }
    if (combines.size() > 1) {
      add(combineName(row.combine));
    }
    if (roots.size() > 1) {
      add(fmt::format("root {}", row.root));
    }
    add(place);
    return text;
  }
};

class Curves {
 public:
  void add(const std::string& name, uint64_t sizeBytes, const std::optional<Measured>& half,
           const char* style) {
    // Neither size 0 nor bandwidth 0 has a place on a logarithmic axis.
    if (!half || sizeBytes == 0 || half->busBw <= 0) {
      return;
    }
    const auto [at, isNew] = indexOf_.try_emplace(name, series_.size());
    if (isNew) {
      series_.push_back({{"name", name}, {"x", Json::array()}, {"y", Json::array()}, {"style", style}});
    }
    series_[at->second]["x"].push_back(sizeBytes);
    series_[at->second]["y"].push_back(half->busBw);
  }
  Json take() { return std::move(series_); }

 private:
  Json series_ = Json::array();
  std::map<std::string, size_t> indexOf_;
};

}  // namespace

Json bandwidthChart(const std::string& title, const std::string& subtitle, const std::vector<Row>& rows) {
  CurveNames names;
  for (const Row& row : rows) {
    names.types.insert(row.type);
    names.combines.insert(row.combine);
    names.roots.insert(row.root);
  }
  Curves curves;
  for (const Row& row : rows) {
    curves.add(names.name(row, "out of place"), row.sizeBytes, row.outOfPlace, "line");
    curves.add(names.name(row, "in place"), row.sizeBytes, row.inPlace, "dashed");
  }
  const Json panel{{"kind", "lines"},        {"xLabel", "size"},  {"xUnit", "bytes"},
                   {"xScale", "log2"},       {"yScale", "log10"}, {"yLabel", "busbw (GB/s)"},
                   {"series", curves.take()}};
  return {{"title", title}, {"subtitle", subtitle}, {"panels", Json::array({panel})}};
}

}  // namespace peal::bench
