// A small libibverbs in this process: devices, GID tables, registrations, completion queues, and reliable
// queue pairs that write into each other's memory. What real devices leave undefined is done the unkind way:
// data is read when it is sent and not when it is posted, queue pairs overtake each other, a failed one takes
// everything along, and destroying one forgets its completions.
//
// Tests of the verbs fabric give every rank a FakeVerbs over one World. All calls of all ranks take the
// World's lock.
#pragma once
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <vector>

#include "transports/verbs/library.h"

namespace peal::test {

struct FakePort {
  ibv_port_state state = IBV_PORT_ACTIVE;
  ibv_mtu mtu = IBV_MTU_4096;
  uint8_t linkLayer = IBV_LINK_LAYER_ETHERNET;
  uint16_t lid = 0;
  std::vector<ibv_gid_entry> gids;
};

struct FakeDeviceSpec {
  std::string name;
  std::vector<FakePort> ports;
};

// "10.0.0.1" or "fe80::1" as an entry of a GID table.
ibv_gid_entry gidEntry(uint32_t index, const std::string& address, uint32_t type);
// One RoCE port with that IPv4 address.
FakeDeviceSpec roceDevice(const std::string& name, const std::string& address);

// A message on the wire, as the hook sees it.
struct WireMessage {
  int rank = 0;        // the sender's
  std::string device;  // the sender's
  ibv_wr_opcode opcode = IBV_WR_SEND_WITH_IMM;
  uint32_t immediate = 0;
  size_t bytes = 0;
  bool withGlobalHeader = false;
  uint8_t serviceLevel = 0;
  uint8_t trafficClass = 0;
  bool isInline = false;
  uint32_t queuePair = 0;  // the sender's
  ibv_mtu mtu{};           // of its path
};

struct Verdict {
  // Stall: it and all that follows on its queue pair get nowhere, and nothing is said of them.
  enum Kind { Deliver, FailBefore, FailAfter, LoseCompletion, Stall } kind = Deliver;
  ibv_wc_status status = IBV_WC_RETRY_EXC_ERR;
};

class World {
 public:
  explicit World(unsigned seed = 1) : random_(seed) {}
  ~World();

  // Asked for every message, under the lock: it must not call the library.
  std::function<Verdict(const WireMessage&)> onMessage;
  // Messages wait in their queue pair for some later call of anybody.
  bool delay = false;
  // Addresses with one of these bits are a GPU's: registered by address only where there is peer memory.
  uint64_t gpuBits = 0;
  bool peerMemory = true;
  bool dmabufs = true;
  // What is written to memory of a GPU gets there when flushGpu() is called, and no sooner.
  bool holdGpuWrites = false;
  void flushGpu();
  // Devices whose cable is out.
  void cut(const std::string& device, bool isCut);
  // All queue pairs of that rank fail as if somebody had destroyed them.
  void breakQueuePairs(int rank, const std::string& device = "");

  int alive() const;       // objects that were made and not destroyed
  int refused() const;     // of them, those whose destruction failed: by plan, or because of one that did
  int violations() const;  // destroyed too early, queues overrun, receives missing
  uint64_t delivered() const;
  uint64_t completions() const;  // of sends

 private:
  friend class FakeVerbs;
  struct Qp;
  struct Cq;
  struct Mr;
  struct Channel;
  struct Send;

  // Frees an object, or keeps it until the World ends and returns EBUSY.
  template <class Object>
  int destroy(Object* object, bool isRefused);
  void complete(Cq& cq, const ibv_wc& completion);
  void fail(Qp& qp);
  void run(Qp& qp);
  void runSome();
  ibv_wc_status execute(Qp& qp, const Send& send);
  void writeTo(uint32_t key, uint64_t address, const std::vector<std::byte>& bytes);
  std::byte* inMemory(uint32_t key, uint64_t address) const;
  bool isOfGpu(uint64_t address) const { return (address & gpuBits) != 0; }
  bool covers(uint32_t key, const void* pd, uint64_t address, size_t bytes, int access) const;

