// What a message costs inside a node and between nodes, and between GPUs: the tuner's numbers, and their text
// form.
//
// Measured by the communicator at its start (lib/comm/measure.cpp) or read from a file, those of GPUs by path
// (device_costs.h) or from the file; rank 0's are what all ranks use. Plain data; knows no links itself.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>

#include "lib/base/result.h"

namespace peal {

// A message of B bytes arrives latencyUs + B * usPerByte after it was sent; a rank that sends several is busy
// for gapUs with each.
struct LinkCost {
  double latencyUs = 0;
  double gapUs = 0;
  double usPerByte = 0;
  bool operator==(const LinkCost&) const = default;
};

// Inside a node of GPUs. A negative number: not said, so the path's.
struct GpuCost {
  static constexpr double kNotSaid = -1;
  double launchUs = kNotSaid;  // of a kernel
  double blockUs = kNotSaid;   // each block more that works on a call
  // From a block's store until the peer's block has what it waits for, by protocol. Simple: with the fence,
  // and the way of a credit back.
  double llUs = kNotSaid, ll128Us = kNotSaid, simpleUs = kNotSaid;
  double blockUsPerByte = kNotSaid;  // what one block moves
  double linkUsPerByte = kNotSaid;   // what a GPU's link carries one way, of all blocks together
  bool operator==(const GpuCost&) const = default;
};

struct LinkTable {
  LinkCost inside;
  LinkCost between;
  GpuCost gpu{};
  bool operator==(const LinkTable&) const = default;
};

// What of a long message's time is for its bytes, beside that of a message without any. Both are measured,
// and one without bytes may have been held up for longer: a byte never costs nothing, so it is a quarter at
// least.
double bytesUs(double longMessageUs, double emptyMessageUs);

// What explanations assume where nothing was measured: memory copied at 8 GB/s, and 10 Gbit/s Ethernet. Not
// measured anywhere; a communicator never uses it for its choices between nodes.
LinkTable assumedLinks();

// Lines "inside_latency_us 1.25"; # begins a comment. All six keys of inside and between, any of those of
// GPUs
// ("gpu_ll_us 0.6"), each once, with numbers that are not negative. `source` names the text in errors.
Result<LinkTable> parseLinks(std::string_view text, const std::string& source);
std::string formatLinks(const LinkTable& links);

// Equal on ranks that predict with the same numbers.
uint64_t hashOf(const LinkTable& links);

}  // namespace peal
