// Buckets rebuilt, once, at the end of the first step: in the order in which gradients became ready in the
// first backward pass of rank 0, so that a bucket is complete early and none waits for one that comes late.
//
// Which parameters are in a bucket decides where they lie and which rank owns which of their elements, so the
// state moves. It moves through memory that is idle between steps: the gradients, which have room for 16 bits
// of each owned element. Values of 32 bits move as two planes of 16: all upper halves, then all lower ones.
// On top come pieces of bounded size. No arena changes its size, since no bucket gets larger than the largest
// before. Names, shapes and Parameter::index stay, and with them checkpoints and stochastic rounding.
#include <algorithm>

#include "lib/zero/engine.h"

namespace peal::zero {
namespace {

constexpr uint64_t kPieceElements = uint64_t{1} << 20;

bool haveSameBuckets(const Layout& one, const Layout& other) {
  return std::equal(
      one.buckets.begin(), one.buckets.end(), other.buckets.begin(), other.buckets.end(),
      [](const Bucket& a, const Bucket& b) { return a.begin == b.begin && a.parameters == b.parameters; });
}

// How much of [begin, end) of a bucket each rank's block has.
std::vector<size_t> countsOf(const Bucket& bucket, uint64_t begin, uint64_t end) {
  std::vector<size_t> counts;
  uint64_t blockBegin = 0;
  for (const size_t block : bucket.counts) {
    const uint64_t from = std::max(begin, blockBegin);
    const uint64_t to = std::min(end, blockBegin + block);
    counts.push_back(from < to ? to - from : 0);
    blockBegin += block;
  }
  return counts;
}

}  // namespace

Result<void> Engine::rebuildBuckets() {
  std::vector<uint64_t> order = gradients_.takeReadyOrder();
  const Collectives::Lending lending(*collectives_);
  PEAL_TRY(collectives_->broadcastFromZero(pealZeroStart, order.data(), order.size(), pealUint64));
  PEAL_TRY(collectives_->finish());  // and with it everything that uses what moves
  // Not more than fills a bucket, and not more than the largest has: the same order gives the same buckets.
  const Layout next = makeLayout(model_.layout.parameters, kept_, model_.stage(), collectives_->shards(),
                                 collectives_->shard(), options_.bucketBytes / model_.gradientBytes(),
                                 {order.begin(), order.end()}, &model_.layout);
  if (haveSameBuckets(next, model_.layout)) {
    return {};
  }
  for (const Plane& plane : optimizer_.masterPlanes()) {
    PEAL_TRY(movePlane(plane, PlaneOf::Masters, next));
  }
  for (const Plane& plane : optimizer_.momentPlanes()) {
    PEAL_TRY(movePlane(plane, PlaneOf::Moments, next));
  }
  PEAL_TRY(moveWeights(next));
  model_.layout = next;
  gradients_.followLayout();
  PEAL_TRY(moving(optimizer_.followLayout()));
  weights_.followLayout();
  fused_.prepare(model_, *collectives_, gradients_, weights_, optimizer_);
  for (size_t bucket = model_.layout.buckets.size(); bucket-- > 0;) {
    PEAL_TRY(weights_.gatherUpdated(bucket, pealZeroStart));
  }
  return {};
}

// The ranks of the group put pieces of a bucket together, and each keeps what it owns from now on. Pieces are
// the host's, on GPUs too. Only bf16 weights have masters; they come first in all arenas of owned elements.
Result<void> Engine::movePlane(const Plane& plane, PlaneOf of, const Layout& next) {
  Device& device = *collectives_->device();
  auto* moved = static_cast<uint16_t*>(gradients_.idle());
  std::vector<uint16_t> own, piece;
  const Collectives::Lending lending(*collectives_);
  for (const Bucket& bucket : model_.layout.buckets) {
    if (of == PlaneOf::Masters && bucket.precision == Precision::Fp32) {
      continue;
    }
    const Owned part = model_.owned(bucket);
    for (uint64_t begin = 0; begin < bucket.elements; begin += piece.size()) {
      const uint64_t end = std::min(begin + kPieceElements, bucket.elements);
      const uint64_t ownBegin = std::clamp(part.begin, begin, end);
      const uint64_t ownEnd = std::clamp(part.begin + part.elements, begin, end);
      own.resize(ownEnd - ownBegin + 1);  // one more: an empty vector has no address
      PEAL_TRY(moving(plane.get(device, part.state + ownBegin - part.begin, ownEnd - ownBegin, own.data())));
      piece.resize(end - begin);
      if (model_.stage() == 0) {
        std::copy_n(own.begin(), piece.size(), piece.begin());
      } else {
        PEAL_TRY(collectives_->allGather(Among::Group, pealZeroStart, own.data(), piece.data(),
                                         countsOf(bucket, begin, end), pealBfloat16, Data::Host));
        PEAL_TRY(collectives_->finish());
      }
      PEAL_TRY(forEachMove(bucket, next, begin, end, [&](uint64_t from, uint64_t state, uint64_t count) {
        return device.upload(moved + state, piece.data() + (from - begin), count * sizeof *moved);
      }));
    }
  }
  const Extent& narrow = next.of[Precision::Bf16];
  const uint64_t ofBoth = model_.stage() == 0 ? next.elements : next.shardElements;
  const uint64_t ofNarrow = model_.stage() == 0 ? narrow.elements : narrow.shardElements;
  const uint64_t owned = of == PlaneOf::Masters ? ofNarrow : ofBoth;
  for (uint64_t first = 0; first < owned; first += kPieceElements) {
    const uint64_t count = std::min(kPieceElements, owned - first);
    const Result<const uint16_t*> values = device.view<uint16_t>(moved + first, count, piece);
    PEAL_TRY(moving(values ? plane.set(device, first, count, *values) : values.error()));
  }
  return {};
}

// Every rank has all weights, where they lay: what it owns from now on goes where it lies from now on.
Result<void> Engine::moveWeights(const Layout& next) {
  for (const Precision precision : kPrecisions) {
    for (const Plane& plane : weights_.planes(precision)) {
      PEAL_TRY(moveWeights(plane, precision, next));
    }
  }
  return {};
}

// Of one type, and of one half of each where that is fp32: the other halves stay where they are meanwhile.
Result<void> Engine::moveWeights(const Plane& plane, Precision precision, const Layout& next) {
  Device& device = *collectives_->device();
  auto* moved = static_cast<uint16_t*>(gradients_.idle());
  std::vector<uint16_t> piece;
  for (const Bucket& bucket : model_.layout.buckets) {
    for (uint64_t begin = 0; bucket.precision == precision && begin < bucket.elements;
         begin += kPieceElements) {
      const auto put = [&](uint64_t from, uint64_t state, uint64_t count) -> Result<void> {
        piece.resize(count);
        PEAL_TRY(plane.get(device, Weights::planeBegin(bucket) + from, count, piece.data()));
        return device.upload(moved + state, piece.data(), count * sizeof *moved);
      };
      PEAL_TRY(forEachMove(bucket, next, begin, std::min(begin + kPieceElements, bucket.elements), put));
    }
  }
  for (const Bucket& bucket : next.buckets) {
    const Owned part = model_.owned(bucket);
    for (uint64_t done = 0; bucket.precision == precision && done < part.elements; done += kPieceElements) {
      const uint64_t count = std::min(kPieceElements, part.elements - done);
      const Result<const uint16_t*> values = device.view<uint16_t>(moved + part.state + done, count, piece);
      const uint64_t at = Weights::planeBegin(bucket) + part.begin + done;
      PEAL_TRY(moving(values ? plane.set(device, at, count, *values) : values.error()));
    }
  }
  return {};
}

Result<void> Engine::moving(const Result<void>& moved) {
  return collectives_->checked("moving the state into the rebuilt buckets", moved);
}

// For what this rank owns in `next` of [begin, end) of a bucket: where it is in the bucket, its place in the
// arenas of owned elements, how many.
template <class Move>
Result<void> Engine::forEachMove(const Bucket& bucket, const Layout& next, uint64_t begin, uint64_t end,
                                 Move move) {
  for (const size_t id : bucket.parameters) {
    const Parameter& now = model_.layout.parameters[id];
    const Parameter& then = next.parameters[id];
    const Bucket& target = next.buckets[then.bucket];
    const Owned part = model_.owned(target);
    // All as elements of the parameter.
    const uint64_t offset = now.begin - bucket.begin;
    const uint64_t targetOffset = then.begin - target.begin;
    const uint64_t from =
        std::max(begin - std::min(begin, offset), part.begin - std::min(part.begin, targetOffset));
    const uint64_t to =
        std::min({now.elements, end - std::min(end, offset),
                  part.begin + part.elements - std::min(part.begin + part.elements, targetOffset)});
    if (from < to) {
      PEAL_TRY(moving(move(offset + from, part.state + targetOffset + from - part.begin, to - from)));
    }
  }
  return {};
}

}  // namespace peal::zero
