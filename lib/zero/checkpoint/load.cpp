#include "lib/zero/checkpoint/load.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <optional>
#include <unordered_map>

#include "lib/reduce/adamw.h"
#include "lib/zero/checkpoint/crc32c.h"
#include "lib/zero/checkpoint/reader.h"
#include "lib/zero/digest.h"

namespace peal::zero::checkpoint {
namespace {

// A checkpoint matched with the engine's model.
struct Plan {
  Reader reader;
  std::vector<uint64_t> ids;  // of the manifest's parameters in the engine
  std::vector<Reader::Piece> pieces;
};

std::string shapeText(const std::vector<uint64_t>& shape) {
  return fmt::format("[{}]", fmt::join(shape, "x"));
}

Result<void> checkAdamw(const AdamwNumbers& saved, const AdamwNumbers& own, const std::string& name,
                        const std::string& path) {
  struct Pair {
    const char* name;
    double saved, own;
  };
  for (const Pair& pair : {Pair{"beta1", saved.beta1, own.beta1}, Pair{"beta2", saved.beta2, own.beta2},
                           // Engines once took less than the least.
                           Pair{"epsilon", std::max(saved.epsilon, kLeastEpsilon), own.epsilon},
                           Pair{"weightDecay", saved.weightDecay, own.weightDecay}}) {
    if (pair.saved != pair.own) {
      return Error{pealInvalidUsage,
                   fmt::format("parameter \"{}\" was saved in {} with {} {}, the engine has {}; make it with "
                               "the same, or with convertOptimizer 1 to go on with the engine's numbers",
                               name, path, pair.name, pair.saved, pair.own)};
    }
  }
  return {};
}

// Two entries of one name: what they are, and for tied ones what they name.
Result<void> checkKind(const ParameterShape& saved, const std::string& savedTarget,
                       const ParameterShape& mine, const std::string& ownTarget, const std::string& path) {
  if (saved.kind == mine.kind && (saved.kind != Kind::Tied || savedTarget == ownTarget)) {
    return {};
  }
  const auto describe = [](const ParameterShape& shape, const std::string& target) {
    return shape.kind == Kind::Tied     ? fmt::format("tied to \"{}\"", target)
           : shape.kind == Kind::Frozen ? std::string("frozen")
                                        : std::string("trained");
  };
  return Error{pealInvalidUsage, fmt::format("parameter \"{}\" is {} in {} and {} in the engine", saved.name,
                                             describe(saved, savedTarget), path, describe(mine, ownTarget))};
}

// Of a trained parameter. A checkpoint that does not say was made before there was a word for it, and loads
// as ever.
Result<void> checkWeightType(const ParameterShape& saved, const ParameterShape& mine, Conversion conversion,
                             const std::string& path) {
  if (saved.weights == WeightType::Unknown || saved.weights == mine.weights ||
      conversion == Conversion::Allowed) {
    return {};
  }
  return Error{
      pealInvalidUsage,
      fmt::format(
          "parameter \"{}\" of {} was saved with {} weights and the engine's are {}: going on would "
          "not give the bits of not having stopped. Register it with the same dtype "
          "(pealZeroMasterIsWeight makes fp32 the engine's), or make the engine with convertWeights 1 "
          "to take the masters over",
          saved.name, path, weightTypeName(saved.weights), weightTypeName(mine.weights))};
}

// The engine's ids of the manifest's parameters, or what differs.
Result<std::vector<uint64_t>> matchParameters(const Manifest& manifest, const State& state,
                                              const std::string& path) {
  const std::vector<ParameterShape> own = state.parameters();
  const std::vector<AdamwNumbers> groups = state.groups();
  // Before the first update no moment has been made with them.
  const Conversion mayDiffer = manifest.step == 0 ? Conversion::Allowed : state.optimizerConversion();
  std::unordered_map<std::string, uint64_t> byName;
  for (size_t id = 0; id < own.size(); ++id) {
    byName.emplace(own[id].name, id);
  }
  std::vector<uint64_t> ids;
  for (const ParameterShape& saved : manifest.parameters) {
    const auto found = byName.find(saved.name);
    if (found == byName.end()) {
      return Error{pealInvalidUsage,
                   fmt::format("{} has a parameter \"{}\" of {} elements that the engine has not", path,
                               saved.name, saved.elements)};
    }
    const ParameterShape& mine = own[found->second];
    if (mine.elements != saved.elements) {
      return Error{pealInvalidUsage,
                   fmt::format("parameter \"{}\" has {} elements in {} and {} in the engine", saved.name,
                               saved.elements, path, mine.elements)};
    }
    if (mine.shape != saved.shape) {
      return Error{pealInvalidUsage,
                   fmt::format("parameter \"{}\" has the shape {} in {} and {} in the engine", saved.name,
                               shapeText(saved.shape), path, shapeText(mine.shape))};
    }
    const bool isTied = saved.kind == Kind::Tied;
    PEAL_TRY(checkKind(saved, isTied ? manifest.parameters[saved.link].name : "", mine,
                       mine.kind == Kind::Tied ? own[mine.link].name : "", path));
    if (saved.kind == Kind::Trained) {
      if (mayDiffer == Conversion::Refused) {
        PEAL_TRY(checkAdamw(manifest.groups[saved.link], groups[mine.link], saved.name, path));
      }
      PEAL_TRY(checkWeightType(saved, mine, state.conversion(), path));
    }
    ids.push_back(found->second);
    byName.erase(found);
  }
  if (!byName.empty()) {
    const auto& [name, id] = *byName.begin();
    return Error{pealInvalidUsage,
                 fmt::format("the engine has a parameter \"{}\" of {} elements that {} has not", name,
                             own[id].elements, path)};
  }
  return ids;
}

Result<Plan> makeLoadPlan(const State& state, const std::string& path) {
  Result<Reader> reader = Reader::open(path);
  if (!reader) {
    return reader.error();
  }
  const Manifest& manifest = reader->manifest();
  Result<std::vector<uint64_t>> ids = matchParameters(manifest, state, path);
  if (!ids) {
    return ids.error();
  }
  std::vector<uint64_t> saved(ids->size());  // the reverse
  for (size_t i = 0; i < ids->size(); ++i) {
    saved[(*ids)[i]] = i;
  }
  std::vector<Stretch> wanted = state.held();
  for (Stretch& stretch : wanted) {
    stretch.parameter = saved[stretch.parameter];
  }
  std::vector<Reader::Piece> pieces = reader->pieces(wanted);
  return Plan{std::move(*reader), std::move(*ids), std::move(pieces)};
}

// Walks through all that this rank holds. target null: only verifies.
Result<void> readAll(const Plan& plan, State* target) {
  for (uint32_t i = 0; i < kStreams; ++i) {
    const auto stream = static_cast<Stream>(i);
    if (stream == Stream::Weight && plan.reader.manifest().streams == kFewestStreams) {
      continue;
    }
    Result<void> stored;
    PEAL_TRY(plan.reader.walk(plan.pieces, stream, [&](const Stretch& stretch, const void* values) {
      if (target != nullptr && stored) {
        stored =
            target->store(stream, {plan.ids[stretch.parameter], stretch.begin, stretch.elements}, values);
      }
    }));
    PEAL_TRY(stored);
  }
  return {};
}

// Two ranks with different shares that have the same of these could never load the checkpoint.
uint64_t digestRanges(const State& state) {
  Digest digest;
  for (const Stretch& stretch : state.held()) {
    digest.add(stretch.parameter);
    digest.add(stretch.begin);
    digest.add(stretch.elements);
  }
  return digest.value();
}

Result<uint64_t> digestValues(const State& state) {
  uint32_t digest = 0;
  std::vector<std::byte> buffer(kBlockBytes);
  const std::vector<ParameterShape> parameters = state.parameters();
  for (const Stretch& stretch : state.held()) {
    const bool isFrozen = parameters[stretch.parameter].kind == Kind::Frozen;
    for (uint32_t i = 0; i < kStreams; ++i) {
      const auto stream = static_cast<Stream>(i);
      if (isFrozen != (stream == Stream::Frozen)) {
        continue;
      }
      const uint64_t most = kBlockBytes / elementBytes(stream);
      for (uint64_t done = 0; done < stretch.elements; done += most) {
        const uint64_t count = std::min(most, stretch.elements - done);
        PEAL_TRY(state.fetch(stream, {stretch.parameter, stretch.begin + done, count}, buffer.data()));
        digest = crc32c(digest, buffer.data(), count * elementBytes(stream));
      }
    }
  }
  return uint64_t{digest};
}

template <class Body>
Result<void> guarded(Body body) {
  try {
    return body();
  } catch (const std::bad_alloc&) {
    return Error{pealSystemError, "out of memory for a checkpoint's tables"};
  } catch (const std::exception& exception) {
    return Error{pealSystemError, fmt::format("reading the checkpoint failed: {}", exception.what())};
  }
}

// Ranks that hold the same elements must have the same values of them. ranges: every rank's digest of which
// it holds; the same on every rank, so all come here or none. Collective.
Result<void> compareReplicas(Collectives& collectives, const State& state,
                             const std::vector<VoteValues>& ranges) {
  std::unordered_map<uint64_t, size_t> first;  // ranges -> rank
  for (size_t rank = 0; rank < ranges.size(); ++rank) {
    first.emplace(ranges[rank][0], rank);
  }
  if (first.size() == ranges.size()) {
    return {};
  }
  uint64_t digest = 0;
  const Result<void> digested = guarded([&]() -> Result<void> {
    const Result<uint64_t> of = digestValues(state);
    digest = of ? *of : 0;
    return of ? Result<void>() : Result<void>(of.error());
  });
  const Result<std::vector<VoteValues>> values = vote(collectives, digested, {digest});
  if (!values) {
    return values.error();
  }
  for (size_t rank = 0; rank < ranges.size(); ++rank) {
    const size_t other = first.at(ranges[rank][0]);
    if ((*values)[rank][0] != (*values)[other][0]) {
      return Error{pealInternalError,
                   fmt::format("ranks {} and {} hold the same elements but loaded other values for them",
                               other, rank)};
    }
  }
  return {};
}

}  // namespace

Result<void> load(Collectives& collectives, State& state, const std::string& path, const Result<void>& usable,
                  Spoiled& spoiled) {
  spoiled = Spoiled::No;
  std::optional<Plan> plan;
  Result<void> verified = usable;
  if (verified) {
    verified = guarded([&]() -> Result<void> {
      Result<Plan> made = makeLoadPlan(state, path);
      if (!made) {
        return made.error();
      }
      plan.emplace(std::move(*made));
      return readAll(*plan, nullptr);
    });
  }
  const Result<std::vector<VoteValues>> same =
      vote(collectives, verified, {plan ? plan->reader.manifest().id : 0, 0, 0, 0, 0, 0});
  if (!same) {
    return same.error();
  }
  for (size_t rank = 0; rank < same->size(); ++rank) {
    if ((*same)[rank][0] != same->front()[0]) {
      return Error{pealInvalidUsage,
                   fmt::format("rank {} finds checkpoint {:016x} at its path, rank 0 {:016x}; all ranks load "
                               "the same, from a file system that they share",
                               rank, (*same)[rank][0], same->front()[0])};
    }
  }
  spoiled = Spoiled::Yes;
  uint64_t held = 0;
  const Result<void> changed = guarded([&]() -> Result<void> {
    PEAL_TRY(readAll(*plan, &state));
    held = digestRanges(state);
    return state.stored();
  });
  const Result<std::vector<VoteValues>> ranges = vote(collectives, changed, {held});
  if (!ranges) {
    return ranges.error();
  }
  PEAL_TRY(state.restored(plan->reader.manifest().step));
  PEAL_TRY(compareReplicas(collectives, state, *ranges));
  spoiled = Spoiled::No;
  return {};
}

}  // namespace peal::zero::checkpoint
