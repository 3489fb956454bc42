#include "lib/executor/cuda/agreement.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "lib/base/config.h"
#include "lib/executor/box_shape.h"
#include "lib/executor/cuda/kernels.h"
#include "lib/executor/cuda/residency.h"
#include "lib/memory/cuda.h"
#include "transports/gather.h"

namespace peal::cuda {
namespace {

// A result on its way to the other ranks.
struct Outcome {
  int32_t code = pealSuccess;
  Text message{};
};

Outcome outcomeOf(const Result<void>& result) {
  Outcome outcome;
  if (!result) {
    outcome.code = result.error().code;
    setText(outcome.message, result.error().message);
  }
  return outcome;
}

// What one rank brings.
struct Proposal {
  Outcome outcome;
  std::array<char, 16> uuid{};  // of the device
  int32_t device = 0;           // in the numbers of its process
  int32_t threads = 0;
  int32_t processors = 0;
  int32_t blocksPerProcessor = 0;
};

// This rank's own error if it has one, else the first of another.
Result<void> judge(const Exchange& exchange, const Result<void>& mine, const std::vector<Outcome>& all) {
  PEAL_TRY(mine);
  for (size_t rank = 0; rank < all.size(); ++rank) {
    if (all[rank].code != pealSuccess && static_cast<int>(rank) != exchange.rank()) {
      return Error{pealRemoteError, fmt::format("rank {} cannot take part in the communicator: {}", rank,
                                                textOf(all[rank].message))};
    }
  }
  return {};
}

Result<Proposal> propose(const DeviceOptions& options) {
  Proposal mine;
  mine.device = options.device;
  mine.threads = static_cast<int32_t>(configuration()->integer(Knob::Threads));
  PEAL_TRY(checkDevice(options.device));
  if (options.size > kMostRanks) {
    return Error{pealInvalidUsage,
                 fmt::format("{}: a communicator on GPUs has at most {} ranks.", options.name, kMostRanks)};
  }
  cudaDeviceProp properties{};
  PEAL_TRY(cudaResult(cudaGetDeviceProperties(&properties, options.device), "asking for device {}",
                      options.device));
  static_assert(sizeof properties.uuid == sizeof mine.uuid);
  std::memcpy(mine.uuid.data(), &properties.uuid, mine.uuid.size());
  Result<Residency> residency = residencyOn(options.device, mine.threads);
  if (!residency) {
    return residency.error();
  }
  mine.processors = residency->processors;
  mine.blocksPerProcessor = residency->blocksPerProcessor;
  return mine;
}

// The most channels with which the blocks of all ranks on each device fit there.
Result<int> channelsFor(const std::vector<Proposal>& all) {
  int channels = kMostChannels;
  for (size_t rank = 0; rank < all.size(); ++rank) {
    const Proposal& one = all[rank];
    const auto sharing =
        std::count_if(all.begin(), all.end(), [&](const Proposal& other) { return other.uuid == one.uuid; });
    const int blocks = one.processors * one.blocksPerProcessor;
    const int most = blocks / static_cast<int>(sharing);
    const int wanted = std::max(1, static_cast<int>(configuration()->integer(Knob::Channels)));
    if (wanted > most) {
      return Error{
          pealInvalidUsage,
          fmt::format("{} rank{} on device {} of rank {} with {} channel{} need {} resident blocks; {} of {} "
                      "threads fit there ({} on each of {} multiprocessors). Lower PEAL_CHANNELS or "
                      "PEAL_THREADS, or put fewer ranks on the device.",
                      sharing, sharing > 1 ? "s" : "", one.device, rank, wanted, wanted > 1 ? "s" : "",
                      sharing * wanted, blocks, one.threads, one.blocksPerProcessor, one.processors)};
    }
    channels = std::min(channels, most);
  }
  const auto forced = static_cast<int>(configuration()->integer(Knob::Channels));
  return forced > 0 ? forced : channels;
}

}  // namespace

void setText(Text& text, const std::string& value) {
  text.fill('\0');
  std::memcpy(text.data(), value.data(), std::min(value.size(), text.size() - 1));
}

std::string textOf(const Text& text) { return {text.data(), strnlen(text.data(), text.size())}; }

Result<void> agreeOn(Exchange& exchange, const Result<void>& mine) {
  Result<std::vector<Outcome>> all = gather(exchange, outcomeOf(mine));
  if (!all) {
    return mine ? Result<void>(all.error()) : mine;
  }
  return judge(exchange, mine, *all);
}

Result<Agreement> agree(Exchange& exchange, const DeviceOptions& options) {
  Result<Proposal> mine = propose(options);
  Proposal card = mine ? *mine : Proposal{};
  const Result<void> outcome = mine ? Result<void>() : Result<void>(mine.error());
  card.outcome = outcomeOf(outcome);
  Result<std::vector<Proposal>> all = gather(exchange, card);
  if (!all) {
    return mine ? all.error() : mine.error();
  }
  std::vector<Outcome> outcomes;
  for (const Proposal& one : *all) {
    outcomes.push_back(one.outcome);
  }
  PEAL_TRY(judge(exchange, outcome, outcomes));
  Result<int> channels = channelsFor(*all);
  if (!channels) {
    return channels.error();
  }
  const Result<BoxShape> shape = configuredShape(options.size, *channels);
  if (!shape) {
    return shape.error();
  }
  return Agreement{.shape = *shape, .threads = card.threads};
}

}  // namespace peal::cuda
