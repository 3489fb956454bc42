#include "tests/transports/verbs/fake.h"

#include <arpa/inet.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace peal::test {

struct World::Channel : ibv_comp_channel {
  std::deque<ibv_cq*> events;
  int users = 0;
};

struct World::Cq : ibv_cq {
  std::deque<std::pair<uint32_t, ibv_wc>> entries;  // with the queue pair's number
  bool armed = false;
  int unacknowledged = 0;
};

struct World::Mr : ibv_mr {
  Mr() : ibv_mr{} {}
  Mr(const Mr&) = delete;
  Mr& operator=(const Mr&) = delete;
  ~Mr() {
    if (mapped != nullptr) {
      munmap(mapped, length);
    }
  }
  int access = 0;
  std::byte* mapped = nullptr;  // of a dmabuf
};

struct World::Send {
  ibv_send_wr request{};
  std::vector<ibv_sge> parts;
  std::vector<std::byte> inlined;
};

struct World::Qp : ibv_qp {
  int rank = 0;
  std::string device;
  ibv_qp_cap cap{};
  uint32_t peer = 0;
  bool global = false;
  bool stalled = false;
  ibv_mtu mtu{};
  uint8_t serviceLevel = 0;
  uint8_t trafficClass = 0;
  std::deque<Send> sends;
  std::deque<uint64_t> receives;
};

struct FakeVerbs::Context : ibv_context {
  size_t spec = 0;
};

ibv_gid_entry gidEntry(uint32_t index, const std::string& address, uint32_t type) {
  ibv_gid_entry entry{};
  in_addr ipv4{};
  if (inet_pton(AF_INET, address.c_str(), &ipv4) == 1) {
    entry.gid.raw[10] = entry.gid.raw[11] = 0xff;
    std::memcpy(entry.gid.raw + 12, &ipv4, sizeof ipv4);
  } else {
    inet_pton(AF_INET6, address.c_str(), entry.gid.raw);
  }
  entry.gid_index = index;
  entry.port_num = 1;
  entry.gid_type = type;
  return entry;
}

FakeDeviceSpec roceDevice(const std::string& name, const std::string& address) {
  FakePort port;
  port.gids = {gidEntry(0, "fe80::1", IBV_GID_TYPE_ROCE_V1), gidEntry(1, "fe80::1", IBV_GID_TYPE_ROCE_V2),
               gidEntry(2, address, IBV_GID_TYPE_ROCE_V1), gidEntry(3, address, IBV_GID_TYPE_ROCE_V2)};
  return {name, {port}};
}

// ---- the wire ----

World::~World() = default;

int World::alive() const {
  const std::lock_guard lock(mutex_);
  return alive_;
}
int World::refused() const {
  const std::lock_guard lock(mutex_);
  return static_cast<int>(refused_.size());
}
int World::violations() const {
  const std::lock_guard lock(mutex_);
  return violations_;
}
uint64_t World::delivered() const {
  const std::lock_guard lock(mutex_);
  return delivered_;
}
uint64_t World::completions() const {
  const std::lock_guard lock(mutex_);
  return completions_;
}

void World::cut(const std::string& device, bool isCut) {
  const std::lock_guard lock(mutex_);
  cut_[device] = isCut;
}

void World::breakQueuePairs(int rank, const std::string& device) {
  const std::lock_guard lock(mutex_);
  for (const auto& [number, qp] : qps_) {
    if (qp->rank == rank && (device.empty() || qp->device == device)) {
      fail(*qp);
    }
  }
}

template <class Object>
int World::destroy(Object* object, bool isRefused) {
  if (isRefused) {
    refused_.emplace_back(object);
    return EBUSY;
  }
  delete object;
  --alive_;
  return 0;
}

void World::complete(Cq& cq, const ibv_wc& completion) {
  if (cq.entries.size() >= static_cast<size_t>(cq.cqe)) {
    ++violations_;
  }
  cq.entries.emplace_back(completion.qp_num, completion);
  if (cq.armed && cq.channel != nullptr) {
    cq.armed = false;
    auto* channel = static_cast<Channel*>(cq.channel);
    channel->events.push_back(&cq);
    const uint64_t one = 1;
    if (write(channel->fd, &one, sizeof one) != sizeof one) {
      ++violations_;
    }
  }
}

