// Where everything lies: parameters in the flat space, units, buckets, and which elements this rank owns.
//
// The flat space holds the parameters in the order of registration, without gaps. Buckets are contiguous
// ranges of it, filled from the end: bucket 0 has the parameters registered last, whose gradients come
// first. A bucket never splits a parameter. At stage 3 a bucket is a unit.
//
// Each bucket is divided over the ranks in element-granular blocks. Where it does not divide evenly some
// blocks are one element longer; whose blocks those are goes on from bucket to bucket in turn, so that a
// rank's blocks add up to exactly shardElements(total, ranks, rank), however the space is cut into buckets.
//
// A rank's shard is the concatenation of its blocks in the order of buckets. Built once by the engine,
// constant afterwards. Knows no memory and no communication.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "peal/zero.h"

namespace peal::zero {

inline constexpr uint64_t kGradientBytes = 2;  // of an element

struct Parameter {
  std::string name;
  uint64_t elements;
  int unit;
  pealZeroDecay_t decay;
  uint64_t begin = 0;  // in the flat space
  size_t bucket = 0;
};

// Parameters [first, end) of the registration order.
struct Unit {
  size_t first = 0, end = 0;
  uint64_t begin = 0, elements = 0;
  bool kept = false;
};

struct Bucket {
  size_t first = 0, end = 0;  // parameters
  uint64_t begin = 0, elements = 0;
  std::vector<size_t> counts;  // elements of each rank's block
  uint64_t ownBegin = 0;       // this rank's block, from the start of the bucket
  uint64_t ownElements = 0;
  uint64_t shardBegin = 0;  // this rank's block in its shard
};

// A part of one bucket's range in which the decay does not change. Offsets from the start of the bucket.
struct Segment {
  uint64_t begin, elements;
  pealZeroDecay_t decay;
};

struct Layout {
  std::vector<Parameter> parameters;
  std::vector<Unit> units;
  std::vector<Bucket> buckets;
  uint64_t elements = 0;       // the flat space
  uint64_t shardElements = 0;  // this rank's
  uint64_t largestBucket = 0, largestUnit = 0;
};

// Fills in the positions. parameters: as registered; kept[u]: unit u is not freed after forward.
Layout makeLayout(std::vector<Parameter> parameters, const std::vector<bool>& kept, int stage, int ranks,
                  int rank, size_t bucketBytes);

// The segments of `elements` elements from `begin` of the bucket.
std::vector<Segment> decaySegments(const Layout& layout, const Bucket& bucket, uint64_t begin,
                                   uint64_t elements);

}  // namespace peal::zero
