// The devices of this machine: which ports are used and why others are not, and an opened device with what
// all links share on it.
//
// Owned by the fabric. Teardown: queue pairs and registrations first, then the completion queue, its channel,
// the protection domain, the device.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "transports/verbs/library.h"
#include "transports/verbs/options.h"
#include "transports/verbs/verbs.h"

namespace peal::verbs {

// One device, open. Not movable: queue pairs point to it.
class Device {
 public:
  static Result<std::unique_ptr<Device>> open(Library& library, ibv_device* device);
  ~Device();
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  // One completion queue for everything on this device: a fabric is used by one thread, so that is one per
  // thread, and looking for arrivals costs the same whatever the number of peers.
  Result<void> makeQueue(int entries);

  Library& library() const { return library_; }
  const std::string& name() const { return name_; }
  ibv_context* context() const { return context_; }
  ibv_pd* pd() const { return pd_; }
  ibv_cq* cq() const { return cq_; }
  ibv_comp_channel* channel() const { return channel_; }
  const ibv_device_attr& attributes() const { return attributes_; }

  // Takes all events out of the channel, without blocking.
  void drainEvents();

 private:
  Device(Library& library, std::string name) : library_(library), name_(std::move(name)) {}

  Library& library_;
  const std::string name_;
  ibv_context* context_ = nullptr;
  ibv_pd* pd_ = nullptr;
  ibv_comp_channel* channel_ = nullptr;
  ibv_cq* cq_ = nullptr;
  ibv_device_attr attributes_{};
};

// One port that is used: the k-th of every node forms a rail.
struct Rail {
  Device* device = nullptr;
  uint8_t port = 1;
  uint16_t lid = 0;
  uint8_t linkLayer = IBV_LINK_LAYER_ETHERNET;
  ibv_mtu mtu = IBV_MTU_1024;
  ChosenGid gid;
  std::string name() const;  // "mlx5_0:1"
};

struct Inventory {
  std::vector<std::unique_ptr<Device>> devices;  // those with a rail
  std::vector<Rail> rails;
  std::vector<VerbsPort> ports;  // all, for people
};

// Opens what the options select. Without `rails` in the result there is nothing to use: explain() says why.
Result<Inventory> takeInventory(Library& library, const Options& options);
// "rxe0:1: it is DOWN; ..." of every unused port, or that there is no device.
std::string explain(const std::vector<VerbsPort>& ports);

}  // namespace peal::verbs
