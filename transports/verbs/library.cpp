#include "transports/verbs/library.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <cerrno>
#include <memory>
#include <string>

namespace peal::verbs {
namespace {

constexpr const char* kFile = "libibverbs.so.1";

// libibverbs exports two generations of most functions; the first one (IBVERBS_1.0) has other structs.
class System final : public Library {
 public:
  // The sentence of what is missing; empty if nothing is.
  std::string open() {
    void* file = dlopen(kFile, RTLD_NOW | RTLD_LOCAL);
    if (file == nullptr) {
      return fmt::format("{} cannot be opened: {}. Install libibverbs1 and ibverbs-providers (rdma-core).",
                         kFile, dlerror());
    }
    std::string missing;
    const auto find = [&](auto& function, const char* name, const char* version) {
      function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlvsym(file, name, version));
      if (function == nullptr && missing.empty()) {
        missing = fmt::format("{} has no {} ({}): it is older than rdma-core 32. Install a newer one.", kFile,
                              name, version);
      }
    };
    find(getDeviceList_, "ibv_get_device_list", "IBVERBS_1.1");
    find(freeDeviceList_, "ibv_free_device_list", "IBVERBS_1.1");
    find(deviceName_, "ibv_get_device_name", "IBVERBS_1.1");
    find(openDevice_, "ibv_open_device", "IBVERBS_1.1");
    find(closeDevice_, "ibv_close_device", "IBVERBS_1.1");
    find(queryDevice_, "ibv_query_device", "IBVERBS_1.1");
    find(queryGid_, "_ibv_query_gid_ex", "IBVERBS_1.11");
    find(allocPd_, "ibv_alloc_pd", "IBVERBS_1.1");
    find(deallocPd_, "ibv_dealloc_pd", "IBVERBS_1.1");
    find(regMr_, "ibv_reg_mr", "IBVERBS_1.1");
    regDmabufMr_ =
        reinterpret_cast<decltype(regDmabufMr_)>(dlvsym(file, "ibv_reg_dmabuf_mr", "IBVERBS_1.12"));
    find(deregMr_, "ibv_dereg_mr", "IBVERBS_1.1");
    find(createCompChannel_, "ibv_create_comp_channel", "IBVERBS_1.0");
    find(destroyCompChannel_, "ibv_destroy_comp_channel", "IBVERBS_1.0");
    find(createCq_, "ibv_create_cq", "IBVERBS_1.1");
    find(destroyCq_, "ibv_destroy_cq", "IBVERBS_1.1");
    find(getCqEvent_, "ibv_get_cq_event", "IBVERBS_1.1");
    find(ackCqEvents_, "ibv_ack_cq_events", "IBVERBS_1.1");
    find(createQp_, "ibv_create_qp", "IBVERBS_1.1");
    find(modifyQp_, "ibv_modify_qp", "IBVERBS_1.1");
    find(destroyQp_, "ibv_destroy_qp", "IBVERBS_1.1");
    return missing;
  }