void World::fail(Qp& qp) {
  if (qp.state == IBV_QPS_ERR || qp.state == IBV_QPS_RESET) {
    return;
  }
  qp.state = IBV_QPS_ERR;
  ibv_wc flushed{};
  flushed.status = IBV_WC_WR_FLUSH_ERR;
  flushed.qp_num = qp.qp_num;
  for (const Send& send : qp.sends) {
    flushed.wr_id = send.request.wr_id;
    complete(*static_cast<Cq*>(qp.send_cq), flushed);
  }
  for (const uint64_t id : qp.receives) {
    flushed.wr_id = id;
    complete(*static_cast<Cq*>(qp.recv_cq), flushed);
  }
  qp.sends.clear();
  qp.receives.clear();
}

bool World::covers(uint32_t key, const void* pd, uint64_t address, size_t bytes, int access) const {
  const auto found = mrs_.find(key);
  if (found == mrs_.end() || (pd != nullptr && found->second->pd != pd)) {
    return false;
  }
  const Mr& mr = *found->second;
  const auto base = reinterpret_cast<uint64_t>(mr.addr);
  return address >= base && bytes <= mr.length && address - base <= mr.length - bytes &&
         (mr.access & access) == access;
}

std::byte* World::inMemory(uint32_t key, uint64_t address) const {
  const Mr& mr = *mrs_.at(key);
  return mr.mapped != nullptr ? mr.mapped + (address - reinterpret_cast<uint64_t>(mr.addr))
                              : reinterpret_cast<std::byte*>(address & ~gpuBits);
}

void World::writeTo(uint32_t key, uint64_t address, const std::vector<std::byte>& bytes) {
  std::byte* const to = inMemory(key, address);
  if (holdGpuWrites && isOfGpu(address)) {
    held_.push_back({to, bytes});
  } else {
    std::copy(bytes.begin(), bytes.end(), to);
  }
}

void World::flushGpu() {
  const std::lock_guard lock(mutex_);
  for (const Held& write : held_) {
    std::copy(write.bytes.begin(), write.bytes.end(), write.to);
  }
  held_.clear();
}

// Sends the message to its counterpart; the status is the sender's.
ibv_wc_status World::execute(Qp& qp, const Send& send) {
  size_t bytes = send.inlined.size();
  for (const ibv_sge& part : send.parts) {
    if (!covers(part.lkey, qp.pd, part.addr, part.length, 0)) {
      return IBV_WC_LOC_PROT_ERR;
    }
    bytes += part.length;
  }
  const auto found = qps_.find(qp.peer);
  if (found == qps_.end() || cut_[qp.device] || cut_[found->second->device]) {
    return IBV_WC_RETRY_EXC_ERR;
  }
  Qp& peer = *found->second;
  if ((peer.state != IBV_QPS_RTR && peer.state != IBV_QPS_RTS) || peer.peer != qp.qp_num) {
    return IBV_WC_RETRY_EXC_ERR;
  }
  const bool arrives = send.request.opcode != IBV_WR_RDMA_WRITE;
  if (arrives && peer.receives.empty()) {
    ++violations_;  // the fabric says that one is always there
    return IBV_WC_RNR_RETRY_EXC_ERR;
  }
  const bool isWrite = send.request.opcode != IBV_WR_SEND_WITH_IMM;
  if (isWrite) {
    const uint64_t to = send.request.wr.rdma.remote_addr;
    if (!covers(send.request.wr.rdma.rkey, nullptr, to, bytes, IBV_ACCESS_REMOTE_WRITE)) {
      fail(peer);
      return IBV_WC_REM_ACCESS_ERR;
    }
    std::vector<std::byte> content = send.inlined;
    for (const ibv_sge& part : send.parts) {
      const std::byte* const from = inMemory(part.lkey, part.addr);
      content.insert(content.end(), from, from + part.length);
    }
    writeTo(send.request.wr.rdma.rkey, to, content);
  }
  if (!arrives) {
    ++delivered_;
    return IBV_WC_SUCCESS;
  }
  ibv_wc arrived{};
  arrived.wr_id = peer.receives.front();
  arrived.qp_num = peer.qp_num;
  arrived.opcode = isWrite ? IBV_WC_RECV_RDMA_WITH_IMM : IBV_WC_RECV;
  arrived.wc_flags = IBV_WC_WITH_IMM;
  arrived.imm_data = send.request.imm_data;
  arrived.byte_len = static_cast<uint32_t>(bytes);
  peer.receives.pop_front();
  complete(*static_cast<Cq*>(peer.recv_cq), arrived);
  ++delivered_;
  return IBV_WC_SUCCESS;
}

