// What peal-info shows of a topology, as boxes in boxes: made from pealTopology's JSON, told as text and
// drawn as SVG.
#pragma once
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

namespace peal::tools {

enum class BoxKind { Node, Package, Numa, Cache, Cores, Bridge, Gpu, Nic, Device, Group, Note };

// A core in a box of them.
struct CoreCell {
  std::string cpus;
  bool allowed = true;
};

struct Box {
  BoxKind kind = BoxKind::Group;
  std::string title;
  std::vector<std::string> details;
  bool grey = false;  // not allowed, or idle
  int rail = -1;      // index of the rail that a NIC is, or that a GPU is served by
  std::vector<CoreCell> cores;
  std::vector<Box> children;
};

// One box per node.
std::vector<Box> topologyBoxes(const nlohmann::json& topology);

// A tree, at most `columns` wide where words allow.
std::string topologyText(const std::vector<Box>& nodes, size_t columns = 100);

// A drawing; needs nothing but a font of fixed width.
std::string topologySvg(const std::vector<Box>& nodes);

}  // namespace peal::tools
