#include "tools/info/topology_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string_view>
#include <utility>

namespace peal::tools {
namespace {

using nlohmann::json;

// "0-3,8", as the library writes it.
std::set<int> numbersOf(const json& text) {
  std::set<int> numbers;
  std::string_view rest = text.get_ref<const std::string&>();
  while (!rest.empty()) {
    const std::string_view part = rest.substr(0, rest.find(','));
    rest.remove_prefix(std::min(part.size() + 1, rest.size()));
    int first = 0;
    int last = 0;
    const auto [stop, fault] = std::from_chars(part.data(), part.data() + part.size(), first);
    last = first;
    if (stop != part.data() + part.size()) {
      std::from_chars(stop + 1, part.data() + part.size(), last);
    }
    for (int number = first; number <= last; ++number) {
      numbers.insert(number);
    }
  }
  return numbers;
}

std::string textOf(const std::set<int>& numbers) {
  std::string text;
  for (auto first = numbers.begin(); first != numbers.end();) {
    auto last = first;
    while (std::next(last) != numbers.end() && *std::next(last) == *last + 1) {
      ++last;
    }
    text += text.empty() ? "" : ",";
    text += first == last ? fmt::format("{}", *first) : fmt::format("{}-{}", *first, *last);
    first = std::next(last);
  }
  return text;
}

bool holds(const std::set<int>& outer, const std::set<int>& inner) {
  return !inner.empty() && std::includes(outer.begin(), outer.end(), inner.begin(), inner.end());
}

std::set<int> common(const std::set<int>& a, const std::set<int>& b) {
  std::set<int> both;
  std::set_intersection(a.begin(), a.end(), b.begin(), b.end(), std::inserter(both, both.end()));
  return both;
}

std::string bytesText(uint64_t bytes) {
  constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  auto amount = static_cast<double>(bytes);
  size_t unit = 0;
  while (amount >= 1024 && unit + 1 < std::size(kUnits)) {
    amount /= 1024;
    ++unit;
  }
  return fmt::format("{:.4g} {}", amount, kUnits[unit]);
}

std::string cpusText(const std::set<int>& cpus, const char* suffix = "") {
  return fmt::format("{} {}{}", cpus.size() == 1 ? "CPU" : "CPUs", textOf(cpus), suffix);
}

// The processors' part of a node: a tree of boxes, each with its processors.
struct Part {
  Box box;
  std::set<int> cpus;
  std::optional<int> numaNode;
  std::vector<Part> parts;
};

// The innermost part that holds these processors.
Part& innermost(Part& part, const std::set<int>& cpus) {
  for (Part& inner : part.parts) {
    if (holds(inner.cpus, cpus)) {
      return innermost(inner, cpus);
    }
  }
  return part;
}

void markAllowed(Part& part, const std::set<int>& allowed) {
  const std::set<int> left = common(part.cpus, allowed);
  if (part.cpus.empty() || left == part.cpus) {
    return;
  }
  part.box.grey = left.empty();
  part.box.details.push_back(left.empty() ? "not allowed" : fmt::format("allowed: {}", textOf(left)));
}

void addPackages(const json& node, const std::set<int>& allowed, Part& root) {
  for (const json& package : node.at("packages")) {
    Part part;
    part.cpus = numbersOf(package.at("cpus"));
    part.box = {
        BoxKind::Package, fmt::format("package {}", package.at("id").get<int>()), {}, false, -1, {}, {}};
    if (const std::string model = package.at("model"); !model.empty()) {
      part.box.details.push_back(model);
    }
    part.box.details.push_back(cpusText(part.cpus));
    markAllowed(part, allowed);
    root.parts.push_back(std::move(part));
  }
}

void addNuma(const json& node, const std::set<int>& allowed, Part& root) {
  for (const json& numa : node.at("numaNodes")) {
    Part part;
    part.cpus = numbersOf(numa.at("cpus"));
    part.numaNode = numa.at("id").get<int>();
    part.box = {BoxKind::Numa, fmt::format("NUMA node {}", *part.numaNode), {}, false, -1, {}, {}};
    part.box.details.push_back(bytesText(numa.at("memoryBytes")));
    if (!part.cpus.empty()) {
      part.box.details.push_back(cpusText(part.cpus));
    }
    markAllowed(part, allowed);
    if (!numa.at("allowed").get<bool>()) {
      part.box.details.emplace_back("its memory is not allowed");
      part.box.grey = true;
    }
    innermost(root, part.cpus).parts.push_back(std::move(part));
  }
}

// Caches from L3 on are boxes; smaller ones are told of the cores that have them.
void addCaches(const json& node, const std::set<int>& allowed, Part& root) {
  for (const json& cache : node.at("caches")) {
    if (cache.at("level").get<int>() < 3) {
      continue;
    }
    Part part;
    part.cpus = numbersOf(cache.at("cpus"));
    part.box = {BoxKind::Cache,
                fmt::format("L{} cache {}", cache.at("level").get<int>(), bytesText(cache.at("bytes"))),
                {cpusText(part.cpus)},
                false,
                -1,
                {},
                {}};
    markAllowed(part, allowed);
    innermost(root, part.cpus).parts.push_back(std::move(part));
  }
}

// "L2 2 MiB": the smaller caches around a core.
std::string cachesText(const json& node, const std::set<int>& core) {
  std::string text;
  for (const json& cache : node.at("caches")) {
    const std::set<int> cpus = numbersOf(cache.at("cpus"));
    if (cache.at("level").get<int>() < 3 && holds(cpus, core)) {
      text +=
          fmt::format("{}L{} {}{}", text.empty() ? "" : ", ", cache.at("level").get<int>(),
                      bytesText(cache.at("bytes")), cpus == core ? "" : " shared by CPUs " + textOf(cpus));
    }
  }
  return text;
}

// Cores of one part with the same caches are one box.
void addCores(const json& node, const std::set<int>& allowed, Part& root) {
  for (const json& core : node.at("cores")) {
    const std::set<int> cpus = numbersOf(core.at("cpus"));
    const std::string caches = cachesText(node, cpus);
    Part& home = innermost(root, cpus);
    Box* box = home.box.children.empty() ? nullptr : &home.box.children.back();
    if (box == nullptr || box->kind != BoxKind::Cores || box->details.front() != caches) {
      box = &home.box.children.emplace_back();
      box->kind = BoxKind::Cores;
      box->details.push_back(caches);
    }
    box->cores.push_back({textOf(cpus), !common(cpus, allowed).empty()});
  }
}

// The texts of boxes of cores, once all are in.
void tellCores(Part& part) {
  for (Box& box : part.box.children) {
    std::set<int> cpus;
    std::set<int> allowed;
    for (const CoreCell& core : box.cores) {
      const std::set<int> own = numbersOf(core.cpus);
      cpus.insert(own.begin(), own.end());
      if (core.allowed) {
        allowed.insert(own.begin(), own.end());
      }
    }
    box.title = fmt::format("{} {}", box.cores.size(), box.cores.size() == 1 ? "core" : "cores");
    const std::string caches = box.details.front();
    box.details.clear();
    if (!caches.empty()) {
      box.details.push_back(box.cores.size() == 1 ? caches : "each " + caches);
    }
    box.details.push_back(cpusText(cpus));
    box.grey = allowed.empty();
  }
  for (Part& inner : part.parts) {
    tellCores(inner);
  }
}

// The names by which a NIC goes.
std::string nicName(const json& nic) {
  std::string name = nic.value("interface", "");
  if (nic.contains("rdma")) {
    name += fmt::format("{}{} port {}", name.empty() ? "" : ", ", nic.at("rdma").get<std::string>(),
                        nic.at("port").get<int>());
  }
  return name;
}

std::string speedText(int64_t mbps) {
  return mbps >= 1000 ? fmt::format("{:g} Gbit/s", static_cast<double>(mbps) / 1000)
                      : fmt::format("{} Mbit/s", mbps);
}

// Indices of the NICs that are rails, by their place in the list; -1 for the others.
std::vector<int> railNumbers(const json& node) {
  std::vector<int> numbers;
  int next = 0;
  for (const json& nic : node.at("nics")) {
    numbers.push_back(nic.contains("idle") ? -1 : next++);
  }
  return numbers;
}

Box nicBox(const json& nic, int rail) {
  Box box{BoxKind::Nic, "NIC " + nicName(nic), {}, rail < 0, rail, {}, {}};
  std::string kind = nic.at("kind");
  if (nic.contains("speedMbps")) {
    kind += " " + speedText(nic.at("speedMbps"));
  }
  box.details.push_back(kind);
  std::string where = nic.value("driver", "");
  if (nic.contains("pci")) {
    where += (where.empty() ? "" : " ") + nic.at("pci").get<std::string>();
  }
  if (!where.empty()) {
    box.details.push_back(where);
  }
  for (const json& address : nic.at("addresses")) {
    box.details.push_back(address);
  }
  if (nic.contains("idle")) {
    box.details.push_back("idle: " + nic.at("idle").get<std::string>());
  } else if (nic.contains("gpus")) {
    const std::set<int> gpus = numbersOf(nic.at("gpus"));
    box.details.push_back(
        fmt::format("rail {} for {} {}", rail, gpus.size() == 1 ? "GPU" : "GPUs", textOf(gpus)));
  } else {
    box.details.push_back(fmt::format("rail {}", rail));
  }
  return box;
}

Box gpuBox(const json& gpu, const json& node, const std::vector<int>& rails) {
  const int device = gpu.at("device");
  Box box{BoxKind::Gpu, fmt::format("GPU {}", device), {}, false, -1, {}, {}};
  if (const std::string name = gpu.at("name"); !name.empty()) {
    box.details.push_back(name);
  }
  if (const uint64_t bytes = gpu.at("memoryBytes"); bytes > 0) {
    box.details.push_back(bytesText(bytes));
  }
  if (gpu.contains("pci")) {
    box.details.push_back(gpu.at("pci"));
  }
  if (const std::string peers = gpu.at("peers"); !peers.empty()) {
    box.details.push_back("peers " + peers);
  }
  for (size_t i = 0; i < rails.size(); ++i) {
    const json& nic = node.at("nics").at(i);
    if (rails[i] >= 0 && nic.contains("gpus") && numbersOf(nic.at("gpus")).count(device) != 0) {
      box.rail = box.rail < 0 ? rails[i] : box.rail;
      box.details.push_back(fmt::format("rail {}", rails[i]));
    }
  }
  return box;
}

// Hangs a device below its bridges: below the box of its NUMA node, or of the node.
class DeviceTree {
 public:
  DeviceTree(Part& root, std::vector<std::pair<int, Box>>& perNuma, Box& elsewhere)
      : perNuma_(perNuma), elsewhere_(elsewhere) {
    collect(root);
  }