  mutable std::mutex mutex_;
  std::mt19937 random_;
  std::map<uint32_t, Qp*> qps_;
  std::map<uint32_t, Mr*> mrs_;
  std::map<std::string, bool> cut_;
  std::vector<std::shared_ptr<void>> refused_;
  struct Held {
    std::byte* to = nullptr;
    std::vector<std::byte> bytes;
  };
  std::vector<Held> held_;
  uint32_t nextNumber_ = 17;
  uint32_t nextKey_ = 1000;
  int alive_ = 0;
  int violations_ = 0;
  uint64_t delivered_ = 0;
  uint64_t completions_ = 0;
};

class FakeVerbs final : public verbs::Library {
 public:
  FakeVerbs(World& world, int rank, std::vector<FakeDeviceSpec> devices);
  ~FakeVerbs() override;

  // The count-th call of that function fails from here on once; "" is none.
  void failOn(std::string function, int count) {
    failing_ = std::move(function);
    countdown_ = count;
  }
  bool hasFailed() const { return !failing_.empty() && countdown_ <= 0; }
  void setPortState(const std::string& device, ibv_port_state state);

  ibv_device** getDeviceList(int* count) override;
  void freeDeviceList(ibv_device** list) override;
  const char* deviceName(ibv_device* device) override;
  ibv_context* openDevice(ibv_device* device) override;
  int closeDevice(ibv_context* context) override;
  int queryDevice(ibv_context* context, ibv_device_attr* attributes) override;
  int queryPort(ibv_context* context, uint8_t port, ibv_port_attr* attributes) override;
  int queryGid(ibv_context* context, uint32_t port, uint32_t index, ibv_gid_entry* entry) override;
  ibv_pd* allocPd(ibv_context* context) override;
  int deallocPd(ibv_pd* pd) override;
  ibv_mr* regMr(ibv_pd* pd, void* address, size_t bytes, int access) override;
  ibv_mr* regDmabufMr(ibv_pd* pd, uint64_t offset, size_t bytes, uint64_t address, int dmabuf,
                      int access) override;
  int deregMr(ibv_mr* mr) override;
  ibv_comp_channel* createCompChannel(ibv_context* context) override;
  int destroyCompChannel(ibv_comp_channel* channel) override;
  ibv_cq* createCq(ibv_context* context, int entries, ibv_comp_channel* channel) override;
  int destroyCq(ibv_cq* cq) override;
  int getCqEvent(ibv_comp_channel* channel, ibv_cq** cq) override;
  void ackCqEvents(ibv_cq* cq, unsigned count) override;
  int reqNotifyCq(ibv_cq* cq) override;
  int pollCq(ibv_cq* cq, int most, ibv_wc* completions) override;
  ibv_qp* createQp(ibv_pd* pd, ibv_qp_init_attr* attributes) override;
  int modifyQp(ibv_qp* qp, ibv_qp_attr* attributes, int mask) override;
  int destroyQp(ibv_qp* qp) override;
  int postSend(ibv_qp* qp, ibv_send_wr* request) override;
  int postRecv(ibv_qp* qp, ibv_recv_wr* request) override;

  size_t registrations = 0;  // calls of regMr and regDmabufMr that succeeded
  size_t dmabufs = 0;        // of these, calls of regDmabufMr
  size_t completionQueues = 0;
  size_t queuePairs = 0;

 private:
  struct Context;
  bool fails(const char* function);
  ibv_mr* registered(ibv_pd* pd, void* address, size_t bytes, int access, std::byte* mapped);

  World& world_;
  const int rank_;
  std::vector<FakeDeviceSpec> specs_;
  std::vector<std::unique_ptr<ibv_device>> devices_;
  std::string failing_;
  int countdown_ = 0;
};

}  // namespace peal::test
