// Reads an hwloc topology into a node. See processors.h.
#include <fmt/format.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <memory>

#include "lib/topology/hwloc_library.h"
#include "lib/topology/pci.h"
#include "lib/topology/processors.h"

namespace peal {
namespace {

// Discovery through these would open drivers and displays, and peal has its own.
constexpr std::array<const char*, 7> kUnwanted{"cuda", "nvml", "opencl", "gl", "rsmi", "levelzero", "x86"};

class Loaded {
 public:
  explicit Loaded(const HwlocLibrary& library) : library_(library) {}
  Loaded(const Loaded&) = delete;
  Loaded& operator=(const Loaded&) = delete;
  ~Loaded() {
    if (topology_ != nullptr) {
      library_.destroy(topology_);
    }
  }

  Result<void> load(const ProcessorSource& source) {
    if (library_.init(&topology_) != 0) {
      topology_ = nullptr;
      return Error{pealSystemError, fmt::format("hwloc_topology_init: {}", std::strerror(errno))};
    }
    for (const char* const component : kUnwanted) {
      // Fails where this hwloc does not know the component, which is as good.
      library_.setComponents(topology_, HWLOC_TOPOLOGY_COMPONENTS_FLAG_BLACKLIST, component);
    }
    if (!source.synthetic.empty() && library_.setSynthetic(topology_, source.synthetic.c_str()) != 0) {
      return Error{pealInvalidArgument,
                   fmt::format("hwloc does not understand the synthetic topology \"{}\"", source.synthetic)};
    }
    if (!source.xml.empty() &&
        library_.setXmlBuffer(topology_, source.xml.c_str(), static_cast<int>(source.xml.size() + 1)) != 0) {
      return Error{pealInvalidArgument, "hwloc does not understand the XML of the topology"};
    }
    library_.setFlags(topology_, HWLOC_TOPOLOGY_FLAG_INCLUDE_DISALLOWED);
    library_.setIoTypesFilter(topology_, HWLOC_TYPE_FILTER_KEEP_IMPORTANT);
    if (library_.load(topology_) != 0) {
      return Error{pealSystemError, fmt::format("hwloc_topology_load: {}", std::strerror(errno))};
    }
    return {};
  }

  std::vector<hwloc_obj_t> objects(hwloc_obj_type_t type) const {
    std::vector<hwloc_obj_t> found;
    const int depth = library_.typeDepth(topology_, type);
    if (depth == HWLOC_TYPE_DEPTH_UNKNOWN || depth == HWLOC_TYPE_DEPTH_MULTIPLE) {
      return found;
    }
    for (unsigned i = 0;; ++i) {
      hwloc_obj_t const object = library_.objectByDepth(topology_, depth, i);
      if (object == nullptr) {
        return found;
      }
      found.push_back(object);
    }
  }

  CpuSet set(hwloc_const_bitmap_t bitmap) const {
    CpuSet set;
    if (bitmap != nullptr) {
      for (int id = library_.bitmapNext(bitmap, -1); id >= 0; id = library_.bitmapNext(bitmap, id)) {
        set.cpus.push_back(id);
      }
    }
    return set;
  }
  CpuSet allowedCpus() const { return set(library_.allowedCpuset(topology_)); }
  CpuSet allowedNodes() const { return set(library_.allowedNodeset(topology_)); }
  bool ofThisMachine() const { return library_.isThisSystem(topology_) != 0; }