// The oldest message of that queue pair.
void World::run(Qp& qp) {
  const Send send = std::move(qp.sends.front());
  qp.sends.pop_front();
  WireMessage message{qp.rank,   qp.device,       send.request.opcode, ntohl(send.request.imm_data), 0,
                      qp.global, qp.serviceLevel, qp.trafficClass,     !send.inlined.empty()};
  message.queuePair = qp.qp_num;
  message.mtu = qp.mtu;
  message.bytes = send.inlined.size();
  for (const ibv_sge& part : send.parts) {
    message.bytes += part.length;
  }
  const Verdict verdict = onMessage ? onMessage(message) : Verdict{};
  qp.stalled = qp.stalled || verdict.kind == Verdict::Stall;
  if (qp.stalled) {
    return;
  }
  ibv_wc done{};
  done.wr_id = send.request.wr_id;
  done.qp_num = qp.qp_num;
  done.status = verdict.kind == Verdict::FailBefore ? verdict.status : execute(qp, send);
  if (verdict.kind == Verdict::FailAfter && done.status == IBV_WC_SUCCESS) {
    done.status = verdict.status;
  }
  if (done.status != IBV_WC_SUCCESS) {
    complete(*static_cast<Cq*>(qp.send_cq), done);
    fail(qp);
  } else if (verdict.kind != Verdict::LoseCompletion && (send.request.send_flags & IBV_SEND_SIGNALED) != 0) {
    ++completions_;
    complete(*static_cast<Cq*>(qp.send_cq), done);
  }
}

void World::runSome() {
  for (const auto& [number, qp] : qps_) {
    // Now and then, so that queue pairs overtake each other.
    while (!qp->sends.empty() && random_() % 3 == 0) {
      run(*qp);
    }
  }
}

// ---- the library ----

FakeVerbs::FakeVerbs(World& world, int rank, std::vector<FakeDeviceSpec> devices)
    : world_(world), rank_(rank), specs_(std::move(devices)) {
  for (const FakeDeviceSpec& spec : specs_) {
    auto device = std::make_unique<ibv_device>();
    std::strncpy(device->name, spec.name.c_str(), sizeof device->name - 1);
    devices_.push_back(std::move(device));
  }
}
FakeVerbs::~FakeVerbs() = default;

bool FakeVerbs::fails(const char* function) {
  if (failing_ != function || --countdown_ != 0) {
    return false;
  }
  errno = ENOMEM;
  return true;
}

void FakeVerbs::setPortState(const std::string& device, ibv_port_state state) {
  const std::lock_guard lock(world_.mutex_);
  for (FakeDeviceSpec& spec : specs_) {
    if (spec.name == device) {
      spec.ports.front().state = state;
    }
  }
}

ibv_device** FakeVerbs::getDeviceList(int* count) {
  const std::lock_guard lock(world_.mutex_);
  if (fails("getDeviceList")) {
    return nullptr;
  }
  auto** list = new ibv_device*[devices_.size() + 1];
  for (size_t i = 0; i < devices_.size(); ++i) {
    list[i] = devices_[i].get();
  }
  *count = static_cast<int>(devices_.size());
  ++world_.alive_;
  return list;
}
void FakeVerbs::freeDeviceList(ibv_device** list) {
  const std::lock_guard lock(world_.mutex_);
  delete[] list;
  --world_.alive_;
}
const char* FakeVerbs::deviceName(ibv_device* device) { return device->name; }

