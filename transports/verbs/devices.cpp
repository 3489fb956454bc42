#include "transports/verbs/devices.h"

#include <fcntl.h>
#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <span>

#include "lib/base/patterns.h"
#include "transports/verbs/interface.h"

namespace peal::verbs {
namespace {

Error failed(const char* call, const std::string& device, int code, const char* remedy) {
  return {pealSystemError, fmt::format("{} of {} failed: {}. {}", call, device, std::strerror(code), remedy)};
}

constexpr const char* kPermissions = "May this user open /dev/infiniband/uverbs*?";

const char* stateText(ibv_port_state state) {
  constexpr const char* kNames[] = {"NOP", "DOWN", "INIT", "ARMED", "ACTIVE", "ACTIVE_DEFER"};
  return state >= IBV_PORT_NOP && state <= IBV_PORT_ACTIVE_DEFER ? kNames[state] : "?";
}

int mtuBytes(ibv_mtu mtu) { return 128 << static_cast<int>(mtu); }

bool matches(const NamePattern& pattern, const std::string& device, int port) {
  const size_t colon = pattern.name.rfind(':');
  NamePattern name = pattern;
  if (colon != std::string_view::npos) {
    if (pattern.name.substr(colon + 1) != std::to_string(port)) {
      return false;
    }
    name.name = pattern.name.substr(0, colon);
  }
  return name.matches(device);
}

Result<ChosenGid> gidOf(Device& device, uint8_t port, const ibv_port_attr& attributes,
                        const Options& options) {
  std::vector<ibv_gid_entry> table;
  for (int index = 0; index < attributes.gid_tbl_len; ++index) {
    ibv_gid_entry entry{};
    const int code = device.library().queryGid(device.context(), port, static_cast<uint32_t>(index), &entry);
    if (code == 0) {
      table.push_back(entry);
    } else if (code != ENODATA) {  // ENODATA: an empty entry
      return Error{pealSystemError,
                   fmt::format("reading entry {} of its GID table failed: {}", index, std::strerror(code))};
    }
  }
  const std::string dropped = dropUnselected(table, device.name(), port, options);
  if (table.empty() && !dropped.empty()) {
    return Error{pealInvalidArgument, fmt::format("PEAL_INTERFACE=\"{}\" does not select its interface {}",
                                                  options.interfaces, dropped)};
  }
  return chooseGid(table, options.gid);
}

// Fills in `rail` and `shown`; shown.unused says why the port cannot be used.
void inspect(Device& device, uint8_t port, const Options& options, Rail& rail, VerbsPort& shown) {
  ibv_port_attr attributes{};
  if (const int code = device.library().queryPort(device.context(), port, &attributes); code != 0) {
    shown.unused = fmt::format("ibv_query_port: {}", std::strerror(code));
    return;
  }
  shown.link = attributes.link_layer == IBV_LINK_LAYER_ETHERNET ? "Ethernet" : "InfiniBand";
  shown.state = stateText(attributes.state);
  shown.mtuBytes = mtuBytes(attributes.active_mtu);
  rail = Rail{&device, port, attributes.lid, attributes.link_layer, attributes.active_mtu, {}};
  if (attributes.state != IBV_PORT_ACTIVE) {
    shown.unused = fmt::format("the port is {}", shown.state);
    return;
  }
  Result<ChosenGid> gid = gidOf(device, port, attributes, options);
  if (!gid) {
    shown.unused = gid.error().message;
    return;
  }
  rail.gid = *gid;
  shown.address = attributes.link_layer == IBV_LINK_LAYER_ETHERNET
                      ? fmt::format("{} ({})", gidText(gid->gid), gidTypeText(gid->type))
                      : fmt::format("LID {}, {}", attributes.lid, gidText(gid->gid));
}

struct DeviceList {
  DeviceList(Library& owner) : library(owner), list(owner.getDeviceList(&count)), code(errno) {}
  ~DeviceList() {
    if (list != nullptr) {
      library.freeDeviceList(list);
    }
  }
  DeviceList(const DeviceList&) = delete;
  DeviceList& operator=(const DeviceList&) = delete;