 private:
  const HwlocLibrary& library_;
  hwloc_topology_t topology_ = nullptr;
};

std::string infoOf(hwloc_obj_t object, const char* key) {
  for (unsigned i = 0; i < object->infos_count; ++i) {
    if (std::strcmp(object->infos[i].name, key) == 0) {
      return object->infos[i].value;
    }
  }
  return "";
}

template <class Device>
std::string pciAddress(const Device& device) {
  return fmt::format("{:04x}:{:02x}:{:02x}.{:x}", device.domain, device.bus, device.dev, device.func);
}

const char* kindOfClass(unsigned classId) {
  switch (classId >> 8) {
    case 0x01:
      return "storage";
    case 0x02:
      return "network";
    case 0x03:
      return classId == 0x0302 ? "3D" : "display";
    case 0x0b:
    case 0x12:
      return "accelerator";
    default:
      return "other";
  }
}

PciPlace placeOf(const Loaded& hwloc, hwloc_obj_t object) {
  PciPlace place;
  place.address = pciAddress(object->attr->pcidev);
  hwloc_obj_t above = object->parent;
  for (; above != nullptr && above->cpuset == nullptr; above = above->parent) {
    if (above->type == HWLOC_OBJ_BRIDGE) {
      const auto& bridge = above->attr->bridge;
      place.bridges.insert(place.bridges.begin(),
                           bridge.upstream_type == HWLOC_OBJ_BRIDGE_HOST
                               ? fmt::format("pci{:04x}:{:02x}", bridge.downstream.pci.domain,
                                             bridge.downstream.pci.secondary_bus)
                               : pciAddress(bridge.upstream.pci));
    }
  }
  const CpuSet memory = above != nullptr ? hwloc.set(above->nodeset) : CpuSet{};
  place.numaNode = memory.count() == 1 ? memory.cpus.front() : -1;
  return place;
}

void addCaches(const Loaded& hwloc, MachineNode& node) {
  for (const hwloc_obj_type_t type :
       {HWLOC_OBJ_L5CACHE, HWLOC_OBJ_L4CACHE, HWLOC_OBJ_L3CACHE, HWLOC_OBJ_L2CACHE, HWLOC_OBJ_L1CACHE}) {
    for (hwloc_obj_t const cache : hwloc.objects(type)) {
      node.caches.push_back(
          {static_cast<int>(cache->attr->cache.depth), cache->attr->cache.size, hwloc.set(cache->cpuset)});
    }
  }
}

void addAll(const Loaded& hwloc, MachineNode& node) {
  for (hwloc_obj_t const package : hwloc.objects(HWLOC_OBJ_PACKAGE)) {
    node.packages.push_back(
        {static_cast<int>(package->os_index), infoOf(package, "CPUModel"), hwloc.set(package->cpuset)});
  }
  const CpuSet memory = hwloc.allowedNodes();
  for (hwloc_obj_t const numa : hwloc.objects(HWLOC_OBJ_NUMANODE)) {
    const int id = static_cast<int>(numa->os_index);
    node.numaNodes.push_back(
        {id, hwloc.set(numa->cpuset), numa->attr->numanode.local_memory, memory.contains(id)});
  }
  addCaches(hwloc, node);
  for (hwloc_obj_t const core : hwloc.objects(HWLOC_OBJ_CORE)) {
    node.cores.push_back({hwloc.set(core->cpuset)});
  }
  for (hwloc_obj_t const device : hwloc.objects(HWLOC_OBJ_PCI_DEVICE)) {
    node.pciDevices.push_back({placeOf(hwloc, device), kindOfClass(device->attr->pcidev.class_id)});
  }
}

}  // namespace

Result<void> discoverProcessors(const ProcessorSource& source, MachineNode& node) {
  const bool live = source.synthetic.empty() && source.xml.empty();
  const Result<HwlocLibrary>& library = hwlocLibrary();
  if (!library) {
    if (!live) {
      return library.error();
    }
    discoverProcessorsBySys(source, node);
    node.notes.push_back(library.error().message);
    return {};
  }
  Loaded hwloc(*library);
  if (const Result<void> loaded = hwloc.load(source); !loaded) {
    if (!live) {
      return loaded.error();
    }
    discoverProcessorsBySys(source, node);
    node.notes.push_back(loaded.error().message);
    return {};
  }
  addAll(hwloc, node);
  // hwloc knows the cgroup's set; this thread's affinity lies inside it, and decides. HWLOC_XMLFILE and its
  // like make another machine of this one, whose own set is all there is.
  const CpuSet allowed = source.allowed                  ? *source.allowed
                         : live && hwloc.ofThisMachine() ? allowedCpuSet()
                                                         : hwloc.allowedCpus();
  node.allowedCpus = allowed;
  return {};
}

HwlocSupport probeHwloc() {
  const Result<HwlocLibrary>& library = hwlocLibrary();
  if (!library) {
    return {.available = false, .reason = library.error().message};
  }
  const unsigned version = library->getApiVersion();
  return {.available = true,
          .reason = fmt::format("hwloc's API {}.{}.{}", version >> 16, version >> 8 & 0xff, version & 0xff)};
}

}  // namespace peal