ibv_context* FakeVerbs::openDevice(ibv_device* device) {
  const std::lock_guard lock(world_.mutex_);
  if (fails("openDevice")) {
    return nullptr;
  }
  auto* context = new Context{};
  context->device = device;
  while (devices_[context->spec].get() != device) {
    ++context->spec;
  }
  ++world_.alive_;
  return context;
}
int FakeVerbs::closeDevice(ibv_context* context) {
  const std::lock_guard lock(world_.mutex_);
  return world_.destroy(static_cast<Context*>(context), fails("closeDevice"));
}
int FakeVerbs::queryDevice(ibv_context* context, ibv_device_attr* attributes) {
  const std::lock_guard lock(world_.mutex_);
  if (fails("queryDevice")) {
    return EIO;
  }
  *attributes = {};
  attributes->phys_port_cnt = static_cast<uint8_t>(specs_[static_cast<Context*>(context)->spec].ports.size());
  return 0;
}
int FakeVerbs::queryPort(ibv_context* context, uint8_t port, ibv_port_attr* attributes) {
  const std::lock_guard lock(world_.mutex_);
  if (fails("queryPort")) {
    return EIO;
  }
  const FakePort& fake = specs_[static_cast<Context*>(context)->spec].ports[port - 1U];
  *attributes = {};
  attributes->state = fake.state;
  attributes->active_mtu = fake.mtu;
  attributes->link_layer = fake.linkLayer;
  attributes->lid = fake.lid;
  attributes->gid_tbl_len = static_cast<int>(fake.gids.size()) + 1;  // and an empty entry
  return 0;
}
int FakeVerbs::queryGid(ibv_context* context, uint32_t port, uint32_t index, ibv_gid_entry* entry) {
  const std::lock_guard lock(world_.mutex_);
  if (fails("queryGid")) {
    return EIO;
  }
  const FakePort& fake = specs_[static_cast<Context*>(context)->spec].ports[port - 1U];
  if (index >= fake.gids.size()) {
    return ENODATA;
  }
  *entry = fake.gids[index];
  return 0;
}

ibv_pd* FakeVerbs::allocPd(ibv_context* context) {
  const std::lock_guard lock(world_.mutex_);
  if (fails("allocPd")) {
    return nullptr;
  }
  ++world_.alive_;
  return new ibv_pd{context, 0};
}
int FakeVerbs::deallocPd(ibv_pd* pd) {
  const std::lock_guard lock(world_.mutex_);
  const bool used = std::any_of(world_.mrs_.begin(), world_.mrs_.end(),
                                [&](const auto& mr) { return mr.second->pd == pd; }) ||
                    std::any_of(world_.qps_.begin(), world_.qps_.end(),
                                [&](const auto& qp) { return qp.second->pd == pd; });
  world_.violations_ += used && world_.refused_.empty() ? 1 : 0;
  return world_.destroy(pd, fails("deallocPd") || used);
}

ibv_mr* FakeVerbs::regMr(ibv_pd* pd, void* address, size_t bytes, int access) {
  const std::lock_guard lock(world_.mutex_);
  if (fails("regMr")) {
    return nullptr;
  }
  const bool remoteWithoutLocal =
      (access & IBV_ACCESS_REMOTE_WRITE) != 0 && (access & IBV_ACCESS_LOCAL_WRITE) == 0;
  if (bytes == 0 || remoteWithoutLocal) {
    errno = EINVAL;
    return nullptr;
  }
  if (world_.isOfGpu(reinterpret_cast<uint64_t>(address)) && !world_.peerMemory) {
    errno = EFAULT;
    return nullptr;
  }
  return registered(pd, address, bytes, access, nullptr);
}
ibv_mr* FakeVerbs::regDmabufMr(ibv_pd* pd, uint64_t offset, size_t bytes, uint64_t address, int dmabuf,
                               int access) {
  const std::lock_guard lock(world_.mutex_);
  if (fails("regDmabufMr")) {
    return nullptr;
  }
  if (!world_.dmabufs) {
    errno = EOPNOTSUPP;
    return nullptr;
  }
  void* const mapped =
      mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, dmabuf, static_cast<off_t>(offset));
  if (mapped == MAP_FAILED) {
    return nullptr;
  }
  ++dmabufs;
  return registered(pd, reinterpret_cast<void*>(address), bytes, access, static_cast<std::byte*>(mapped));
}
ibv_mr* FakeVerbs::registered(ibv_pd* pd, void* address, size_t bytes, int access, std::byte* mapped) {
  auto* mr = new World::Mr{};
  mr->mapped = mapped;
  mr->context = pd->context;
  mr->pd = pd;
  mr->addr = address;
  mr->length = bytes;
  mr->lkey = mr->rkey = world_.nextKey_++;
  mr->access = access;
  world_.mrs_[mr->lkey] = mr;
  ++world_.alive_;
  ++registrations;
  return mr;
}
int FakeVerbs::deregMr(ibv_mr* mr) {
  const std::lock_guard lock(world_.mutex_);
  const bool isRefused = fails("deregMr");
  if (!isRefused) {
    world_.mrs_.erase(mr->lkey);
    const std::byte* const mapped = static_cast<World::Mr*>(mr)->mapped;
    std::erase_if(world_.held_, [&](const World::Held& write) {
      return mapped != nullptr && write.to >= mapped && write.to < mapped + mr->length;
    });
  }
  return world_.destroy(static_cast<World::Mr*>(mr), isRefused);
}

