// The functions of libibverbs that peal calls, and nothing else of it: an interface, so that tests put a fake
// in its place and fail any call.
//
// The real one is opened with dlopen at the first use and stays open to the process's end. Names and meanings
// are those of ibv_...; a function that returns a pointer sets errno on nullptr, one that returns an int
// returns 0 or the errno, except where said.
#pragma once
#include <infiniband/verbs.h>

#include <cstddef>

#include "lib/base/result.h"

namespace peal::verbs {

class Library {
 public:
  virtual ~Library() = default;

  virtual ibv_device** getDeviceList(int* count) = 0;
  virtual void freeDeviceList(ibv_device** list) = 0;
  virtual const char* deviceName(ibv_device* device) = 0;
  virtual ibv_context* openDevice(ibv_device* device) = 0;
  virtual int closeDevice(ibv_context* context) = 0;
  virtual int queryDevice(ibv_context* context, ibv_device_attr* attributes) = 0;
  virtual int queryPort(ibv_context* context, uint8_t port, ibv_port_attr* attributes) = 0;
  // ENODATA: that entry of the table is empty.
  virtual int queryGid(ibv_context* context, uint32_t port, uint32_t index, ibv_gid_entry* entry) = 0;

  virtual ibv_pd* allocPd(ibv_context* context) = 0;
  virtual int deallocPd(ibv_pd* pd) = 0;
  virtual ibv_mr* regMr(ibv_pd* pd, void* address, size_t bytes, int access) = 0;
  // nullptr and EOPNOTSUPP also where the library has no such function: it came with rdma-core 34.
  virtual ibv_mr* regDmabufMr(ibv_pd* pd, uint64_t offset, size_t bytes, uint64_t address, int dmabuf,
                              int access) = 0;
  virtual int deregMr(ibv_mr* mr) = 0;

  virtual ibv_comp_channel* createCompChannel(ibv_context* context) = 0;
  virtual int destroyCompChannel(ibv_comp_channel* channel) = 0;
  virtual ibv_cq* createCq(ibv_context* context, int entries, ibv_comp_channel* channel) = 0;
  virtual int destroyCq(ibv_cq* cq) = 0;
  virtual int getCqEvent(ibv_comp_channel* channel, ibv_cq** cq) = 0;  // -1 and errno: none
  virtual void ackCqEvents(ibv_cq* cq, unsigned count) = 0;
  virtual int reqNotifyCq(ibv_cq* cq) = 0;
  virtual int pollCq(ibv_cq* cq, int most, ibv_wc* completions) = 0;  // negative: failed

  virtual ibv_qp* createQp(ibv_pd* pd, ibv_qp_init_attr* attributes) = 0;
  virtual int modifyQp(ibv_qp* qp, ibv_qp_attr* attributes, int mask) = 0;
  virtual int destroyQp(ibv_qp* qp) = 0;
  virtual int postSend(ibv_qp* qp, ibv_send_wr* request) = 0;
  virtual int postRecv(ibv_qp* qp, ibv_recv_wr* request) = 0;
};

// The process's libibverbs.so.1. The error says what dlopen said, and what to install.
Result<Library*> systemLibrary();

}  // namespace peal::verbs
