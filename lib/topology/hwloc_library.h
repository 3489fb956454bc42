// libhwloc, opened at run time: the library runs where it is not installed.
//
// Only lib/topology includes this. hwloc's headers also hold inline functions that call its library: those
// would need it at link time and are not used.
#pragma once
#include <hwloc.h>

#include <string>

#include "lib/base/result.h"

namespace peal {

struct HwlocLibrary {
  decltype(&hwloc_get_api_version) getApiVersion = nullptr;
  decltype(&hwloc_topology_init) init = nullptr;
  decltype(&hwloc_topology_destroy) destroy = nullptr;
  decltype(&hwloc_topology_load) load = nullptr;
  decltype(&hwloc_topology_set_flags) setFlags = nullptr;
  decltype(&hwloc_topology_set_synthetic) setSynthetic = nullptr;
  decltype(&hwloc_topology_set_xmlbuffer) setXmlBuffer = nullptr;
  decltype(&hwloc_topology_set_io_types_filter) setIoTypesFilter = nullptr;
  decltype(&hwloc_topology_set_components) setComponents = nullptr;
  decltype(&hwloc_topology_is_thissystem) isThisSystem = nullptr;
  decltype(&hwloc_topology_get_allowed_cpuset) allowedCpuset = nullptr;
  decltype(&hwloc_topology_get_allowed_nodeset) allowedNodeset = nullptr;
  decltype(&hwloc_get_type_depth) typeDepth = nullptr;
  decltype(&hwloc_get_obj_by_depth) objectByDepth = nullptr;
  decltype(&hwloc_bitmap_next) bitmapNext = nullptr;
};

// Opened once and kept. The error says which name was tried and what is missing.
const Result<HwlocLibrary>& hwlocLibrary();

// The same of any library by that name: for tests.
Result<HwlocLibrary> openHwloc(const char* name);

}  // namespace peal
