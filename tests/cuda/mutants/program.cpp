// Runs the kernels, with one seeded defect or none, through a small set of cases in one mode of the
// simulator. Called by run_mutants.py; built twice: plain and by clang++ with the thread sanitizer.
//
//     program MUTANT MODE FIRST_SEED SEEDS    exit status 0: nothing was noticed; 1: a sentence says what
//
// MODE: fair, random, starve, weak, both (weak and starve).
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "lib/executor/cuda/device.h"
#include "tests/cuda/kernel_collectives.h"
#include "tests/cuda/kernel_modes.h"
#include "tests/cuda/kernel_transfers.h"
#include "tests/cuda/mutants/mutant.h"
#include "tests/cudasim/core/memory.h"

namespace peal::cuda::test {
namespace {

constexpr Protocol kAllProtocols[] = {Protocol::Simple, Protocol::LL, Protocol::LL128};
constexpr int kTextKinds[] = {pealStatAllReduce, pealStatReduceScatter, pealStatAllGather, pealStatBroadcast,
                              pealStatReduce};

std::string in(const CollectiveCase& test, const std::string& wrong) {
  return wrong.empty() ? wrong : describe(test) + ": " + wrong;
}

// One launch after the other on the same counters; `shape` says what of the cases.
std::string collectives(const RanksOptions& options, const CollectiveCase& shape, uint64_t seed) {
  KernelRanks ranks(options);
  for (const Protocol protocol : kAllProtocols) {
    if (shape.references && protocol != Protocol::Simple) {
      continue;
    }
    for (const int kind : kTextKinds) {
      for (const Algorithm algorithm : {Algorithm::Ring, Algorithm::OneShot, Algorithm::TwoShot}) {
        const bool twoShot = algorithm == Algorithm::TwoShot;
        if ((twoShot && kind != pealStatAllReduce) || (algorithm == Algorithm::Ring && options.slots < 2)) {
          continue;
        }
        CollectiveCase test = shape;
        test.kind = kind;
        test.algorithm = algorithm;
        test.protocol = protocol;
        test.seed = seed++;
        if (kind == pealStatAllGather || kind == pealStatBroadcast) {
          test.op = pealSum;
          test.preMultiply = false;
        }
        if (std::string wrong = in(test, runCase(ranks, test)); !wrong.empty()) {
          return wrong;
        }
      }
    }
  }
  return {};
}

// The algorithms that know nodes: two ranks on one, the third on another.
std::string levels(int slots, const CollectiveCase& shape, uint64_t seed) {
  KernelRanks ranks({.ranks = 3, .channels = 2, .slots = slots, .nodes = {0, 0, 1}});
  for (const int kind : kTextKinds) {
    for (const Algorithm algorithm : {Algorithm::Hierarchical, Algorithm::Tree}) {
      if (algorithm == Algorithm::Tree && (kind == pealStatReduceScatter || kind == pealStatAllGather)) {
        continue;
      }
      CollectiveCase test = shape;
      test.kind = kind;
      test.algorithm = algorithm;
      test.seed = seed++;
      test.ahead = algorithm == Algorithm::Hierarchical ? (slots - 1) / 2 : 0;
      if (kind == pealStatAllGather || kind == pealStatBroadcast) {
        test.preMultiply = false;
      }
      if (std::string wrong = in(test, runCase(ranks, test)); !wrong.empty()) {
        return wrong;
      }
    }
  }
  return {};
}

// ---- reuse of buffers right after an operation: what a later kernel of the same stream may do ----
// Overwrites [data, data + bytes) once all threads of the only block have left the kernel.
void scribble(std::byte* data, size_t bytes) {
  syncBlock();
  for (size_t i = threadIndex(); i < bytes; i += blockThreads()) {
    storeGlobal(reinterpret_cast<uint8_t*>(data + i), uint8_t{0x5a});
  }
}

std::string reusedBuffers(uint64_t seed) {
  KernelRanks ranks({.ranks = 3, .channels = 1, .slots = 2, .slotBytes = 4480});
  CollectiveCase test;
  test.kind = pealStatBroadcast;
  test.algorithm = Algorithm::OneShot;
  test.references = true;
  test.count = 1100;  // one message
  test.seed = seed;
  const Buffers buffers = buffersFor(ranks, test);
  std::vector<std::function<void()>> kernels;
  std::memset(buffers.in[0].host(), 0x11, buffers.in[0].bytes());
  for (int rank = 0; rank < 3; ++rank) {
    const std::function<void()> kernel = kernelFor(test, argsFor(ranks, test, buffers, rank));
    const Array& input = buffers.in[static_cast<size_t>(rank)];
    kernels.push_back([kernel, &input] {
      kernel();
      scribble(input.device(), input.bytes());
    });
  }
  if (std::string wrong = ranks.complaint(ranks.run(kernels)); !wrong.empty()) {
    return wrong;
  }
  Group group{.transfers = {{0, 1, 4400}, {1, 2, 4400}, {2, 0, 4400}}, .references = true, .seed = seed};
  const TransferBuffers posted = buffersFor(group);
  const TransferBuffers kept = buffersFor(group);  // the same bytes
  for (int rank = 0; rank < 3; ++rank) {
    const auto args = std::make_shared<PointToPointArgs>(argsFor(ranks, group, posted, rank));
    const Array& sent = posted.sent[static_cast<size_t>(rank)];
    kernels[static_cast<size_t>(rank)] = [args, &sent] {
      pointToPointKernel()(*args);
      scribble(sent.device(), sent.bytes());
    };
  }
  if (std::string wrong = ranks.complaint(ranks.run(kernels)); !wrong.empty()) {
    return wrong;
  }
  for (size_t i = 0; i < 3; ++i) {
    for (size_t at = 0; at < 4400; ++at) {
      if (kept.sent[i].host()[at] != posted.received[i].host()[at]) {
        return "a transfer was read after its sender had gone on";
      }
      if (at < 1100 * 4 && buffers.out[i].host()[at] != std::byte{0x11}) {
        return "a broadcast was read after its sender had gone on";
      }
    }
  }
  return {};
}

// ---- faults: the right record on the right ranks ----
struct Expectation {
  FaultKind kind;
  int peer;
};
std::string expectFault(KernelRanks& ranks, int rank, const Expectation& expected) {
  const FaultRecord& fault = ranks.fault(rank);
  if (fault.kind != static_cast<uint64_t>(expected.kind) || fault.peerRank != expected.peer ||
      fault.complete != 1) {
    return "fault of rank " + std::to_string(rank) + " is " + describe(fault);
  }
  const bool tells = expected.kind != FaultKind::Stopped;
  if (tells && *cudasim::toHost(ranks.view(rank).stopped) == 0) {
    return "rank " + std::to_string(rank) + " did not stop its own blocks";
  }
  return {};
}

// Broadcast from rank 0, so that only rank 1 can notice; after one that went well, so that the sequence
// counts.
std::string disagreements(Protocol protocol) {
  for (const bool lengths : {false, true}) {
    KernelRanks ranks({.ranks = 2, .channels = 1, .slots = 2, .timeoutMs = 20});
    CollectiveCase test;
    test.kind = pealStatBroadcast;
    test.algorithm = Algorithm::OneShot;
    test.protocol = protocol;
    test.count = 300;
    if (std::string wrong = in(test, runCase(ranks, test)); !wrong.empty()) {
      return wrong;
    }
    const Buffers buffers = buffersFor(ranks, test);
    std::vector<std::function<void()>> kernels;
    for (int rank = 0; rank < 2; ++rank) {
      CollectiveArgs args = argsFor(ranks, test, buffers, rank);
      args.digest.count += rank == 1 && !lengths ? 1 : 0;
      args.chunkCount = rank == 1 && lengths ? 60 : 70;
      kernels.push_back(kernelFor(test, args));
    }
    if (const cudasim::RunResult result = ranks.run(kernels); !result.ok()) {
      return result.text;
    }
    const Expectation expected{lengths ? FaultKind::Bytes : FaultKind::Digest, 0};
    if (std::string wrong = expectFault(ranks, 1, expected); !wrong.empty()) {
      return wrong;
    }
    if (ranks.fault(1).expected.sequence != 1 || ranks.fault(1).arrived.sequence != 1) {
      return "the second operation's sequence is not 1: " + describe(ranks.fault(1));
    }
    if (*cudasim::toHost(ranks.view(0).stopped) != 2) {
      return "rank 0 was not told of rank 1's fault";
    }
  }
  return {};
}

// Ranks 0 and 1 of 3: rank 2 does not come. One of them notices; the other one is told.
std::string missingRank(Protocol protocol) {
  for (const int kind : {static_cast<int>(pealStatAllReduce), static_cast<int>(pealStatBarrier)}) {
    KernelRanks ranks({.ranks = 3, .channels = 2, .slots = 2, .timeoutMs = 20});
    CollectiveCase test;
    test.kind = kind;
    test.algorithm = Algorithm::OneShot;
    test.protocol = protocol;
    test.count = kind == pealStatBarrier ? 0 : 300;
    const Buffers buffers = buffersFor(ranks, test);
    std::vector<std::function<void()>> kernels(3);
    for (size_t rank = 0; rank < 2; ++rank) {
      kernels[rank] = kernelFor(test, argsFor(ranks, test, buffers, static_cast<int>(rank)));
    }
    if (const cudasim::RunResult result = ranks.run(kernels); !result.ok()) {
      return result.text;
    }
    const int first = ranks.fault(0).kind == static_cast<uint64_t>(FaultKind::Deadline) ? 0 : 1;
    if (std::string wrong = expectFault(ranks, first, {FaultKind::Deadline, 2}); !wrong.empty()) {
      return wrong;
    }
    const FaultRecord& other = ranks.fault(1 - first);
    if (other.kind == static_cast<uint64_t>(FaultKind::Stopped) && other.peerRank != first) {
      return "the wrong culprit: " + describe(other);
    }
    // When rank 2 comes, it learns at once whom to blame.
    std::vector<std::function<void()>> late(3);
    late[2] = kernelFor(test, argsFor(ranks, test, buffers, 2));
    if (const cudasim::RunResult result = ranks.run(late); !result.ok()) {
      return result.text;
    }
    const auto culprit = static_cast<int>(*cudasim::toHost(ranks.view(2).stopped)) - 1;
    if (culprit < 0) {
      return "rank 2 was not told";
    }
    if (std::string wrong = expectFault(ranks, 2, {FaultKind::Stopped, culprit}); !wrong.empty()) {
      return wrong;
    }
  }
  return {};
}

std::string stoppedByHost(Protocol protocol) {
  KernelRanks ranks({.ranks = 2, .channels = 2, .slots = 2, .timeoutMs = 60000});
  CollectiveCase test;
  test.protocol = protocol;
  test.count = 300;
  const Buffers buffers = buffersFor(ranks, test);
  ranks.board(0).stop = 1;
  std::vector<std::function<void()>> kernels(2);
  kernels[0] = kernelFor(test, argsFor(ranks, test, buffers, 0));
  if (const cudasim::RunResult result = ranks.run(kernels); !result.ok()) {
    return result.text;
  }
  if (std::string wrong = expectFault(ranks, 0, {FaultKind::Stopped, 0}); !wrong.empty()) {
    return wrong;
  }
  return *cudasim::toHost(ranks.view(1).stopped) == 0 ? "" : "a rank that only reacts stopped the other";
}

// A term that does not come: no sum is made of the others, and none is handed on.
std::string missingTerm() {
  KernelRanks ranks({.ranks = 3, .channels = 1, .slots = 2, .timeoutMs = 20, .nodes = {0, 0, 1}});
  CollectiveCase test;
  test.kind = pealStatReduce;
  test.algorithm = Algorithm::Tree;
  test.count = 100;
  const Buffers buffers = buffersFor(ranks, test);
  std::memset(buffers.out[0].host(), 0x11, buffers.out[0].bytes());
  std::vector<std::function<void()>> kernels(3);
  for (const size_t rank : {0U, 2U}) {
    kernels[rank] = kernelFor(test, argsFor(ranks, test, buffers, static_cast<int>(rank)));
  }
  if (const cudasim::RunResult result = ranks.run(kernels); !result.ok()) {
    return result.text;
  }
  for (size_t at = 0; at < buffers.out[0].bytes(); ++at) {
    if (buffers.out[0].host()[at] != std::byte{0x11}) {
      return "a sum was made without one of its terms";
    }
  }
  return expectFault(ranks, 0, {FaultKind::Deadline, 1});
}

std::string transferFaults() {
  KernelRanks ranks({.ranks = 2, .channels = 1, .slots = 2, .timeoutMs = 20});
  const Group before{.transfers = {{0, 1, 50}, {0, 1, 60}}};
  if (std::string wrong = runGroup(ranks, before); !wrong.empty()) {
    return wrong;
  }
  const Group group{.transfers = {{0, 1, 1000}}};
  const TransferBuffers buffers = buffersFor(group);
  std::vector<std::function<void()>> kernels;
  for (int rank = 0; rank < 2; ++rank) {
    const auto args = std::make_shared<PointToPointArgs>(argsFor(ranks, group, buffers, rank));
    args->transfers[0].digest.count += static_cast<uint64_t>(rank);
    kernels.push_back([args] { pointToPointKernel()(*args); });
  }
  if (const cudasim::RunResult result = ranks.run(kernels); !result.ok()) {
    return result.text;
  }
  if (std::string wrong = expectFault(ranks, 1, {FaultKind::Digest, 0}); !wrong.empty()) {
    return wrong;
  }
  if (ranks.fault(1).expected.sequence != 2) {
    return "the third transfer's sequence is not 2: " + describe(ranks.fault(1));
  }
  KernelRanks alone({.ranks = 1, .channels = 1, .slots = 2, .timeoutMs = 20});
  const Group self{.transfers = {{0, 0, 100}}};
  const TransferBuffers own = buffersFor(self);
  const auto args = std::make_shared<PointToPointArgs>(argsFor(alone, self, own, 0));
  args->transfers[1].bytes = 90;
  if (const cudasim::RunResult result = alone.run({[args] { pointToPointKernel()(*args); }}); !result.ok()) {
    return result.text;
  }
  return expectFault(alone, 0, {FaultKind::Bytes, 0});
}

// ---- LL's flags: lib/executor/cuda/lines.cuh ----
std::string sweeps() {
  const uint64_t before = (uint64_t{1} << 30) - 1;
  KernelRanks ranks({.ranks = 2, .channels = 1, .slots = 2, .messagesBefore = before});
  CollectiveCase test;
  test.algorithm = Algorithm::OneShot;
  test.protocol = Protocol::LL;
  test.count = 5;
  for (int launch = 0; launch < 2; ++launch) {
    if (std::string wrong = in(test, runCase(ranks, test)); !wrong.empty()) {
      return wrong;
    }
  }
  const BoxShape& shape = ranks.shape();
  for (int slot = 0; slot < 2; ++slot) {
    const std::byte* lines =
        cudasim::toHost(ranks.view(0).inbox[1]) + shape.lowSlot(0, Protocol::LL, slot) + 64;
    uint32_t flag = 0;
    std::memcpy(&flag, lines + shape.payloadBytes(Protocol::LL) / 16 * 32 - 4, sizeof flag);
    if (flag != static_cast<uint32_t>(before + (slot == 1 ? 1 : 2))) {
      return "slot " + std::to_string(slot) + " was not written to its end";
    }
  }
  return {};
}

std::string transfers(uint64_t seed) {
  for (const int slots : {1, 2}) {
    RanksOptions options{.ranks = 3, .channels = 2, .slots = slots};
    KernelRanks ranks(options);
    const size_t slice = ranks.shape().payloadBytes(Protocol::Simple);
    Group group{.transfers = {{0, 1, 3 * slice + 5},
                              {1, 0, slice},
                              {1, 2, slice + 1},
                              {2, 0, 0},
                              {0, 1, 17},
                              {0, 1, 7 * slice},
                              {2, 1, 9},
                              {2, 2, slice + 3},
                              {0, 2, 5 * slice}},
                .misalignment = seed % 2 == 0 ? size_t{0} : size_t{3}};
    for (int launch = 0; launch < 2; ++launch) {
      group.mixed = launch == 1;
      group.seed = ++seed;
      if (std::string wrong = runGroup(ranks, group); !wrong.empty()) {
        return "transfers: " + wrong;
      }
    }
  }
  return {};
}

// Everything; the first thing that is wrong.
std::string all(uint64_t seed) {
  CollectiveCase plain;
  plain.count = 1000;
  plain.root = 1;
  CollectiveCase odd = plain;
  odd.count = 333;
  odd.misalignment = 5;
  odd.op = pealAvg;
  CollectiveCase multiplied = plain;
  multiplied.count = 31;
  multiplied.preMultiply = true;
  CollectiveCase empty = plain;
  empty.count = 0;
  CollectiveCase inPlace = plain;
  inPlace.count = 4500;
  inPlace.inPlace = true;
  inPlace.references = true;
  CollectiveCase referenced = inPlace;
  referenced.inPlace = false;
  const RanksOptions three{.ranks = 3, .channels = 2, .slots = 2};
  const std::function<std::string()> kParts[] = {
      [&] { return collectives(three, plain, seed); },
      [&] { return collectives(three, multiplied, seed); },
      [&] { return collectives({.ranks = 2, .channels = 2, .slots = 2}, odd, seed); },
      [&] { return collectives({.ranks = 4, .channels = 1, .slots = 1}, plain, seed); },
      [&] { return collectives({.ranks = 3, .channels = 1, .slots = 2, .slotBytes = 4480}, inPlace, seed); },
      [&] {
        return collectives({.ranks = 3, .channels = 1, .slots = 2, .slotBytes = 4480}, referenced, seed);
      },
      [&] { return collectives({.ranks = 6, .channels = 1, .slots = 2}, odd, seed); },
      [&] { return collectives(three, empty, seed); },
      [&] { return levels(1, multiplied, seed); },
      [&] { return levels(3, plain, seed); },
      [&] { return transfers(seed); },
      [&] { return reusedBuffers(seed); },
      [&] { return transferFaults(); },
      [&] { return missingTerm(); },
      [&] { return sweeps(); },
  };
  for (const auto& part : kParts) {
    if (std::string wrong = part(); !wrong.empty()) {
      return wrong;
    }
  }
  for (const Protocol protocol : kAllProtocols) {
    for (const auto& faults : {disagreements, missingRank, stoppedByHost}) {
      if (std::string wrong = faults(protocol); !wrong.empty()) {
        return std::string(protocolName(protocol)) + ": " + wrong;
      }
    }
  }
  return {};
}

}  // namespace
}  // namespace peal::cuda::test

int main(int count, char** words) {
  using namespace peal::cuda::test;
  if (count != 5) {
    std::fprintf(stderr, "usage: %s MUTANT MODE FIRST_SEED SEEDS\n", words[0]);
    return 2;
  }
  const std::string_view name = words[2];
  const Mode mode = name == "fair"     ? Mode::Fair
                    : name == "random" ? Mode::Random
                    : name == "starve" ? Mode::Starve
                    : name == "weak"   ? Mode::Weak
                                       : Mode::WeakStarve;
  chosenMutant = std::atoi(words[1]);
  peal::cudasim::options().timeoutMs = 5000;
  const int first = std::atoi(words[3]);
  for (int seed = first; seed < first + std::atoi(words[4]); ++seed) {
    const InMode inMode(mode, seed);
    if (const std::string wrong = all(static_cast<uint64_t>(seed)); !wrong.empty()) {
      std::printf("seed %d: %s\n", seed, wrong.c_str());
      return 1;
    }
  }
  return 0;
}
