// Where everything lies: parameters in the flat space, units, buckets, and which elements this rank owns.
//
// The flat space holds the trained parameters, bucket by bucket, then the frozen ones, without gaps; those of
// bf16 weights before those of fp32 ones, since a bucket has weights of one type. Buckets are filled in the
// order in which gradients are expected, at first that of registration, backwards, one of each type at a
// time, and numbered in the order in which they are complete. They lie from the last to the first: so at
// first the trained parameters of a type lie in the order of registration. Inside a bucket parameters lie in
// the order of registration. A bucket never splits a parameter. At stage 3 a bucket is what a unit has of a
// type. The frozen parameters of a unit, of each type, are a bucket of their own, of weights only. A tied
// name is no range but another entry for one.
//
// Each bucket is divided over the ranks in element-granular blocks. Where it does not divide evenly some
// blocks are one element longer; whose blocks those are goes on from bucket to bucket of a type in turn, so
// that a rank's blocks add up to exactly shardElements(total, ranks, rank) of each type, however the space is
// cut into buckets.
//
// A rank's shard is the concatenation of its blocks in the order of buckets, bf16 before fp32. In memory that
// holds weights of both types the fp32 ones come first, so that all are aligned.
//
// Built by the engine, and again when buckets are rebuilt; constant otherwise. Knows no memory and no
// communication.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "lib/zero/precision.h"
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
  Precision precision = Precision::Bf16;  // of the weights
  size_t tiedTo = 0;                      // of an alias: the parameter that it names, itself no alias
  std::vector<uint64_t> extents{};        // the shape
  // Filled in by makeLayout.
  uint64_t begin = 0;  // in the flat space
  uint64_t index = 0;  // of a trained one: trained elements registered before it, whatever the buckets are
  size_t bucket = 0;   // in Layout::buckets, or in Layout::frozen
};

struct Unit {
  std::vector<size_t> parameters;  // trained, in the order of registration
  uint64_t elements = 0;           // of those
  bool kept = false;
  std::vector<size_t> buckets, frozen;  // its own: in Layout::buckets at stage 3, and in Layout::frozen
};

struct Bucket {
  std::vector<size_t> parameters;  // in the order in which they lie; at least one
  Precision precision = Precision::Bf16;
  uint64_t begin = 0, elements = 0;
  std::vector<size_t> counts;  // elements of each rank's block
  uint64_t ownBegin = 0;       // this rank's block, from the start of the bucket
  uint64_t ownElements = 0;
  uint64_t shardBegin = 0;  // this rank's block in its shard
  // In bytes: the bucket in memory that holds all weights, and this rank's block in memory of owned ones.
  uint64_t weightsAt = 0, shardWeightsAt = 0;
  uint64_t unitBegin = 0;  // elements of its type that lie before it where a unit is gathered
};

// Of the parameters of one type.
struct Extent {
  uint64_t elements = 0;             // trained
  uint64_t shardElements = 0;        // of them this rank's
  uint64_t frozenElements = 0;       // on top
  uint64_t frozenShardElements = 0;  // of them this rank's
  size_t buckets = 0;                // of trained ones
  uint64_t largestBucket = 0;
  uint64_t largestUnit = 0;  // what it has of the type, frozen ones included
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
  std::vector<Bucket> frozen;  // in the order of units; begin and shardBegin go on from trained
  PerPrecision<Extent> of;
  // Of both types.
  uint64_t elements = 0;       // trained
  uint64_t shardElements = 0;  // of them this rank's
  uint64_t frozenElements = 0, frozenShardElements = 0;
  uint64_t largestBucket = 0;

  // The bucket, trained or frozen, in which a parameter lies.
  const Bucket& bucketOf(const Parameter& parameter) const {
    const bool isFrozen =
        (parameter.role == Role::Alias ? parameters[parameter.tiedTo].role : parameter.role) == Role::Frozen;
    return (isFrozen ? frozen : buckets)[parameter.bucket];
  }
};

// Fills in the positions. parameters: as registered; kept[u], for each unit: it is not freed after forward.
// order: all trained parameters in the order in which their gradients are expected; empty: backwards. before:
// the layout that this one follows; no bucket gets larger than its largest of the type.
Layout makeLayout(std::vector<Parameter> parameters, const std::vector<bool>& kept, int stage, int ranks,
                  int rank, uint64_t bucketElements, const std::vector<size_t>& order = {},
                  const Layout* before = nullptr);

// The segments of `elements` elements from `begin` of a bucket of trained parameters.
std::vector<Segment> updateSegments(const Layout& layout, const Bucket& bucket, uint64_t begin,
                                    uint64_t elements);

}  // namespace peal::zero