  void add(const json& device, Box box) {
    Box* home = &elsewhere_;
    if (device.contains("numaNode") && known_.count(device.at("numaNode").get<int>()) != 0) {
      home = &homeOf(device.at("numaNode"));
    }
    if (device.contains("bridges")) {
      std::string_view path = device.at("bridges").get_ref<const std::string&>();
      while (!path.empty()) {
        const std::string_view part = path.substr(0, path.find('/'));
        path.remove_prefix(std::min(part.size() + 1, path.size()));
        home = &bridge(*home, part);
      }
    }
    home->children.push_back(std::move(box));
  }

 private:
  void collect(const Part& part) {
    if (part.numaNode) {
      known_.insert(*part.numaNode);
    }
    for (const Part& inner : part.parts) {
      collect(inner);
    }
  }
  Box& homeOf(int numaNode) {
    for (auto& [number, box] : perNuma_) {
      if (number == numaNode) {
        return box;
      }
    }
    return perNuma_.emplace_back(numaNode, Box{}).second;
  }
  static Box& bridge(Box& above, std::string_view name) {
    const std::string title = name.substr(0, 3) == "pci" ? fmt::format("PCI host bridge {}", name.substr(3))
                                                         : fmt::format("PCI bridge {}", name);
    for (Box& child : above.children) {
      if (child.title == title) {
        return child;
      }
    }
    return above.children.emplace_back(Box{BoxKind::Bridge, title, {}, false, -1, {}, {}});
  }

