// What the configuration says about verbs. Tests of the fabric make their own.
#pragma once
#include <cstdint>
#include <string>

#include "lib/base/config.h"
#include "lib/base/rdma_port.h"
#include "lib/base/result.h"
#include "transports/fabric.h"
#include "transports/verbs/gid.h"

namespace peal::verbs {

struct Options {
  FabricOptions fabric;
  std::string devices;     // PEAL_IB_DEVICES
  std::string interfaces;  // PEAL_INTERFACE
  std::string rdmaRoot = kRdmaRoot;
  GidWish gid;
  int queuePairs = 2;  // of a link on each pair of ports
  uint8_t serviceLevel = 0;
  uint8_t trafficClass = 0;
  uint8_t timeout = 14;  // of the wire's acknowledgement: 4.096 us << timeout
  uint8_t retries = 7;
  bool references = true;  // send registered memory in place
  int pingLimitMs = 2000;  // for the first message of every queue pair
  // A queue pair on which nothing has ended for so long, though something is on its way, is rebuilt. More
  // than a device takes until it reports a failure itself: it may wait four times `timeout`, `retries` + 1
  // times.
  int silenceLimitMs = 5000;
  // Rebuilding a queue pair: how often in a row without a message in between, and the pauses, which double.
  // With what the device itself waits before it gives up a request, that is between 10 and 60 seconds of a
  // dead wire.
  int mostAttempts = 8;
  int firstPauseMs = 50;
  int longestPauseMs = 2000;
};

// As the table says (PEAL_IB_..., PEAL_INTERFACE, PEAL_DIRECT_READ).
Result<Options> optionsOf(const Configuration& table, const FabricOptions& fabric);

}  // namespace peal::verbs
