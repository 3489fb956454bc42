#include "transports/verbs/errors.h"

#include <fmt/format.h>

namespace peal::verbs {
namespace {

struct Meaning {
  const char* name;
  const char* text;
};

Meaning meaningOf(ibv_wc_status status) {
  switch (status) {
    case IBV_WC_SUCCESS:
      return {"IBV_WC_SUCCESS", "it succeeded"};
    case IBV_WC_LOC_LEN_ERR:
      return {"IBV_WC_LOC_LEN_ERR", "a message was longer than the device or the receiver allows"};
    case IBV_WC_LOC_QP_OP_ERR:
      return {"IBV_WC_LOC_QP_OP_ERR", "this device refused the request as inconsistent"};
    case IBV_WC_LOC_PROT_ERR:
      return {
          "IBV_WC_LOC_PROT_ERR",
          "this device may not read the memory it was told to send: was a registered buffer freed while it "
          "was in use?"};
    case IBV_WC_WR_FLUSH_ERR:
      return {"IBV_WC_WR_FLUSH_ERR", "the queue pair had already failed or was closed"};
    case IBV_WC_BAD_RESP_ERR:
      return {"IBV_WC_BAD_RESP_ERR", "the peer's device answered something unexpected"};
    case IBV_WC_LOC_ACCESS_ERR:
      return {"IBV_WC_LOC_ACCESS_ERR", "a write of the peer did not fit this rank's memory"};
    case IBV_WC_REM_INV_REQ_ERR:
      return {"IBV_WC_REM_INV_REQ_ERR", "the peer's device refused the request as invalid"};
    case IBV_WC_REM_ACCESS_ERR:
      return {"IBV_WC_REM_ACCESS_ERR",
              "the peer's device refused access to its memory (a wrong key, or beyond the end)"};
    case IBV_WC_REM_OP_ERR:
      return {"IBV_WC_REM_OP_ERR", "the peer's device failed while it executed the request"};
    case IBV_WC_RETRY_EXC_ERR:
      return {
          "IBV_WC_RETRY_EXC_ERR",
          "the peer's device did not answer: the cable, the switch or the route between the two devices, a "
          "peer that ended, or PEAL_IB_TIMEOUT and PEAL_IB_RETRIES too small"};
    case IBV_WC_RNR_RETRY_EXC_ERR:
      return {"IBV_WC_RNR_RETRY_EXC_ERR", "the peer had no receive posted"};
    case IBV_WC_REM_ABORT_ERR:
      return {"IBV_WC_REM_ABORT_ERR", "the peer's device aborted the request"};
    case IBV_WC_FATAL_ERR:
      return {"IBV_WC_FATAL_ERR", "this device failed: see the kernel's log (dmesg)"};
    case IBV_WC_RESP_TIMEOUT_ERR:
      return {"IBV_WC_RESP_TIMEOUT_ERR", "the peer's device did not answer in time"};
    default:
      return {"ibv_wc_status", "see the manual page of ibv_poll_cq"};
  }
}

}  // namespace

std::string describe(ibv_wc_status status, uint32_t vendorError) {
  const Meaning meaning = meaningOf(status);
  return fmt::format("{} ({}, vendor code {:#x}): {}", meaning.name, static_cast<int>(status), vendorError,
                     meaning.text);
}

bool mayPass(ibv_wc_status status) {
  switch (status) {
    case IBV_WC_LOC_LEN_ERR:
    case IBV_WC_LOC_QP_OP_ERR:
    case IBV_WC_LOC_PROT_ERR:
    case IBV_WC_LOC_ACCESS_ERR:
    case IBV_WC_REM_INV_REQ_ERR:
    case IBV_WC_REM_ACCESS_ERR:
      return false;
    default:
      return true;
  }
}

}  // namespace peal::verbs