ibv_comp_channel* FakeVerbs::createCompChannel(ibv_context* context) {
  const std::lock_guard lock(world_.mutex_);
  if (fails("createCompChannel")) {
    return nullptr;
  }
  auto* channel = new World::Channel{};
  channel->context = context;
  channel->fd = eventfd(0, EFD_CLOEXEC | EFD_SEMAPHORE);
  ++world_.alive_;
  return channel;
}
int FakeVerbs::destroyCompChannel(ibv_comp_channel* raw) {
  const std::lock_guard lock(world_.mutex_);
  auto* channel = static_cast<World::Channel*>(raw);
  world_.violations_ += channel->users > 0 && world_.refused_.empty() ? 1 : 0;
  const bool isRefused = fails("destroyCompChannel") || channel->users > 0;
  if (!isRefused) {
    close(channel->fd);
  }
  return world_.destroy(channel, isRefused);
}
ibv_cq* FakeVerbs::createCq(ibv_context* context, int entries, ibv_comp_channel* channel) {
  const std::lock_guard lock(world_.mutex_);
  if (fails("createCq")) {
    return nullptr;
  }
  auto* cq = new World::Cq{};
  cq->context = context;
  cq->channel = channel;
  cq->cqe = entries;
  ++static_cast<World::Channel*>(channel)->users;
  ++completionQueues;
  ++world_.alive_;
  return cq;
}
int FakeVerbs::destroyCq(ibv_cq* raw) {
  const std::lock_guard lock(world_.mutex_);
  auto* cq = static_cast<World::Cq*>(raw);
  const bool used = std::any_of(world_.qps_.begin(), world_.qps_.end(),
                                [&](const auto& qp) { return qp.second->send_cq == cq; });
  world_.violations_ += (used && world_.refused_.empty()) || cq->unacknowledged != 0 ? 1 : 0;
  const bool isRefused = fails("destroyCq") || used;
  if (!isRefused) {
    --static_cast<World::Channel*>(cq->channel)->users;
  }
  return world_.destroy(cq, isRefused);
}
int FakeVerbs::getCqEvent(ibv_comp_channel* raw, ibv_cq** cq) {
  const std::lock_guard lock(world_.mutex_);
  auto* channel = static_cast<World::Channel*>(raw);
  if (fails("getCqEvent")) {
    return -1;
  }
  uint64_t one = 0;
  if (channel->events.empty() || read(channel->fd, &one, sizeof one) != sizeof one) {
    errno = EAGAIN;
    return -1;
  }
  *cq = channel->events.front();
  channel->events.pop_front();
  ++static_cast<World::Cq*>(*cq)->unacknowledged;
  return 0;
}
void FakeVerbs::ackCqEvents(ibv_cq* cq, unsigned count) {
  const std::lock_guard lock(world_.mutex_);
  static_cast<World::Cq*>(cq)->unacknowledged -= static_cast<int>(count);
}
int FakeVerbs::reqNotifyCq(ibv_cq* cq) {
  const std::lock_guard lock(world_.mutex_);
  if (fails("reqNotifyCq")) {
    return EIO;
  }
  static_cast<World::Cq*>(cq)->armed = true;
  return 0;
}
int FakeVerbs::pollCq(ibv_cq* raw, int most, ibv_wc* completions) {
  const std::lock_guard lock(world_.mutex_);
  if (fails("pollCq")) {
    return -1;
  }
  world_.runSome();
  auto* cq = static_cast<World::Cq*>(raw);
  int count = 0;
  while (count < most && !cq->entries.empty()) {
    completions[count++] = cq->entries.front().second;
    cq->entries.pop_front();
  }
  return count;
}

