// pealZeroRead: one parameter's values, put together from the parts that the ranks own.
#include <fmt/format.h>

#include <algorithm>

#include "lib/reduce/adamw.h"
#include "lib/zero/engine.h"

namespace peal::zero {

Result<void> Engine::read(int id, pealZeroTensor_t tensor, float* values) {
  PEAL_TRY(checkSealed());
  const Result<size_t> index = parameterIndex(id);
  if (!index) {
    return index.error();
  }
  if (weights_.anyOpen() || gradients_.anyHandedOver()) {
    return Error{pealInvalidUsage,
                 "values are read between steps: all units left, and no gradient handed over"};
  }
  const Parameter& asked = model_.layout.parameters[*index];
  const Parameter& parameter = asked.role == Role::Alias ? model_.layout.parameters[asked.tiedTo] : asked;
  if (parameter.role == Role::Frozen && tensor != pealZeroWeight) {
    return Error{pealInvalidUsage, fmt::format("parameter {} (\"{}\") is frozen: it has weights only, no "
                                               "master weights and no moments",
                                               id, asked.name)};
  }
  const Bucket& bucket = model_.layout.bucketOf(parameter);
  const std::vector<size_t> counts = partsOf(parameter, bucket);
  if (tensor == pealZeroWeight) {
    if (parameter.precision == Precision::Fp32) {
      return weights_.read(parameter, counts, values);
    }
    std::vector<uint16_t> rounded(parameter.elements);
    const Collectives::Lending lending(*collectives_);
    PEAL_TRY(weights_.read(parameter, counts, rounded.data()));
    std::transform(rounded.begin(), rounded.end(), values, fromBf16);
    return {};
  }
  const Owned part = model_.owned(bucket);
  const uint64_t begin = parameter.begin - bucket.begin;
  const uint64_t skipped = std::min(begin - std::min(begin, part.begin), part.elements);
  const uint64_t own =
      model_.stage() == 0 ? parameter.elements : counts[static_cast<size_t>(collectives_->shard())];
  std::vector<float> room;
  const Collectives::Lending lending(*collectives_);
  const Result<const float*> state =
      optimizer_.state(tensor, bucket, skipped, own, weights_.owned(parameter.bucket), room);
  if (!state) {
    return collectives_->checked("reading values", state.error());
  }
  if (model_.stage() == 0) {
    std::copy_n(*state, own, values);
    return {};
  }
  PEAL_TRY(collectives_->allGather(Among::Group, pealZeroInspect, *state, values, counts, pealFloat32,
                                   Data::Host));
  return collectives_->finish();
}

// How many of the parameter's elements each rank of the group owns. The blocks of the ranks follow each other
// in the bucket, so each rank's part is one stretch, and the parts in rank order are the parameter.
std::vector<size_t> Engine::partsOf(const Parameter& parameter, const Bucket& bucket) {
  const uint64_t begin = parameter.begin - bucket.begin;
  std::vector<size_t> counts(bucket.counts.size());
  uint64_t blockBegin = 0;
  for (size_t rank = 0; rank < counts.size(); ++rank) {
    const uint64_t blockEnd = blockBegin + bucket.counts[rank];
    const uint64_t from = std::max(begin, blockBegin);
    const uint64_t to = std::min(begin + parameter.elements, blockEnd);
    counts[rank] = from < to ? to - from : 0;
    blockBegin = blockEnd;
  }
  return counts;
}

}  // namespace peal::zero
