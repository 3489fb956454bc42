// The tuner's answers for GPUs: the model of predict.h, asked for each protocol and number of channels. What
// differs between them is how long a step takes, how many bytes the payload becomes, and how many blocks
// share the link.
#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "lib/tuner/device_costs.h"
#include "lib/tuner/families.h"
#include "lib/tuner/tuner.h"

namespace peal {
namespace {

constexpr size_t kChunkMultiple = 128;

// Simple first: where nothing is sent, its messages are the longest.
constexpr std::array<Protocol, 3> kAllProtocols{Protocol::Simple, Protocol::LL, Protocol::LL128};

// Their kernel has half of the others' threads in a block (collective_levels.cu).
bool runsLevels(Algorithm family) { return family == Algorithm::Hierarchical || family == Algorithm::Tree; }

bool isLegal(Protocol protocol, Algorithm family, const DeviceQuestion& question) {
  if (protocol == Protocol::Simple) {
    return true;
  }
  return !question.simpleOnly && !runsLevels(family) &&
         (protocol == Protocol::LL || keepsLinesWhole(question.path));
}

bool isAsked(Protocol protocol, const DeviceQuestion& question) {
  return question.forced == "auto" || question.forced == protocolName(protocol);
}

std::string legalProtocols(Algorithm family, const DeviceQuestion& question) {
  std::string names;
  for (const Protocol protocol : kAllProtocols) {
    if (isLegal(protocol, family, question)) {
      names += fmt::format("{}{}", names.empty() ? "" : ", ", protocolName(protocol));
    }
  }
  return names;
}

// Of a protocol that no family may use; family: the forced one, else any.
Error refusal(const DeviceQuestion& question, Algorithm family) {
  const bool levels = runsLevels(family) && !question.simpleOnly;
  const char* const why =
      question.simpleOnly
          ? "some ranks are on other nodes, and only messages of the protocol simple go over a network"
      : levels ? "sums of chosen terms are made of messages of the protocol simple only"
               : "some ranks reach each other by a path that may tear a 128-byte line (not one GPU's memory, "
                 "and not NVLink)";
  return Error{
      pealInvalidUsage,
      fmt::format("PEAL_PROTOCOL={} is not legal {}: {}; legal are: {}. To let the tuner choose, "
                  "unset PEAL_PROTOCOL{}.",
                  question.forced, levels ? fmt::format("with PEAL_ALGO={}", algorithmName(family)) : "here",
                  why, legalProtocols(family, question), levels ? ", or force another algorithm" : "")};
}

size_t mostBytes(Protocol protocol, const DeviceQuestion& question) {
  return protocol == Protocol::Simple ? question.call.slotBytes
         : protocol == Protocol::LL   ? question.llBytes
                                      : question.ll128Bytes;
}

Candidate candidateOn(int channels, Protocol protocol, Algorithm family, const Forecast& forecast,
                      const DeviceQuestion& question) {
  Candidate made;
  made.text = forecast.text();
  made.choice = choiceOf(family, question.call);
  if (family != Algorithm::Hierarchical) {
    made.choice.ahead = 0;  // kernels run flat algorithms round by round
  }
  made.choice.protocol = protocol;
  made.choice.channels = channels;
  const size_t blocks = static_cast<size_t>(channels);
  const size_t share = (forecast.blockBytes() + blocks - 1) / blocks;
  const size_t even = std::max<size_t>(1, (share + kChunkMultiple - 1) / kChunkMultiple) * kChunkMultiple;
  made.choice.chunkBytes = std::min(mostBytes(protocol, question), even);

  const GpuCost& gpu = question.call.links->gpu;
  const double blockSpeed = runsLevels(family) ? 0.5 : 1;
  const double moveUsPerByte = gpu.blockUsPerByte / (channels * blockSpeed);
  Choice together = made.choice;  // the channels take a chunk each at a time
  together.chunkBytes *= blocks;
  made.us =
      gpu.launchUs + gpu.blockUs * channels +
      static_cast<double>(forecast.blockBytes()) * moveUsPerByte +  // this rank's own part
      forecast.us(together, linksFor(*question.call.links, protocol, channels, blockSpeed), moveUsPerByte);
  return made;
}

void addCandidates(Algorithm family, const DeviceQuestion& question, std::vector<Candidate>& found) {
  const Forecast forecast(family, question.call);
  for (const Protocol protocol : kAllProtocols) {
    if (!isLegal(protocol, family, question) || !isAsked(protocol, question)) {
      continue;
    }
    for (int channels = 1; channels < question.channels; channels *= 2) {
      found.push_back(candidateOn(channels, protocol, family, forecast, question));
    }
    found.push_back(candidateOn(question.channels, protocol, family, forecast, question));
  }
}

}  // namespace

const char* protocolName(Protocol protocol) {
  return protocol == Protocol::Simple ? "simple" : protocol == Protocol::LL ? "ll" : "ll128";
}

Result<std::vector<Candidate>> candidatesOnDevice(const DeviceQuestion& question) {
  DeviceQuestion asked = question;
  TunerQuestion& call = asked.call;
  call.onDevice = true;
  call.reachesAll = false;
  call.burst = 1;  // of the proxies' links, which are not the host's
  std::vector<Algorithm> families;
  if (call.forced == "auto") {
    TunerQuestion among = call;
    among.deterministic = call.deterministic || !severalNodes(call);
    families = legalFamilies(among);
  } else {
    const Result<Choice> forced = choose(call);
    if (!forced) {
      return forced.error();
    }
    families = {forced->algorithm};
  }
  std::vector<Candidate> found;
  for (const Algorithm family : families) {
    addCandidates(family, asked, found);
  }
  if (found.empty()) {
    return refusal(asked, families.front());
  }
  std::stable_sort(found.begin(), found.end(),
                   [](const Candidate& a, const Candidate& b) { return a.us < b.us; });
  return found;
}

Result<Choice> chooseOnDevice(const DeviceQuestion& question) {
  const Result<std::vector<Candidate>> all = candidatesOnDevice(question);
  if (!all) {
    return all.error();
  }
  return all->front().choice;
}

std::string reasonOnDevice(const DeviceQuestion& question, const std::vector<Candidate>& all) {
  const auto named = [](const Choice& choice) {
    return fmt::format("{} by {}", algorithmName(choice.algorithm), protocolName(choice.protocol));
  };
  const Choice& best = all.front().choice;
  const auto other = std::find_if(all.begin(), all.end(), [&](const Candidate& candidate) {
    return candidate.choice.algorithm != best.algorithm || candidate.choice.protocol != best.protocol;
  });
  std::string reason =
      other == all.end()
          ? fmt::format("{} is all that is legal", named(best))
          : fmt::format("{} is predicted to be {:.2f} times as fast as the next, {}", named(best),
                        other->us / std::max(all.front().us, 1e-9), named(other->choice));
  if (question.call.forced == "auto" && !severalNodes(question.call) && reduces(question.call.kind)) {
    reason += "; on one node auto sums in the order of ranks";
  }
  return reason;
}

}  // namespace peal
