#include "lib/topology/hwloc_library.h"

#include <dlfcn.h>
#include <fmt/format.h>

namespace peal {
namespace {

constexpr const char* kName = "libhwloc.so.15";  // of every hwloc 2.x
constexpr const char* kRemedy =
    "Install it (Debian: libhwloc15) to see packages, caches, cores and PCI devices.";

template <class Function>
bool find(void* library, const char* name, Function& function, std::string& missing) {
  function = reinterpret_cast<Function>(dlsym(library, name));
  if (function == nullptr && missing.empty()) {
    missing = name;
  }
  return function != nullptr;
}

}  // namespace

Result<HwlocLibrary> openHwloc(const char* name) {
  void* const library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* const why = dlerror();
    return Error{pealSystemError,
                 fmt::format("{} cannot be opened: {}. {}", name, why != nullptr ? why : "?", kRemedy)};
  }
  HwlocLibrary table;
  std::string missing;
  find(library, "hwloc_get_api_version", table.getApiVersion, missing);
  find(library, "hwloc_topology_init", table.init, missing);
  find(library, "hwloc_topology_destroy", table.destroy, missing);
  find(library, "hwloc_topology_load", table.load, missing);
  find(library, "hwloc_topology_set_flags", table.setFlags, missing);
  find(library, "hwloc_topology_set_synthetic", table.setSynthetic, missing);
  find(library, "hwloc_topology_set_xmlbuffer", table.setXmlBuffer, missing);
  find(library, "hwloc_topology_set_io_types_filter", table.setIoTypesFilter, missing);
  find(library, "hwloc_topology_set_components", table.setComponents, missing);
  find(library, "hwloc_topology_is_thissystem", table.isThisSystem, missing);
  find(library, "hwloc_topology_get_allowed_cpuset", table.allowedCpuset, missing);
  find(library, "hwloc_topology_get_allowed_nodeset", table.allowedNodeset, missing);
  find(library, "hwloc_get_type_depth", table.typeDepth, missing);
  find(library, "hwloc_get_obj_by_depth", table.objectByDepth, missing);
  find(library, "hwloc_bitmap_next", table.bitmapNext, missing);
  if (!missing.empty()) {
    dlclose(library);
    return Error{pealSystemError,
                 fmt::format("{} has no {}: it is older than 2.1, or no hwloc. {}", name, missing, kRemedy)};
  }
  return table;
}

const Result<HwlocLibrary>& hwlocLibrary() {
  static const Result<HwlocLibrary> library = openHwloc(kName);
  return library;
}

}  // namespace peal