ibv_qp* FakeVerbs::createQp(ibv_pd* pd, ibv_qp_init_attr* attributes) {
  const std::lock_guard lock(world_.mutex_);
  if (fails("createQp")) {
    return nullptr;
  }
  if (attributes->cap.max_inline_data > 200) {  // as devices that offer less than they are asked for
    errno = EINVAL;
    return nullptr;
  }
  auto* qp = new World::Qp{};
  qp->context = pd->context;
  qp->pd = pd;
  qp->send_cq = attributes->send_cq;
  qp->recv_cq = attributes->recv_cq;
  qp->qp_type = attributes->qp_type;
  qp->state = IBV_QPS_RESET;
  qp->qp_num = world_.nextNumber_++;
  qp->rank = rank_;
  qp->device = specs_[static_cast<Context*>(pd->context)->spec].name;
  qp->cap = attributes->cap;
  world_.qps_[qp->qp_num] = qp;
  ++world_.alive_;
  ++queuePairs;
  return qp;
}
int FakeVerbs::modifyQp(ibv_qp* raw, ibv_qp_attr* attributes, int mask) {
  const std::lock_guard lock(world_.mutex_);
  if (fails("modifyQp")) {
    return EIO;
  }
  auto* qp = static_cast<World::Qp*>(raw);
  if (attributes->qp_state == IBV_QPS_ERR) {
    world_.fail(*qp);
    return 0;
  }
  const bool inOrder = (attributes->qp_state == IBV_QPS_INIT && qp->state == IBV_QPS_RESET) ||
                       (attributes->qp_state == IBV_QPS_RTR && qp->state == IBV_QPS_INIT) ||
                       (attributes->qp_state == IBV_QPS_RTS && qp->state == IBV_QPS_RTR);
  if (!inOrder) {
    return EINVAL;
  }
  qp->state = attributes->qp_state;
  if ((mask & IBV_QP_DEST_QPN) != 0) {
    qp->peer = attributes->dest_qp_num;
  }
  if ((mask & IBV_QP_PATH_MTU) != 0) {
    qp->mtu = attributes->path_mtu;
  }
  if ((mask & IBV_QP_AV) != 0) {
    qp->global = attributes->ah_attr.is_global != 0;
    qp->serviceLevel = attributes->ah_attr.sl;
    qp->trafficClass = attributes->ah_attr.grh.traffic_class;
  }
  return 0;
}
int FakeVerbs::destroyQp(ibv_qp* raw) {
  const std::lock_guard lock(world_.mutex_);
  auto* qp = static_cast<World::Qp*>(raw);
  const bool isRefused = fails("destroyQp");
  if (!isRefused) {
    auto* cq = static_cast<World::Cq*>(qp->send_cq);
    std::erase_if(cq->entries, [&](const auto& entry) { return entry.first == qp->qp_num; });
    world_.qps_.erase(qp->qp_num);
  }
  return world_.destroy(qp, isRefused);
}

int FakeVerbs::postSend(ibv_qp* raw, ibv_send_wr* request) {
  const std::lock_guard lock(world_.mutex_);
  auto* qp = static_cast<World::Qp*>(raw);
  if (fails("postSend")) {
    return ENOMEM;
  }
  if (qp->state != IBV_QPS_RTS && qp->state != IBV_QPS_ERR) {
    return EINVAL;
  }
  World::Send send;
  send.request = *request;
  for (int i = 0; i < request->num_sge; ++i) {
    const ibv_sge& part = request->sg_list[i];
    if ((request->send_flags & IBV_SEND_INLINE) != 0) {
      const auto* from = reinterpret_cast<const std::byte*>(part.addr);
      send.inlined.insert(send.inlined.end(), from, from + part.length);
    } else {
      send.parts.push_back(part);
    }
  }
  if (send.inlined.size() > qp->cap.max_inline_data || qp->sends.size() >= qp->cap.max_send_wr) {
    return ENOMEM;
  }
  if (qp->state == IBV_QPS_ERR) {
    ibv_wc flushed{};
    flushed.wr_id = request->wr_id;
    flushed.qp_num = qp->qp_num;
    flushed.status = IBV_WC_WR_FLUSH_ERR;
    world_.complete(*static_cast<World::Cq*>(qp->send_cq), flushed);
    return 0;
  }
  qp->sends.push_back(std::move(send));
  while (!world_.delay && !qp->sends.empty()) {
    world_.run(*qp);
  }
  return 0;
}
int FakeVerbs::postRecv(ibv_qp* raw, ibv_recv_wr* request) {
  const std::lock_guard lock(world_.mutex_);
  auto* qp = static_cast<World::Qp*>(raw);
  if (fails("postRecv") || qp->receives.size() >= qp->cap.max_recv_wr) {
    return ENOMEM;
  }
  if (qp->state == IBV_QPS_ERR) {
    ibv_wc flushed{};
    flushed.wr_id = request->wr_id;
    flushed.qp_num = qp->qp_num;
    flushed.status = IBV_WC_WR_FLUSH_ERR;
    world_.complete(*static_cast<World::Cq*>(qp->recv_cq), flushed);
  } else {
    qp->receives.push_back(request->wr_id);
  }
  return 0;
}

}  // namespace peal::test
