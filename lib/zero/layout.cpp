#include "lib/zero/layout.h"

#include <algorithm>
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

// The last bucket lies first.
void placeTrained(Layout& layout) {
  uint64_t begin = 0;
  for (size_t b = layout.buckets.size(); b-- > 0;) {
    Bucket& bucket = layout.buckets[b];
    bucket.begin = begin;
    for (const size_t id : bucket.parameters) {
      Parameter& parameter = layout.parameters[id];
      parameter.begin = begin;
      parameter.bucket = b;
      begin += parameter.elements;
    }
    bucket.elements = begin - bucket.begin;
    layout.largestBucket = std::max(layout.largestBucket, bucket.elements);
  }
}

void append(Bucket& bucket, const std::vector<Parameter>& parameters, size_t id) {
  if (bucket.parameters.empty()) {
    bucket.begin = parameters[id].begin;
  }
  bucket.parameters.push_back(id);
  bucket.elements += parameters[id].elements;
}

void placeFrozen(Layout& layout) {
  layout.frozen.resize(layout.units.size());
  for (size_t id = 0; id < layout.parameters.size(); ++id) {
    Parameter& parameter = layout.parameters[id];
    if (parameter.role == Role::Frozen) {
      parameter.begin = layout.elements + layout.frozenElements;
      parameter.bucket = static_cast<size_t>(parameter.unit);
      layout.frozenElements += parameter.elements;
      append(layout.frozen[parameter.bucket], layout.parameters, id);
    }
  }
}

// Buckets for stages 0 to 2.
void fillBuckets(Layout& layout, uint64_t most, const std::vector<size_t>& order) {
  uint64_t elements = 0;  // of the last
  for (const size_t id : order) {
    const uint64_t more = layout.parameters[id].elements;
    if (layout.buckets.empty() || elements + more > most) {
      layout.buckets.emplace_back();
      elements = 0;
    }
    layout.buckets.back().parameters.push_back(id);
    elements += more;
  }
  for (Bucket& bucket : layout.buckets) {
    std::sort(bucket.parameters.begin(), bucket.parameters.end());
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

// A unit without trained parameters has an empty bucket.
void unitsAsBuckets(Layout& layout) {
  for (auto unit = layout.units.rbegin(); unit != layout.units.rend(); ++unit) {
    layout.buckets.emplace_back().parameters = unit->parameters;
  }
}

// Divides the buckets; `turn` is the rank whose block gets the next odd element. Returns what this rank owns.
uint64_t divideBuckets(std::vector<Bucket>& buckets, int ranks, int rank, uint64_t shardBegin) {
  const auto count = static_cast<uint64_t>(ranks);
  uint64_t turn = 0;
  uint64_t owned = 0;
  for (Bucket& bucket : buckets) {
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

}  // namespace

Layout makeLayout(std::vector<Parameter> parameters, const std::vector<bool>& kept, int stage, int ranks,
                  int rank, uint64_t bucketElements, const std::vector<size_t>& order) {
  Layout layout;
  layout.parameters = std::move(parameters);
  for (const bool isKept : kept) {
    layout.units.emplace_back().kept = isKept;
  }
  numberTrained(layout);
  if (stage == 3) {
    unitsAsBuckets(layout);
  } else {
    fillBuckets(layout, bucketElements, order.empty() ? backwards(layout) : order);
  }
  placeTrained(layout);
  placeFrozen(layout);
  layout.shardElements = divideBuckets(layout.buckets, ranks, rank, 0);
  layout.frozenShardElements = divideBuckets(layout.frozen, ranks, rank, layout.shardElements);
  for (size_t unit = 0; unit < layout.units.size(); ++unit) {
    layout.largestUnit =
        std::max(layout.largestUnit, layout.units[unit].elements + layout.frozen[unit].elements);
  }
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
