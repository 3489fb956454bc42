// The tuner's answers for GPUs. The limits follow from the shape of the costs (a flag saves one round trip of
// a count, LL doubles the bytes, LL128 adds a sixteenth); their values are not measured on hardware.
#include <fmt/format.h>

#include <algorithm>

#include "lib/tuner/tuner.h"

namespace peal {
namespace {

// Of the array, times the ranks: above it the extra bytes of one shot cost more than a second meeting.
constexpr size_t kDeviceOneShotMostBytes = size_t{512} << 10;
// Of one message between two ranks, over all channels.
constexpr size_t kLlMostBytes = size_t{16} << 10;
constexpr size_t kLl128MostBytes = size_t{256} << 10;
// A block is worth its start from so many bytes on.
constexpr size_t kLowBytesPerChannel = size_t{4} << 10;
constexpr size_t kSimpleBytesPerChannel = size_t{32} << 10;
constexpr size_t kChunkMultiple = 128;

// What one rank hands to one peer in the largest step.
size_t messageBytes(const TunerQuestion& call, Algorithm algorithm) {
  const bool whole =
      call.kind == pealStatBroadcast || call.kind == pealStatReduce ||
      (call.kind == pealStatAllReduce && (algorithm == Algorithm::OneShot || algorithm == Algorithm::Tree));
  const auto ranks = static_cast<size_t>(call.size);
  return whole ? call.bytes : (call.bytes + ranks - 1) / ranks;
}

bool isReduction(int kind) {
  return kind == pealStatAllReduce || kind == pealStatReduceScatter || kind == pealStatReduce;
}

bool knowsNodes(Algorithm algorithm) {
  return algorithm == Algorithm::Hierarchical || algorithm == Algorithm::Tree;
}

// Where a node has several ranks, its link to the others is shared: what is too long for one shot crosses it
// once, by the hierarchical algorithms. Costs of links are not asked: on GPUs they are not measured.
bool paysLevels(const TunerQuestion& call) {
  return call.forced == "auto" && call.nodes != nullptr && call.nodes->nodes > 1 &&
         call.nodes->nodes < call.size && !(call.deterministic && isReduction(call.kind)) &&
         call.bytes > kDeviceOneShotMostBytes / static_cast<size_t>(call.size);
}

Result<Protocol> protocolFor(const DeviceQuestion& question, Algorithm algorithm, size_t bytes) {
  const bool simpleOnly = question.simpleOnly || knowsNodes(algorithm);
  if (question.forced == "simple" || (simpleOnly && question.forced == "auto")) {
    return Protocol::Simple;
  }
  if (simpleOnly && !question.simpleOnly) {
    return Error{
        pealInvalidUsage,
        fmt::format("PEAL_PROTOCOL={} is not legal with PEAL_ALGO={}: sums of chosen terms are made of "
                    "messages of the protocol simple only. Use simple or auto, or another algorithm.",
                    question.forced, algorithmName(algorithm))};
  }
  if (question.simpleOnly) {
    return Error{pealInvalidUsage,
                 fmt::format("PEAL_PROTOCOL={} is not legal here: some ranks are on other nodes, and only "
                             "messages of the protocol simple go over a network. Use simple or auto.",
                             question.forced)};
  }
  if (question.forced == "ll") {
    return Protocol::LL;
  }
  if (question.forced == "ll128") {
    if (!question.linesWhole) {
      return Error{pealInvalidUsage,
                   "PEAL_PROTOCOL=ll128 is not legal here: some ranks reach each other by a path that may "
                   "tear a 128-byte line (not one GPU's memory, and not NVLink). Use simple, ll or auto."};
    }
    return Protocol::LL128;
  }
  if (bytes <= kLlMostBytes) {
    return Protocol::LL;
  }
  return question.linesWhole && bytes <= kLl128MostBytes ? Protocol::LL128 : Protocol::Simple;
}

}  // namespace

Result<Choice> chooseOnDevice(const DeviceQuestion& question) {
  TunerQuestion call = question.call;
  call.oneShotMostBytes = kDeviceOneShotMostBytes;
  call.links = nullptr;
  call.onDevice = true;
  if (paysLevels(call)) {
    call.forced = "hierarchical";
  }
  Result<Choice> choice = choose(call);
  if (!choice) {
    return choice.error();
  }
  if (choice->algorithm != Algorithm::Hierarchical) {
    choice->ahead = 0;  // kernels run flat algorithms round by round
  }
  const size_t bytes = messageBytes(call, choice->algorithm);
  Result<Protocol> protocol = protocolFor(question, choice->algorithm, bytes);
  if (!protocol) {
    return protocol.error();
  }
  choice->protocol = *protocol;
  const bool simple = *protocol == Protocol::Simple;
  const size_t perChannel = simple ? kSimpleBytesPerChannel : kLowBytesPerChannel;
  const size_t channels =
      std::clamp<size_t>((bytes + perChannel - 1) / perChannel, 1, static_cast<size_t>(question.channels));
  choice->channels = static_cast<int>(channels);
  const size_t most = simple                      ? call.slotBytes
                      : *protocol == Protocol::LL ? question.llBytes
                                                  : question.ll128Bytes;
  const size_t share = (bytes + channels - 1) / channels;
  const size_t even = std::max<size_t>(1, (share + kChunkMultiple - 1) / kChunkMultiple) * kChunkMultiple;
  choice->chunkBytes = std::min(most, even);
  return choice;
}

}  // namespace peal
