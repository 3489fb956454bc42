// What a message costs inside a node and between nodes: the tuner's numbers, and their text form.
//
// Measured by the communicator at its start (lib/comm/measure.cpp) or read from a file; rank 0's are what all
// ranks use. Plain data; knows no links itself.
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

struct LinkTable {
  LinkCost inside;
  LinkCost between;
  bool operator==(const LinkTable&) const = default;
};

// What of a long message's time is for its bytes, beside that of a message without any. Both are measured,
// and one without bytes may have been held up for longer: a byte never costs nothing, so it is a quarter at
// least.
double bytesUs(double longMessageUs, double emptyMessageUs);

// What explanations assume where nothing was measured: memory copied at 8 GB/s, and 10 Gbit/s Ethernet. Not
// measured anywhere; a communicator never uses it for its choices between nodes.
LinkTable assumedLinks();

// Lines "inside_latency_us 1.25"; # begins a comment. All six keys, each once, with numbers that are not
// negative. `source` names the text in errors.
Result<LinkTable> parseLinks(std::string_view text, const std::string& source);
std::string formatLinks(const LinkTable& links);

// Equal on ranks that predict with the same numbers.
uint64_t hashOf(const LinkTable& links);

}  // namespace peal