  Library& library;
  int count = 0;
  ibv_device** list;
  int code;
};

}  // namespace

Result<std::unique_ptr<Device>> Device::open(Library& library, ibv_device* raw) {
  std::unique_ptr<Device> device(new Device(library, library.deviceName(raw)));
  device->context_ = library.openDevice(raw);
  if (device->context_ == nullptr) {
    return failed("ibv_open_device", device->name_, errno, kPermissions);
  }
  if (const int code = library.queryDevice(device->context_, &device->attributes_); code != 0) {
    return failed("ibv_query_device", device->name_, code, kPermissions);
  }
  device->pd_ = library.allocPd(device->context_);
  if (device->pd_ == nullptr) {
    return failed("ibv_alloc_pd", device->name_, errno, kPermissions);
  }
  return device;
}

Result<void> Device::makeQueue(int entries) {
  channel_ = library_.createCompChannel(context_);
  if (channel_ == nullptr) {
    return failed("ibv_create_comp_channel", name_, errno, "Are there descriptors left (ulimit -n)?");
  }
  const int flags = fcntl(channel_->fd, F_GETFL);
  if (flags < 0 || fcntl(channel_->fd, F_SETFL, flags | O_NONBLOCK) != 0) {
    return failed("making the completion channel non-blocking", name_, errno, "");
  }
  cq_ = library_.createCq(context_, entries, channel_);
  if (cq_ == nullptr) {
    return failed(fmt::format("ibv_create_cq with {} entries", entries).c_str(), name_, errno,
                  "Use fewer queue pairs or slots (PEAL_IB_QUEUE_PAIRS, PEAL_SLOTS), or raise the limit of "
                  "locked memory (ulimit -l).");
  }
  return {};
}

void Device::drainEvents() {
  ibv_cq* cq = nullptr;
  unsigned events = 0;
  while (channel_ != nullptr && library_.getCqEvent(channel_, &cq) == 0) {
    ++events;
  }
  if (events > 0) {
    library_.ackCqEvents(cq_, events);
  }
}

Device::~Device() {
  if (cq_ != nullptr) {
    library_.destroyCq(cq_);
  }
  if (channel_ != nullptr) {
    library_.destroyCompChannel(channel_);
  }
  if (pd_ != nullptr) {
    library_.deallocPd(pd_);
  }
  if (context_ != nullptr) {
    library_.closeDevice(context_);
  }
}

std::string Rail::name() const { return fmt::format("{}:{}", device->name(), port); }

std::string explain(const std::vector<VerbsPort>& ports) {
  std::string text;
  for (const VerbsPort& port : ports) {
    text += fmt::format("{}{}:{}: {}", text.empty() ? "" : "; ", port.device, port.port,
                        port.unused.empty() ? "usable" : port.unused);
  }
  return text.empty() ? "there is no InfiniBand or RoCE device" : text;
}

Result<Inventory> takeInventory(Library& library, const Options& options) {
  const DeviceList all(library);
  if (all.list == nullptr) {
    return Error{pealSystemError,
                 fmt::format("ibv_get_device_list: {}. Is the kernel's module ib_uverbs loaded, and is "
                             "/dev/infiniband visible here?",
                             std::strerror(all.code))};
  }
  const std::vector<NamePattern> patterns = parsePatterns(options.devices);
  Inventory found;
  for (ibv_device* raw : std::span(all.list, static_cast<size_t>(all.count))) {
    Result<std::unique_ptr<Device>> device = Device::open(library, raw);
    if (!device) {
      VerbsPort shown;
      shown.device = library.deviceName(raw);
      shown.unused = device.error().message;
      found.ports.push_back(std::move(shown));
      continue;
    }
    const size_t before = found.rails.size();
    for (uint8_t port = 1; port <= (*device)->attributes().phys_port_cnt; ++port) {
      VerbsPort shown;
      shown.device = (*device)->name();
      shown.port = port;
      Rail rail;
      inspect(**device, port, options, rail, shown);
      if (!selects(patterns,
                   [&](const NamePattern& pattern) { return matches(pattern, shown.device, port); })) {
        shown.unused = fmt::format("PEAL_IB_DEVICES=\"{}\" does not select it", options.devices);
      }
      if (shown.unused.empty()) {
        found.rails.push_back(rail);
      }
      found.ports.push_back(std::move(shown));
    }
    if (found.rails.size() > before) {
      found.devices.push_back(std::move(*device));
    }
  }
  // The same order on every node, whatever order the drivers were loaded in: mlx5_2 before mlx5_10.
  std::sort(found.rails.begin(), found.rails.end(), [](const Rail& a, const Rail& b) {
    const std::string x = a.name();
    const std::string y = b.name();
    return x.size() != y.size() ? x.size() < y.size() : x < y;
  });
  return found;
}

}  // namespace peal::verbs
