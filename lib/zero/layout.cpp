#include "lib/zero/layout.h"

#include <algorithm>
#include <iterator>
#include <optional>
#include <utility>

#include "lib/zero/planner.h"

namespace peal::zero {
namespace {

void numberTrained(Layout& layout) {
  for (size_t id = 0; id < layout.parameters.size(); ++id) {
    Parameter& parameter = layout.parameters[id];
    if (parameter.role != Role::Trained) {
      continue;
    }
    Unit& unit = layout.units[static_cast<size_t>(parameter.unit)];
    parameter.index = layout.elements;
    layout.elements += parameter.elements;
    unit.parameters.push_back(id);
    unit.elements += parameter.elements;
  }
}

// Of a type, the last bucket lies first.
void placeTrained(Layout& layout) {
  uint64_t begin = 0;
  for (const Precision precision : kPrecisions) {
    Extent& extent = layout.of[precision];
    for (size_t b = layout.buckets.size(); b-- > 0;) {
      Bucket& bucket = layout.buckets[b];
      if (bucket.precision != precision) {
        continue;
      }
      bucket.begin = begin;
      for (const size_t id : bucket.parameters) {
        Parameter& parameter = layout.parameters[id];
        parameter.begin = begin;
        parameter.bucket = b;
        begin += parameter.elements;
      }
      bucket.elements = begin - bucket.begin;
      ++extent.buckets;
      extent.elements += bucket.elements;
      extent.largestBucket = std::max(extent.largestBucket, bucket.elements);
    }
    layout.largestBucket = std::max(layout.largestBucket, extent.largestBucket);
  }
}

void placeFrozen(Layout& layout) {
  for (const Precision precision : kPrecisions) {
    int lastUnit = -1;
    for (size_t id = 0; id < layout.parameters.size(); ++id) {
      Parameter& parameter = layout.parameters[id];
      if (parameter.role != Role::Frozen || parameter.precision != precision) {
        continue;
      }
      parameter.begin = layout.elements + layout.frozenElements;
      if (parameter.unit != std::exchange(lastUnit, parameter.unit)) {
        layout.units[static_cast<size_t>(parameter.unit)].frozen.push_back(layout.frozen.size());
        Bucket& bucket = layout.frozen.emplace_back();
        bucket.begin = parameter.begin;
        bucket.precision = precision;
      }
      parameter.bucket = layout.frozen.size() - 1;
      layout.frozen.back().parameters.push_back(id);
      layout.frozen.back().elements += parameter.elements;
      layout.of[precision].frozenElements += parameter.elements;
      layout.frozenElements += parameter.elements;
    }
  }
}

// Buckets for stages 0 to 2, of `most` elements if a parameter has not more: of each type one is filled at a
// time, and each has its number by its last parameter.
void fillBuckets(Layout& layout, const PerPrecision<uint64_t>& most, const std::vector<size_t>& order) {
  struct Filled {
    size_t last;  // in the order
    uint64_t elements;
    Bucket bucket;
  };
  std::vector<Filled> filled;
  PerPrecision<std::optional<size_t>> open;
  for (size_t at = 0; at < order.size(); ++at) {
    const Parameter& parameter = layout.parameters[order[at]];
    std::optional<size_t>& into = open[parameter.precision];
    if (!into || filled[*into].elements + parameter.elements > most[parameter.precision]) {
      into = filled.size();
      filled.emplace_back().bucket.precision = parameter.precision;
    }
    Filled& now = filled[*into];
    now.last = at;
    now.elements += parameter.elements;
    now.bucket.parameters.push_back(order[at]);
  }
  std::sort(filled.begin(), filled.end(), [](const Filled& a, const Filled& b) { return a.last < b.last; });
  for (Filled& each : filled) {
    std::sort(each.bucket.parameters.begin(), each.bucket.parameters.end());
    layout.buckets.push_back(std::move(each.bucket));
  }
}

std::vector<size_t> backwards(const Layout& layout) {
  std::vector<size_t> order;
  for (size_t id = layout.parameters.size(); id-- > 0;) {
    if (layout.parameters[id].role == Role::Trained) {
      order.push_back(id);
    }
  }
  return order;
}

void unitsAsBuckets(Layout& layout) {
  for (auto unit = layout.units.rbegin(); unit != layout.units.rend(); ++unit) {
    for (const Precision precision : kPrecisions) {
      Bucket bucket;
      bucket.precision = precision;
      std::copy_if(unit->parameters.begin(), unit->parameters.end(), std::back_inserter(bucket.parameters),
                   [&](size_t id) { return layout.parameters[id].precision == precision; });
      if (!bucket.parameters.empty()) {
        unit->buckets.push_back(layout.buckets.size());
        layout.buckets.push_back(std::move(bucket));
      }
    }
  }
}

// Divides the buckets of a type; `turn` is the rank whose block gets the next odd element. Returns what this
// rank owns.
uint64_t divideBuckets(std::vector<Bucket>& buckets, Precision precision, int ranks, int rank,
                       uint64_t shardBegin) {
  const auto count = static_cast<uint64_t>(ranks);
  uint64_t turn = 0;
  uint64_t owned = 0;
  for (Bucket& bucket : buckets) {
    if (bucket.precision != precision) {
      continue;
    }
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
    bucket.shardBegin = shardBegin + owned;
    owned += bucket.ownElements;
  }
  return owned;
}

void divide(Layout& layout, int ranks, int rank) {
  for (const Precision precision : kPrecisions) {
    Extent& extent = layout.of[precision];
    extent.shardElements = divideBuckets(layout.buckets, precision, ranks, rank, layout.shardElements);
    layout.shardElements += extent.shardElements;
  }
  for (const Precision precision : kPrecisions) {
    Extent& extent = layout.of[precision];
    extent.frozenShardElements = divideBuckets(layout.frozen, precision, ranks, rank,
                                               layout.shardElements + layout.frozenShardElements);
    layout.frozenShardElements += extent.frozenShardElements;
  }
}

// The bytes of the weights: fp32, then bf16; of each the trained ones, then the frozen ones.
void placeWeights(Layout& layout) {
  uint64_t all = 0, owned = 0;
  for (const Precision precision : {Precision::Fp32, Precision::Bf16}) {
    for (std::vector<Bucket>* buckets : {&layout.buckets, &layout.frozen}) {
      // Trained ones lie from the last to the first.
      const bool areTrained = buckets == &layout.buckets;
      const Extent& extent = layout.of[precision];
      const uint64_t elements = areTrained ? extent.elements : extent.frozenElements;
      uint64_t before = 0;
      for (Bucket& bucket : *buckets) {
        if (bucket.precision != precision) {
          continue;
        }
        const uint64_t at = areTrained ? elements - before - bucket.elements : before;
        bucket.weightsAt = all + at * bytesOf(precision);
        bucket.shardWeightsAt = owned;
        before += bucket.elements;
        owned += bucket.ownElements * bytesOf(precision);
      }
      all += elements * bytesOf(precision);
    }
  }
}

// Where a unit is gathered, of each type the trained ones come before the frozen ones.
void measureUnits(Layout& layout) {
  std::vector<PerPrecision<uint64_t>> trained(layout.units.size()), all(layout.units.size());
  for (const Parameter& parameter : layout.parameters) {
    const auto unit = static_cast<size_t>(parameter.unit);
    if (parameter.role != Role::Alias) {
      all[unit][parameter.precision] += parameter.elements;
    }
    if (parameter.role == Role::Trained) {
      trained[unit][parameter.precision] += parameter.elements;
    }
  }
  for (size_t unit = 0; unit < layout.units.size(); ++unit) {
    for (const size_t frozen : layout.units[unit].frozen) {
      layout.frozen[frozen].unitBegin = trained[unit][layout.frozen[frozen].precision];
    }
    for (const Precision precision : kPrecisions) {
      layout.of[precision].largestUnit = std::max(layout.of[precision].largestUnit, all[unit][precision]);
    }
  }
}

}  // namespace

Layout makeLayout(std::vector<Parameter> parameters, const std::vector<bool>& kept, int stage, int ranks,
                  int rank, uint64_t bucketElements, const std::vector<size_t>& order, const Layout* before) {
  Layout layout;
  layout.parameters = std::move(parameters);
  for (const bool isKept : kept) {
    layout.units.emplace_back().kept = isKept;
  }
  numberTrained(layout);
  if (stage == 3) {
    unitsAsBuckets(layout);
  } else {
    PerPrecision<uint64_t> most;
    for (const Precision precision : kPrecisions) {
      most[precision] =
          before == nullptr ? bucketElements : std::min(bucketElements, before->of[precision].largestBucket);
    }
    fillBuckets(layout, most, order.empty() ? backwards(layout) : order);
  }
  placeTrained(layout);
  placeFrozen(layout);
  divide(layout, ranks, rank);
  placeWeights(layout);
  measureUnits(layout);
  for (Parameter& parameter : layout.parameters) {
    if (parameter.role == Role::Alias) {
      parameter.begin = layout.parameters[parameter.tiedTo].begin;
      parameter.bucket = layout.parameters[parameter.tiedTo].bucket;
    }
  }
  return layout;
}

std::vector<Segment> updateSegments(const Layout& layout, const Bucket& bucket, uint64_t begin,
                                    uint64_t elements) {
  std::vector<Segment> segments;
  const uint64_t end = begin + elements;
  for (const size_t id : bucket.parameters) {
    const Parameter& parameter = layout.parameters[id];
    const uint64_t offset = parameter.begin - bucket.begin;
    const uint64_t from = std::max(begin, offset);
    const uint64_t to = std::min(end, offset + parameter.elements);
    if (from >= to) {
      continue;
    }
    const uint64_t index = parameter.index + (from - offset);
    Segment* last = segments.empty() ? nullptr : &segments.back();
    if (last != nullptr && last->group == parameter.group && last->decay == parameter.decay &&
        last->index + last->elements == index) {
      last->elements += to - from;
    } else {
      segments.push_back({from, to - from, parameter.group, parameter.decay, index});
    }
  }
  return segments;
}

}  // namespace peal::zero
