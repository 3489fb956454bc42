// Adds up the time that a recorded algorithm takes on an α–β network: α per message, β per element.
//
// Called by tests, and by whoever wants to compare algorithms without running them. Every rank has one way
// out and one way in, full duplex, each passing one message at a time at β per element, in order of arrival;
// its first element is at the way in α after it left. A verb starts when its messages are there and a slot is
// free, and takes no time itself but γ per element it reduces. It is a model: no cache, no scheduler, no two
// links that share a wire.
#pragma once
#include <vector>

#include "algorithms/record/recorder.h"

namespace peal::record {

struct NetworkModel {
  double alphaUs = 0;
  double betaUsPerElement = 0;
  double gammaUsPerElement = 0;
  int slots = 8;  // per link
};

// When each rank has finished its last verb, in µs. The program must be one in which the checker finds no
// fault with that many slots.
std::vector<double> simulate(const Program& program, const NetworkModel& model);

}  // namespace peal::record
