// Adds up the time that a recorded algorithm takes on an α–β network: α per message, β per element.
//
// Called by tests, and by whoever wants to compare algorithms without running them. Every rank has one way
// out and one way in, full duplex, each passing one message at a time at β per element, in order of arrival;
// its first element is at the way in α after it left. If the operation has nodes, messages between them take
// their α and β from `between`, and the ranks of a node share its way out and its way in. A verb starts when
// its messages are there and a slot is free, and takes no time itself but γ per element it reduces. It is a
// model: no cache, no scheduler.
#pragma once
#include <vector>

#include "algorithms/record/recorder.h"

namespace peal::record {

struct NetworkModel {
  double alphaUs = 0;
  double betaUsPerElement = 0;
  double gammaUsPerElement = 0;
  int slots = 8;  // per link
  struct {
    double alphaUs = 0;
    double betaUsPerElement = 0;
  } between{};
};

// When each rank has finished its last verb, in µs. The program must be one in which the checker finds no
// fault with that many slots.
std::vector<double> simulate(const Program& program, const NetworkModel& model);

}  // namespace peal::record
