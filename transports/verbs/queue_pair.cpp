#include "transports/verbs/queue_pair.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <random>

namespace peal::verbs {
namespace {

constexpr uint8_t kHopLimit = 64;
constexpr uint8_t kReceiverNotReadyTimer = 12;  // 0.64 ms
// Endless: a receive is always posted (link.h), but for the moment after a rebuild.
constexpr uint8_t kReceiverNotReadyRetries = 7;
// What is asked for to be sent without reading memory; a device that refuses the first gets the next.
constexpr uint32_t kInlineWishes[] = {256, 128, 64, 0};

uint32_t randomPacketNumber() {
  std::random_device source;
  return source() & 0xffffffU;
}

}  // namespace

QueuePair::QueuePair(const Rail& rail, WorkOwner owner, uint32_t sendDepth, uint32_t receiveDepth)
    : rail_(rail),
      owner_(owner),
      sendDepth_(std::bit_ceil(sendDepth)),
      receiveDepth_(receiveDepth),
      firstPacket_(randomPacketNumber()),
      tags_(sendDepth_, kNoTag) {}

Result<std::unique_ptr<QueuePair>> QueuePair::make(const Rail& rail, WorkOwner owner, uint32_t sendDepth,
                                                   uint32_t receiveDepth) {
  Device& device = *rail.device;
  std::unique_ptr<QueuePair> pair(new QueuePair(rail, owner, sendDepth, receiveDepth));
  int code = 0;
  for (const uint32_t wish : kInlineWishes) {
    ibv_qp_init_attr attributes{};
    attributes.send_cq = device.cq();
    attributes.recv_cq = device.cq();
    attributes.qp_type = IBV_QPT_RC;
    attributes.cap.max_send_wr = pair->sendDepth_;
    attributes.cap.max_recv_wr = receiveDepth;
    attributes.cap.max_send_sge = 2;  // header and, for a reference, the user's memory
    attributes.cap.max_recv_sge = 1;
    attributes.cap.max_inline_data = wish;
    errno = 0;
    pair->qp_ = device.library().createQp(device.pd(), &attributes);
    code = errno;
    if (pair->qp_ != nullptr) {
      pair->inlineBytes_ = attributes.cap.max_inline_data;
      break;
    }
    if (code != EINVAL) {
      break;  // not for the wish's sake
    }
  }
  if (pair->qp_ == nullptr) {
    return Error{
        pealSystemError,
        fmt::format("ibv_create_qp on {} failed: {}. Use fewer queue pairs (PEAL_IB_QUEUE_PAIRS), or "
                    "raise the limit of locked memory (ulimit -l).",
                    rail.name(), std::strerror(code))};
  }
  ibv_qp_attr init{};
  init.qp_state = IBV_QPS_INIT;
  init.pkey_index = 0;
  init.port_num = rail.port;
  init.qp_access_flags = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;
  PEAL_TRY(pair->modify(init, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS, "INIT"));
  return pair;
}

QueuePair::~QueuePair() {
  if (qp_ != nullptr) {
    rail_.device->library().destroyQp(qp_);
  }
}

Result<void> QueuePair::modify(ibv_qp_attr& attributes, int mask, const char* state) {
  const int code = rail_.device->library().modifyQp(qp_, &attributes, mask);
  if (code != 0) {
    return Error{pealSystemError,
                 fmt::format("moving queue pair {} of {} to {} failed: {}. Are the port and its address ({}) "
                             "still there (ibv_devinfo)?",
                             qp_->qp_num, rail_.name(), state, std::strerror(code), gidText(rail_.gid.gid))};
  }
  return {};
}

Result<void> QueuePair::connect(const PortAddress& peer, uint32_t peerNumber, uint32_t peerFirstPacket,
                                const Options& options) {
  // Posted before the peer can send.
  while (receives_ < receiveDepth_) {
    if (const int code = postReceive(); code != 0) {
      return Error{pealSystemError,
                   fmt::format("ibv_post_recv on {} failed: {}", rail_.name(), std::strerror(code))};
    }
  }
  ibv_qp_attr ready{};
  ready.qp_state = IBV_QPS_RTR;
  ready.path_mtu = std::min(rail_.mtu, static_cast<ibv_mtu>(peer.mtu));
  ready.dest_qp_num = peerNumber;
  ready.rq_psn = peerFirstPacket;
  ready.max_dest_rd_atomic = 1;
  ready.min_rnr_timer = kReceiverNotReadyTimer;
  ready.ah_attr.port_num = rail_.port;
  ready.ah_attr.sl = options.serviceLevel;
  if (rail_.linkLayer == IBV_LINK_LAYER_ETHERNET) {
    // RoCE addresses by GID: the global header is the IP header.
    ready.ah_attr.is_global = 1;
    ready.ah_attr.grh.dgid = peer.gid;
    ready.ah_attr.grh.sgid_index = static_cast<uint8_t>(rail_.gid.index);
    ready.ah_attr.grh.hop_limit = kHopLimit;
    ready.ah_attr.grh.traffic_class = options.trafficClass;
  } else {
    ready.ah_attr.dlid = peer.lid;
  }
  PEAL_TRY(modify(ready,
                  IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                      IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER,
                  "RTR"));
  ibv_qp_attr send{};
  send.qp_state = IBV_QPS_RTS;
  send.timeout = options.timeout;
  send.retry_cnt = options.retries;
  send.rnr_retry = kReceiverNotReadyRetries;
  send.sq_psn = firstPacket_;
  send.max_rd_atomic = 1;
  return modify(send,
                IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
                    IBV_QP_MAX_QP_RD_ATOMIC,
                "RTS");
}

void QueuePair::fail() {
  ibv_qp_attr error{};
  error.qp_state = IBV_QPS_ERR;
  // Whether it worked shows in what comes back; without that, recovery goes on after a time.
  rail_.device->library().modifyQp(qp_, &error, IBV_QP_STATE);
}

int QueuePair::send(ibv_send_wr& request, uint64_t tag, Signal signal) {
  const uint32_t number = sent_ + 1;
  request.wr_id = owner_.packed() | (number & kCountMask);
  request.next = nullptr;
  // A request without a completion of its own ends with the next that has one; there must be one before the
  // queue is full.
  const bool signalled = signal == Signal::Yes || unsignalled_ + 1 >= sendDepth_ / 4;
  if (signalled) {
    request.send_flags |= IBV_SEND_SIGNALED;
  }
  if (const int code = rail_.device->library().postSend(qp_, &request); code != 0) {
    return code;
  }
  sent_ = number;
  tags_[number % sendDepth_] = tag;
  unsignalled_ = signalled ? 0 : unsignalled_ + 1;
  return 0;
}

int QueuePair::postReceive() {
  // No memory: data goes where the sender writes it, the receive only brings the immediate.
  ibv_recv_wr request{};
  request.wr_id = owner_.packed() | kReceive;
  const int code = rail_.device->library().postRecv(qp_, &request);
  if (code == 0) {
    ++receives_;
  }
  return code;
}

}  // namespace peal::verbs
