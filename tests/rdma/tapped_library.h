// The real libibverbs with a hand in between: tests break queue pairs, falsify requests and count on real
// (soft-RoCE) devices. One per rank.
#pragma once
#include <atomic>
#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <string>

#include "transports/verbs/library.h"

namespace peal::test {

class TappedLibrary final : public verbs::Library {
 public:
  explicit TappedLibrary(verbs::Library& real) : real_(real) {}

  // So many requests with data get a wrong key.
  std::atomic<int> falsify{0};
  // Queue pairs of that device cannot be made.
  std::string refuse;
  // `event` happens in the middle: when the rank has posted so many more requests. For the rank's own thread.
  void afterPosts(int count, std::function<void()> event) {
    event_ = std::move(event);
    leftPosts_ = count;
  }
  int made() const { return made_; }  // queue pairs, those made anew among them
  int postsOn(const std::string& device) const {
    const auto found = posts_.find(device);
    return found == posts_.end() ? 0 : found->second;
  }
  // Moves every queue pair into the error state, as an administrator or a driver's reset does.
  void breakQueuePairs() {
    const std::lock_guard lock(mutex_);
    for (ibv_qp* qp : qps_) {
      ibv_qp_attr error{};
      error.qp_state = IBV_QPS_ERR;
      real_.modifyQp(qp, &error, IBV_QP_STATE);
    }
  }

  ibv_device** getDeviceList(int* count) override { return real_.getDeviceList(count); }
  void freeDeviceList(ibv_device** list) override { real_.freeDeviceList(list); }
  const char* deviceName(ibv_device* device) override { return real_.deviceName(device); }
  ibv_context* openDevice(ibv_device* device) override { return real_.openDevice(device); }
  int closeDevice(ibv_context* context) override { return real_.closeDevice(context); }
  int queryDevice(ibv_context* context, ibv_device_attr* attributes) override {
    return real_.queryDevice(context, attributes);
  }
  int queryPort(ibv_context* context, uint8_t port, ibv_port_attr* attributes) override {
    return real_.queryPort(context, port, attributes);
  }
  int queryGid(ibv_context* context, uint32_t port, uint32_t index, ibv_gid_entry* entry) override {
    return real_.queryGid(context, port, index, entry);
  }
  ibv_pd* allocPd(ibv_context* context) override { return real_.allocPd(context); }
  int deallocPd(ibv_pd* pd) override { return real_.deallocPd(pd); }
  ibv_mr* regMr(ibv_pd* pd, void* address, size_t bytes, int access) override {
    return real_.regMr(pd, address, bytes, access);
  }
  ibv_mr* regDmabufMr(ibv_pd* pd, uint64_t offset, size_t bytes, uint64_t address, int dmabuf,
                      int access) override {
    return real_.regDmabufMr(pd, offset, bytes, address, dmabuf, access);
  }
  int deregMr(ibv_mr* mr) override { return real_.deregMr(mr); }
  ibv_comp_channel* createCompChannel(ibv_context* context) override {
    return real_.createCompChannel(context);
  }
  int destroyCompChannel(ibv_comp_channel* channel) override { return real_.destroyCompChannel(channel); }
  ibv_cq* createCq(ibv_context* context, int entries, ibv_comp_channel* channel) override {
    return real_.createCq(context, entries, channel);
  }
  int destroyCq(ibv_cq* cq) override { return real_.destroyCq(cq); }
  int getCqEvent(ibv_comp_channel* channel, ibv_cq** cq) override { return real_.getCqEvent(channel, cq); }
  void ackCqEvents(ibv_cq* cq, unsigned count) override { real_.ackCqEvents(cq, count); }
  int reqNotifyCq(ibv_cq* cq) override { return real_.reqNotifyCq(cq); }
  int pollCq(ibv_cq* cq, int most, ibv_wc* completions) override {
    return real_.pollCq(cq, most, completions);
  }
  ibv_qp* createQp(ibv_pd* pd, ibv_qp_init_attr* attributes) override {
    const std::lock_guard lock(mutex_);
    if (real_.deviceName(pd->context->device) == refuse) {
      errno = ENOMEM;
      return nullptr;
    }
    ibv_qp* qp = real_.createQp(pd, attributes);
    if (qp != nullptr) {
      ++made_;
      qps_.insert(qp);
    }
    return qp;
  }
  int modifyQp(ibv_qp* qp, ibv_qp_attr* attributes, int mask) override {
    return real_.modifyQp(qp, attributes, mask);
  }
  int destroyQp(ibv_qp* qp) override {
    const std::lock_guard lock(mutex_);
    qps_.erase(qp);
    return real_.destroyQp(qp);
  }
  int postSend(ibv_qp* qp, ibv_send_wr* request) override {
    if (request->opcode == IBV_WR_RDMA_WRITE_WITH_IMM && falsify > 0) {
      --falsify;
      request->wr.rdma.rkey ^= 0x5500;
    }
    ++posts_[real_.deviceName(qp->context->device)];
    if (leftPosts_ > 0 && --leftPosts_ == 0) {
      event_();
    }
    return real_.postSend(qp, request);
  }
  int postRecv(ibv_qp* qp, ibv_recv_wr* request) override { return real_.postRecv(qp, request); }

 private:
  verbs::Library& real_;
  std::mutex mutex_;
  std::set<ibv_qp*> qps_;
  std::function<void()> event_;
  int leftPosts_ = 0;
  int made_ = 0;
  std::map<std::string, int> posts_;
};

}  // namespace peal::test
