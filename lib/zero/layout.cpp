#include "lib/zero/layout.h"

#include <algorithm>
#include <utility>

#include "lib/zero/planner.h"

namespace peal::zero {
namespace {

void placeParameters(Layout& layout, const std::vector<bool>& kept) {
  for (size_t id = 0; id < layout.parameters.size(); ++id) {
    Parameter& parameter = layout.parameters[id];
    parameter.begin = layout.elements;
    layout.elements += parameter.elements;
    const auto number = static_cast<size_t>(parameter.unit);
    if (number == layout.units.size()) {
      layout.units.push_back({id, id, parameter.begin, 0, kept[number]});
    }
    Unit& unit = layout.units[number];
    unit.end = id + 1;
    unit.elements += parameter.elements;
  }
}

// Buckets for stages 0 to 2, from the last parameter to the first.
void fillBuckets(Layout& layout, size_t bucketBytes) {
  const uint64_t most = bucketBytes / kGradientBytes;
  for (size_t id = layout.parameters.size(); id-- > 0;) {
    const Parameter& parameter = layout.parameters[id];
    const bool fits = !layout.buckets.empty() && layout.buckets.back().elements + parameter.elements <= most;
    if (!fits) {
      layout.buckets.push_back({id, id + 1, parameter.begin, 0, {}, 0, 0, 0});
    }
    Bucket& bucket = layout.buckets.back();
    bucket.first = id;
    bucket.begin = parameter.begin;
    bucket.elements += parameter.elements;
  }
}

void unitsAsBuckets(Layout& layout) {
  for (auto unit = layout.units.rbegin(); unit != layout.units.rend(); ++unit) {
    layout.buckets.push_back({unit->first, unit->end, unit->begin, unit->elements, {}, 0, 0, 0});
  }
}

// Divides the buckets; `turn` is the rank whose block gets the next odd element.
void divideBuckets(Layout& layout, int ranks, int rank) {
  const auto count = static_cast<uint64_t>(ranks);
  uint64_t turn = 0;
  for (Bucket& bucket : layout.buckets) {
    const uint64_t longer = bucket.elements % count;
    bucket.counts.assign(count, bucket.elements / count);
    for (uint64_t i = 0; i < longer; ++i) {
      ++bucket.counts[(turn + i) % count];
    }
    turn = (turn + longer) % count;
    for (int r = 0; r < rank; ++r) {
      bucket.ownBegin += bucket.counts[static_cast<size_t>(r)];
    }
    bucket.ownElements = bucket.counts[static_cast<size_t>(rank)];
    bucket.shardBegin = layout.shardElements;
    layout.shardElements += bucket.ownElements;
  }
}

}  // namespace

Layout makeLayout(std::vector<Parameter> parameters, const std::vector<bool>& kept, int stage, int ranks,
                  int rank, size_t bucketBytes) {
  Layout layout;
  layout.parameters = std::move(parameters);
  placeParameters(layout, kept);
  if (stage == 3) {
    unitsAsBuckets(layout);
  } else {
    fillBuckets(layout, bucketBytes);
  }
  divideBuckets(layout, ranks, rank);
  for (size_t b = 0; b < layout.buckets.size(); ++b) {
    const Bucket& bucket = layout.buckets[b];
    layout.largestBucket = std::max(layout.largestBucket, bucket.elements);
    for (size_t id = bucket.first; id < bucket.end; ++id) {
      layout.parameters[id].bucket = b;
    }
  }
  for (const Unit& unit : layout.units) {
    layout.largestUnit = std::max(layout.largestUnit, unit.elements);
  }
  return layout;
}

std::vector<Segment> decaySegments(const Layout& layout, const Bucket& bucket, uint64_t begin,
                                   uint64_t elements) {
  std::vector<Segment> segments;
  const uint64_t end = begin + elements;
  for (size_t id = bucket.first; id < bucket.end; ++id) {
    const Parameter& parameter = layout.parameters[id];
    const uint64_t from = std::max(begin, parameter.begin - bucket.begin);
    const uint64_t to = std::min(end, parameter.begin - bucket.begin + parameter.elements);
    if (from >= to) {
      continue;
    }
    if (!segments.empty() && segments.back().decay == parameter.decay) {
      segments.back().elements += to - from;
    } else {
      segments.push_back({from, to - from, parameter.decay});
    }
  }
  return segments;
}

}  // namespace peal::zero
