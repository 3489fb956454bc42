// What a failed work request means, for people. Used by every file of this folder that meets one.
#pragma once
#include <infiniband/verbs.h>

#include <string>

namespace peal::verbs {

// "transport retry counter exceeded (IBV_WC_RETRY_EXC_ERR, vendor 0x81): the peer did not answer ..."
std::string describe(ibv_wc_status status, uint32_t vendorError);

// Whether making the queue pair anew may help: no where the request itself was refused.
bool mayPass(ibv_wc_status status);

}  // namespace peal::verbs
