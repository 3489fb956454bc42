// pealZeroCheckReplicas: do ranks that should hold the same bits hold them?
#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <map>
#include <string>

#include "lib/zero/checkpoint/vote.h"
#include "lib/zero/engine.h"

namespace peal::zero {
namespace {

// Chance damage must not pass; nobody attacks it. Depends on every byte's place.
uint64_t hashOf(std::span<const std::byte> bytes, uint64_t hash) {
  constexpr uint64_t kOdd = 0x9e3779b97f4a7c15u;
  for (size_t at = 0; at < bytes.size(); at += sizeof(uint64_t)) {
    uint64_t word = 0;
    std::memcpy(&word, bytes.data() + at, std::min(sizeof word, bytes.size() - at));
    hash = std::rotl((hash ^ word) * kOdd, 29);
  }
  return hash ^ (hash >> 32);
}

struct Held {
  uint64_t weights = 0, owned = 0;
};

// A multiple of a word, so that pieces of a GPU's memory need little of the host's.
constexpr size_t kPieceBytes = size_t{256} << 10;

Result<uint64_t> hashOf(Device& device, std::span<const std::byte> arena, uint64_t hash) {
  std::vector<std::byte> room;
  for (size_t at = 0; at < arena.size(); at += kPieceBytes) {
    const size_t size = std::min(kPieceBytes, arena.size() - at);
    const Result<const std::byte*> bytes = device.view<std::byte>(arena.data() + at, size, room);
    if (!bytes) {
      return bytes.error();
    }
    hash = hashOf({*bytes, size}, hash + 1);
  }
  return hash;
}

// One sentence for ranks `ranks`, of which rank r holds hashes[r] of `what`; empty if all are the same.
std::string differences(const std::vector<int>& ranks, const std::vector<uint64_t>& hashes,
                        const char* what) {
  std::map<uint64_t, std::vector<int>> holders;
  for (const int rank : ranks) {
    holders[hashes[static_cast<size_t>(rank)]].push_back(rank);
  }
  if (holders.size() <= 1) {
    return {};
  }
  std::map<int, std::string> sets;  // by their first rank
  for (const auto& [hash, same] : holders) {
    sets[same.front()] = fmt::format("{} hold {:016x}", fmt::join(same, ", "), hash);
  }
  std::string listed;
  for (const auto& [first, set] : sets) {
    listed += listed.empty() ? set : "; " + set;
  }
  return fmt::format("{} differ: ranks {}. ", what, listed);
}

}  // namespace

Result<void> Engine::checkReplicas() {
  PEAL_TRY(checkSealed());
  PEAL_TRY(collectives_->finish());  // the new weights are gathered
  Held own;
  const auto hashAll = [&]() -> Result<void> {
    if (weights_.anyOpen() || gradients_.anyHandedOver()) {
      return Error{pealInvalidUsage,
                   "replicas are compared between steps: all units left, and no gradient handed over"};
    }
    Device& device = *collectives_->device();
    const auto add = [&](std::span<const std::byte> arena, uint64_t& hash) -> Result<void> {
      const Result<uint64_t> all = hashOf(device, arena, hash);
      hash = all ? *all : hash;
      return all ? Result<void>() : Result<void>(all.error());
    };
    PEAL_TRY(add(weights_.held(), own.weights));
    for (const std::span<const std::byte> state : optimizer_.held()) {
      PEAL_TRY(add(state, own.owned));
    }
    return {};
  };
  // Whoever cannot tell says so: nobody waits for it.
  const Result<void> hashed = hashAll();
  const Result<std::vector<checkpoint::VoteValues>> votes =
      checkpoint::vote(*collectives_, hashed, {own.weights, own.owned});
  if (!votes) {
    return votes.error();
  }
  const int shards = model_.stage() == 0 ? 1 : collectives_->shards();
  std::vector<uint64_t> weights, owned;
  for (const checkpoint::VoteValues& of : *votes) {
    weights.push_back(of[0]);
    owned.push_back(of[1]);
  }
  std::string found;
  if (model_.stage() <= 2) {
    std::vector<int> all;
    for (int rank = 0; rank < collectives_->ranks(); ++rank) {
      all.push_back(rank);
    }
    found += differences(all, weights, "the weights");
  }
  for (int shard = 0; shard < shards; ++shard) {
    std::vector<int> replicas;
    for (int rank = shard; rank < collectives_->ranks(); rank += shards) {
      replicas.push_back(rank);
    }
    if (model_.stage() == 3) {
      found += differences(replicas, weights, "the owned weights");
    }
    found += differences(replicas, owned, "the optimizer's states");
  }
  if (!found.empty()) {
    return Error{pealInternalError,
                 found + fmt::format("After step {} these ranks must hold the same bits (hashes are shown); "
                                     "load the last checkpoint that was checked, and look for faulty memory "
                                     "or writes through the pointers of pealZeroWeights",
                                     steps_)};
  }
  return {};
}

}  // namespace peal::zero
