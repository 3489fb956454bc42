// Charts: a JSON description drawn by tools/plots/peal-plot.py, with Debian's matplotlib.
//
// The description:
//   {"title": text, "subtitle": text,
//    "panels": [
//      {"kind": "lines", "title": text, "xLabel": text, "yLabel": text,
//       "xScale": "linear" | "log2" | "log10", "yScale": likewise, "xUnit": "bytes" (ticks as 64K; optional),
//       "series": [{"name": text, "x": [numbers], "y": [numbers], "style": "line" | "dashed" | "dots"}]},
//      {"kind": "bars", "title": text, "yLabel": text, "yUnit": "bytes" (optional), "stacked": true | false,
//       "categories": [texts], "series": [{"name": text, "values": [numbers]}]}]}
// Style is "line" unless given; null in y or values leaves a gap.
#pragma once
#include <nlohmann/json_fwd.hpp>
#include <string>

namespace peal::tools {

// Draws to outputPath, whose ending (.svg, .png, .pdf) chooses the format. Throws ToolError with the reason:
// matplotlib missing (and the package to install), the script not found, the file not writable.
void plot(const nlohmann::json& chart, const std::string& outputPath);

// Throws UsageError if outputPath has no ending that plot() can write: to be called before hours of work.
void checkPlotPath(const std::string& outputPath);

}  // namespace peal::tools