  ibv_device** getDeviceList(int* count) override { return getDeviceList_(count); }
  void freeDeviceList(ibv_device** list) override { freeDeviceList_(list); }
  const char* deviceName(ibv_device* device) override { return deviceName_(device); }
  ibv_context* openDevice(ibv_device* device) override { return openDevice_(device); }
  int closeDevice(ibv_context* context) override { return closeDevice_(context); }
  int queryDevice(ibv_context* context, ibv_device_attr* attributes) override {
    return queryDevice_(context, attributes);
  }
  // What ibv_query_port() of the header does: the exported function is a shorter, older one.
  int queryPort(ibv_context* context, uint8_t port, ibv_port_attr* attributes) override {
    verbs_context* extended = verbs_get_ctx_op(context, query_port);
    return extended == nullptr ? EOPNOTSUPP
                               : extended->query_port(context, port, attributes, sizeof *attributes);
  }
  int queryGid(ibv_context* context, uint32_t port, uint32_t index, ibv_gid_entry* entry) override {
    return queryGid_(context, port, index, entry, 0, sizeof *entry);
  }
  ibv_pd* allocPd(ibv_context* context) override { return allocPd_(context); }
  int deallocPd(ibv_pd* pd) override { return deallocPd_(pd); }
  ibv_mr* regMr(ibv_pd* pd, void* address, size_t bytes, int access) override {
    return regMr_(pd, address, bytes, access);
  }
  ibv_mr* regDmabufMr(ibv_pd* pd, uint64_t offset, size_t bytes, uint64_t address, int dmabuf,
                      int access) override {
    if (regDmabufMr_ == nullptr) {
      errno = EOPNOTSUPP;
      return nullptr;
    }
    return regDmabufMr_(pd, offset, bytes, address, dmabuf, access);
  }
  int deregMr(ibv_mr* mr) override { return deregMr_(mr); }
  ibv_comp_channel* createCompChannel(ibv_context* context) override { return createCompChannel_(context); }
  int destroyCompChannel(ibv_comp_channel* channel) override { return destroyCompChannel_(channel); }
  ibv_cq* createCq(ibv_context* context, int entries, ibv_comp_channel* channel) override {
    return createCq_(context, entries, nullptr, channel, 0);
  }
  int destroyCq(ibv_cq* cq) override { return destroyCq_(cq); }
  int getCqEvent(ibv_comp_channel* channel, ibv_cq** cq) override {
    void* cookie = nullptr;
    return getCqEvent_(channel, cq, &cookie);
  }
  void ackCqEvents(ibv_cq* cq, unsigned count) override { ackCqEvents_(cq, count); }
  // The data path has no exported functions: it goes to the device's driver directly.
  int reqNotifyCq(ibv_cq* cq) override { return cq->context->ops.req_notify_cq(cq, 0); }
  int pollCq(ibv_cq* cq, int most, ibv_wc* completions) override {
    return cq->context->ops.poll_cq(cq, most, completions);
  }
  ibv_qp* createQp(ibv_pd* pd, ibv_qp_init_attr* attributes) override { return createQp_(pd, attributes); }
  int modifyQp(ibv_qp* qp, ibv_qp_attr* attributes, int mask) override {
    return modifyQp_(qp, attributes, mask);
  }
  int destroyQp(ibv_qp* qp) override { return destroyQp_(qp); }
  int postSend(ibv_qp* qp, ibv_send_wr* request) override {
    ibv_send_wr* refused = nullptr;
    return qp->context->ops.post_send(qp, request, &refused);
  }
  int postRecv(ibv_qp* qp, ibv_recv_wr* request) override {
    ibv_recv_wr* refused = nullptr;
    return qp->context->ops.post_recv(qp, request, &refused);
  }

 private:
  ibv_device** (*getDeviceList_)(int*) = nullptr;
  void (*freeDeviceList_)(ibv_device**) = nullptr;
  const char* (*deviceName_)(ibv_device*) = nullptr;
  ibv_context* (*openDevice_)(ibv_device*) = nullptr;
  int (*closeDevice_)(ibv_context*) = nullptr;
  int (*queryDevice_)(ibv_context*, ibv_device_attr*) = nullptr;
  int (*queryGid_)(ibv_context*, uint32_t, uint32_t, ibv_gid_entry*, uint32_t, size_t) = nullptr;
  ibv_pd* (*allocPd_)(ibv_context*) = nullptr;
  int (*deallocPd_)(ibv_pd*) = nullptr;
  ibv_mr* (*regMr_)(ibv_pd*, void*, size_t, int) = nullptr;
  ibv_mr* (*regDmabufMr_)(ibv_pd*, uint64_t, size_t, uint64_t, int, int) = nullptr;
  int (*deregMr_)(ibv_mr*) = nullptr;
  ibv_comp_channel* (*createCompChannel_)(ibv_context*) = nullptr;
  int (*destroyCompChannel_)(ibv_comp_channel*) = nullptr;
  ibv_cq* (*createCq_)(ibv_context*, int, void*, ibv_comp_channel*, int) = nullptr;
  int (*destroyCq_)(ibv_cq*) = nullptr;
  int (*getCqEvent_)(ibv_comp_channel*, ibv_cq**, void**) = nullptr;
  void (*ackCqEvents_)(ibv_cq*, unsigned) = nullptr;
  ibv_qp* (*createQp_)(ibv_pd*, ibv_qp_init_attr*) = nullptr;
  int (*modifyQp_)(ibv_qp*, ibv_qp_attr*, int) = nullptr;
  int (*destroyQp_)(ibv_qp*) = nullptr;
};

}  // namespace

Result<Library*> systemLibrary() {
  // Never closed: drivers that it loaded may have threads.
  static System* const library = new System;
  static const std::string missing = library->open();
  if (!missing.empty()) {
    return Error{pealSystemError, missing};
  }
  return library;
}

}  // namespace peal::verbs