  std::set<int> known_;
  std::vector<std::pair<int, Box>>& perNuma_;
  Box& elsewhere_;
};

Box finished(Part& part, const std::vector<std::pair<int, Box>>& devices) {
  Box box = std::move(part.box);
  for (Part& inner : part.parts) {
    box.children.push_back(finished(inner, devices));
  }
  for (const auto& [numaNode, home] : devices) {
    if (part.numaNode == numaNode) {
      box.children.insert(box.children.end(), home.children.begin(), home.children.end());
    }
  }
  return box;
}

void addDevices(const json& node, DeviceTree& tree, Box& withoutCard) {
  const std::vector<int> rails = railNumbers(node);
  std::set<std::string> shown;
  for (const json& gpu : node.at("gpus")) {
    shown.insert(gpu.value("pci", ""));
    tree.add(gpu, gpuBox(gpu, node, rails));
  }
  for (size_t i = 0; i < rails.size(); ++i) {
    const json& nic = node.at("nics").at(i);
    shown.insert(nic.value("pci", ""));
    const std::string kind = nic.at("kind");
    if (kind == "loopback" || kind == "virtual") {
      withoutCard.children.push_back(nicBox(nic, rails[i]));
    } else {
      tree.add(nic, nicBox(nic, rails[i]));
    }
  }
  for (const json& device : node.at("pciDevices")) {
    const std::string address = device.value("pci", "");
    if (shown.count(address) == 0) {
      tree.add(device, {BoxKind::Device,
                        fmt::format("{} {}", device.at("kind").get<std::string>(), address),
                        {},
                        true,
                        -1,
                        {},
                        {}});
    }
  }
}

Box nodeBox(const json& node) {
  const std::set<int> allowed = numbersOf(node.at("allowedCpus"));
  Part root;
  root.box.kind = BoxKind::Node;
  root.box.title = node.at("name");
  if (node.contains("count")) {
    root.box.title += fmt::format(" (one of {} alike)", node.at("count").get<int>());
  }
  addPackages(node, allowed, root);
  addNuma(node, allowed, root);
  addCaches(node, allowed, root);
  addCores(node, allowed, root);
  tellCores(root);
  if (!allowed.empty()) {
    root.box.details.push_back(cpusText(allowed, " allowed"));
  }
  if (node.contains("ranks")) {
    root.box.details.push_back(fmt::format("{} ranks", node.at("ranks").get<int>()));
  }
  std::vector<std::pair<int, Box>> perNuma;
  Box elsewhere;
  Box withoutCard{BoxKind::Group, "interfaces without a card", {}, false, -1, {}, {}};
  DeviceTree tree(root, perNuma, elsewhere);
  addDevices(node, tree, withoutCard);
  Box box = finished(root, perNuma);
  box.children.insert(box.children.end(), elsewhere.children.begin(), elsewhere.children.end());
  if (!withoutCard.children.empty()) {
    box.children.push_back(std::move(withoutCard));
  }
  for (const json& note : node.at("notes")) {
    box.children.push_back({BoxKind::Note, note, {}, false, -1, {}, {}});
  }
  return box;
}

}  // namespace

std::vector<Box> topologyBoxes(const json& topology) {
  std::vector<Box> nodes;
  for (const json& node : topology.at("nodes")) {
    nodes.push_back(nodeBox(node));
  }
  return nodes;
}

}  // namespace peal::tools
