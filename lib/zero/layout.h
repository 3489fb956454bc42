// Where everything lies: parameters in the flat space, units, buckets, and which elements this rank owns.
//
// The flat space holds the trained parameters, bucket by bucket, then the frozen ones, without gaps. Buckets
// are filled in the order in which gradients are expected, at first that of registration, backwards, and lie
// from the last to the first: so at first the trained parameters lie in the order of registration, and
// bucket 0, of those registered last, at the end. Inside a bucket parameters lie in the order of
// registration. A bucket never splits a parameter. At stage 3 a bucket is a unit. The frozen parameters of a
// unit are a bucket of their own, of weights only. A tied name is no range but another entry for one.
//
// Each bucket is divided over the ranks in element-granular blocks. Where it does not divide evenly some
// blocks are one element longer; whose blocks those are goes on from bucket to bucket in turn, so that a
// rank's blocks add up to exactly shardElements(total, ranks, rank), however the space is cut into buckets.
//
// A rank's shard is the concatenation of its blocks in the order of buckets. Built by the engine, and again
// when buckets are rebuilt; constant otherwise. Knows no memory and no communication.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "peal/zero.h"

namespace peal::zero {

enum class Role : uint8_t { Trained, Frozen, Alias };

struct Parameter {
  std::string name;
  uint64_t elements = 0;
  int unit = 0;
  pealZeroDecay_t decay = pealZeroDecay;
  Role role = Role::Trained;
  int group = 0;
  size_t tiedTo = 0;                // of an alias: the parameter that it names, itself no alias
  std::vector<uint64_t> extents{};  // the shape
  // Filled in by makeLayout.
  uint64_t begin = 0;  // in the flat space
  uint64_t index = 0;  // of a trained one: trained elements registered before it, whatever the buckets are
  size_t bucket = 0;   // in Layout::buckets, or in Layout::frozen
};

struct Unit {
  std::vector<size_t> parameters;  // trained, in the order of registration
  uint64_t elements = 0;           // of those
  bool kept = false;
};

struct Bucket {
  std::vector<size_t> parameters;  // in the order in which they lie
  uint64_t begin = 0, elements = 0;
  std::vector<size_t> counts;  // elements of each rank's block
  uint64_t ownBegin = 0;       // this rank's block, from the start of the bucket
  uint64_t ownElements = 0;
  uint64_t shardBegin = 0;  // this rank's block in its shard
};

// A part of one bucket's range that is updated with the same numbers. Offsets from the start of the bucket.
struct Segment {
  uint64_t begin, elements;
  int group;
  pealZeroDecay_t decay;
  uint64_t index;  // of its first element, as Parameter::index
};

struct Layout {
  std::vector<Parameter> parameters;
  std::vector<Unit> units;
  std::vector<Bucket> buckets;
  std::vector<Bucket> frozen;   // one for each unit, in their order; begin and shardBegin go on from trained
  uint64_t elements = 0;        // trained
  uint64_t shardElements = 0;   // of them this rank's
  uint64_t frozenElements = 0;  // on top
  uint64_t frozenShardElements = 0;  // of them this rank's
  uint64_t largestBucket = 0;
  uint64_t largestUnit = 0;  // frozen ones included

  // The bucket, trained or frozen, in which a parameter lies.
  const Bucket& bucketOf(const Parameter& parameter) const {
    const bool isFrozen =
        (parameter.role == Role::Alias ? parameters[parameter.tiedTo].role : parameter.role) == Role::Frozen;
    return (isFrozen ? frozen : buckets)[parameter.bucket];
  }
};

// Fills in the positions. parameters: as registered; kept[u], for each unit: it is not freed after forward.
// order: all trained parameters in the order in which their gradients are expected; empty: backwards.
Layout makeLayout(std::vector<Parameter> parameters, const std::vector<bool>& kept, int stage, int ranks,
                  int rank, uint64_t bucketElements, const std::vector<size_t>& order = {});

// The segments of `elements` elements from `begin` of a bucket of trained parameters.
std::vector<Segment> updateSegments(const Layout& layout, const Bucket& bucket, uint64_t begin,
                                    uint64_t elements);

}  // namespace peal::zero
