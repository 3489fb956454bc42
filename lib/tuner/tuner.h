// The tuner: which algorithm an operation runs and in chunks of what size; on a GPU also the protocol and the
// number of channels. Depends only on facts that are the same on every rank, so all ranks choose alike; the
// digest carries the choice and would expose a difference.
//
// On one node by size alone. On several nodes it predicts how long every legal algorithm takes, with the
// costs of both classes of links (links.h), and takes the quickest. On GPUs it does so on one node too, for
// every protocol and number of channels (device.cpp).
#pragma once
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "algorithms/choice.h"
#include "algorithms/grouping.h"
#include "lib/base/gpu_path.h"
#include "lib/base/result.h"
#include "lib/tuner/links.h"

namespace peal {

const char* algorithmName(Algorithm algorithm);
// What PEAL_ALGO takes, "auto" included.
bool isAlgorithmName(std::string_view name);
std::string algorithmNames();

struct TunerQuestion {
  int kind = 0;      // pealStatAllReduce ... pealStatBarrier
  size_t bytes = 0;  // of the whole array
  int size = 1;      // ranks
  bool deterministic = false;
  size_t slotBytes = 0;
  bool reachesAll = false;           // messages of direct algorithms need no slots
  std::string_view forced = "auto";  // PEAL_ALGO
  bool crowded = false;              // more ranks than processors, on host memory
  const Grouping* nodes = nullptr;   // nullptr: one node
  int slots = 2;                     // of a link
  int burst = 1;                     // full messages that are best posted together (Endpoint::burst)
  const LinkTable* links = nullptr;  // where there are several nodes, or GPUs
  bool onDevice = false;             // GPUs run it
};

// An illegal forced algorithm is an error that lists the legal ones.
Result<Choice> choose(const TunerQuestion& question);

// A legal algorithm with its best chunk size, and how long it would take.
struct Candidate {
  Choice choice;
  const char* text = "";  // the algorithm's function
  double us = 0;
};
// All legal algorithms that differ for this collective, the quickest first. links must be given. What `auto`
// chooses on several nodes is the first.
std::vector<Candidate> candidates(const TunerQuestion& question);
// Why `choice` is what auto takes, in a sentence; all: what candidates() said.
std::string reasonFor(const TunerQuestion& question, const Choice& choice, const std::vector<Candidate>& all);

// ---- on GPUs ----------------------------------------------------------------------------------------------

// call.slotBytes is the payload of a Simple message; call.links->gpu what it says of the path
// (device_costs.h).
struct DeviceQuestion {
  TunerQuestion call;
  size_t llBytes = 0, ll128Bytes = 0;  // payload of a message
  int channels = 1;                    // the most
  GpuPath path = GpuPath::HostMemory;  // LL128 is legal where it keeps lines whole
  bool simpleOnly = false;             // what goes over a network is Simple
  std::string_view forced = "auto";    // PEAL_PROTOCOL
};
const char* protocolName(Protocol protocol);
// The quickest of candidatesOnDevice(); an illegal forced algorithm or protocol is an error that lists the
// legal ones.
Result<Choice> chooseOnDevice(const DeviceQuestion& question);
// What `auto` chooses among, or what the forced algorithm and protocol leave of it: each algorithm with each
// protocol on each number of channels, the quickest first. call.links must be given. On one node algorithms
// that sum in another order than that of ranks, and so round more often, run only if they are forced.
Result<std::vector<Candidate>> candidatesOnDevice(const DeviceQuestion& question);
std::string reasonOnDevice(const DeviceQuestion& question, const std::vector<Candidate>& all);

// How many rounds the stages of an all-reduce may run ahead with so many slots per link (cost.h: traitsOf),
// where a round has work of its own between its messages: an epilogue.
int stagesAhead(Algorithm algorithm, int slots);

}  // namespace peal
