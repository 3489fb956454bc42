// Operations in words, for sentences about faults: what a digest says, and what two disagree on.
#include <fmt/format.h>

#include <array>

#include "lib/executor/host/operation.h"

namespace peal {
namespace {

constexpr std::array<const char*, pealNumStats> kNames{
    "all_reduce", "reduce_scatter", "all_gather", "broadcast", "reduce", "send", "recv", "barrier"};

const char* digestType(const Digest& digest) {
  return digest.type < pealNumTypes ? typeName(static_cast<pealDataType_t>(digest.type)) : "unknown type";
}
const char* digestOp(const Digest& digest) {
  if (digest.op == pealNumOps) {
    return "pre-multiplied sum";
  }
  if (digest.op == Digest::kAdamw) {
    return "sum and AdamW";
  }
  if (digest.op == Digest::kApply) {
    return "sum and apply";
  }
  return digest.op < pealNumOps ? opName(static_cast<pealRedOp_t>(digest.op)) : "none";
}

std::string digestAlgorithm(const Digest& digest) {
  return digest.algorithm < kAlgorithmFamilies ? kAlgorithmNames[digest.algorithm]
                                               : fmt::format("unknown algorithm {}", digest.algorithm);
}

}  // namespace

const char* collectiveName(int kind) {
  return kind >= 0 && kind < pealNumStats ? kNames[static_cast<size_t>(kind)] : "unknown operation";
}

std::string describe(const Digest& digest) {
  std::string text = fmt::format("{} #{}", collectiveName(digest.collective), digest.sequence);
  if (digest.collective == pealStatBarrier) {
    return text;
  }
  text += fmt::format(" (count {}, {}", digest.count, digestType(digest));
  if (digest.op != Digest::kNoOp) {
    text += fmt::format(", {}", digestOp(digest));
  }
  if (digest.root >= 0) {
    text += fmt::format(", root {}", digest.root);
  }
  return text + ")";
}

std::string disagreement(const Digest& mine, int myRank, const Digest& theirs, int theirRank) {
  std::string text;
  const auto differ = [&](const char* field, const auto& a, const auto& b) {
    if (a != b) {
      text += fmt::format("{}{} is {} on rank {} and {} on rank {}", text.empty() ? "" : ", ", field, a,
                          myRank, b, theirRank);
    }
  };
  differ("the operation", std::string(collectiveName(mine.collective)),
         std::string(collectiveName(theirs.collective)));
  differ("the count", mine.count, theirs.count);
  differ("the data type", std::string(digestType(mine)), std::string(digestType(theirs)));
  differ("the reduction", std::string(digestOp(mine)), std::string(digestOp(theirs)));
  differ("the root", mine.root, theirs.root);
  if (text.empty()) {  // the user's arguments agree: then the call order or the configuration does not
    differ("the number of the call", mine.sequence, theirs.sequence);
    differ("the algorithm", digestAlgorithm(mine), digestAlgorithm(theirs));
  }
  return text;
}

Error unexpectedArrival(const HostContext& context, const Digest& mine, int from, size_t sizeBytes,
                        const Arrival& arrival) {
  std::string what = disagreement(mine, context.rank, arrival.digest, from);
  if (what.empty()) {
    what = fmt::format("rank {} sent {} bytes where rank {} expects {} (do the counts per rank differ?)",
                       from, arrival.bytes, context.rank, sizeBytes);
  }
  return {pealInvalidUsage,
          fmt::format("{}: the ranks disagree on a call: {}. Rank {} is in {}, rank {} is in {}. Every rank "
                      "must make the same calls in the same order.",
                      context.name, what, context.rank, describe(mine), from, describe(arrival.digest))};
}

}  // namespace peal
