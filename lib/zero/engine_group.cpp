// pealZeroSetGroup: other AdamW numbers for a group from the next step on.
#include <fmt/format.h>

#include <array>
#include <bit>
#include <vector>

#include "lib/zero/engine.h"

namespace peal::zero {
namespace {

// What a rank tells the others: whether it can, which group, and which numbers, bit for bit.
using Statement = std::array<uint64_t, 7>;

Statement statementOf(int id, const Group& group) {
  return {0,
          static_cast<uint64_t>(id),
          std::bit_cast<uint64_t>(group.learningRateFactor),
          std::bit_cast<uint64_t>(group.beta1),
          std::bit_cast<uint64_t>(group.beta2),
          std::bit_cast<uint64_t>(group.epsilon),
          std::bit_cast<uint64_t>(group.weightDecay)};
}

}  // namespace

Result<Group> Engine::checkedGroup(int id, const pealZeroGroup_t& numbers) const {
  if (id < 0 || static_cast<size_t>(id) >= groups_.size()) {
    return Error{
        pealInvalidArgument,
        fmt::format("there is no group {}: {} were added with pealZeroAddGroup, from 1, and 0 is the "
                    "options'",
                    id, groups_.size() - 1)};
  }
  if (sealed_ && (weights_.anyOpen() || gradients_.anyHandedOver())) {
    return Error{pealInvalidUsage,
                 "a group gets other numbers between steps: all units left, and no gradient handed over"};
  }
  return readGroup(numbers);
}

// Before the seal, which compares groups, it is this rank's affair. Later a rank that cannot still takes part
// in the agreement: the others learn of it at once, and nothing has changed.
Result<void> Engine::setGroup(int id, const pealZeroGroup_t& numbers) {
  PEAL_TRY(checkUsable());
  const Result<Group> group = checkedGroup(id, numbers);
  if (!sealed_) {
    if (group) {
      groups_[static_cast<size_t>(id)] = *group;
    }
    return group ? Result<void>() : Result<void>(group.error());
  }
  const auto ranks = static_cast<size_t>(collectives_->ranks());
  const auto self = static_cast<size_t>(collectives_->rank());
  std::vector<Statement> statements(ranks);
  statements[self] = group ? statementOf(id, *group) : Statement{1};
  const std::vector<size_t> counts(ranks, std::tuple_size_v<Statement>);
  const Collectives::Lending lending(*collectives_);
  PEAL_TRY(collectives_->allGather(Among::All, pealZeroInspect, &statements[self], statements.data(), counts,
                                   pealUint64, Data::Host));
  PEAL_TRY(collectives_->finish());
  if (!group) {
    return group.error();
  }
  for (size_t rank = 0; rank < ranks; ++rank) {
    if (statements[rank][0] != 0) {
      return Error{
          pealRemoteError,
          fmt::format("rank {} cannot set group {}; the reason stands in the error there", rank, id)};
    }
  }
  for (size_t rank = 0; rank < ranks; ++rank) {
    if (statements[rank] != statements[self]) {
      return Error{
          pealInvalidUsage,
          fmt::format("rank {} gives another group or other numbers than this rank ({}: group {}, {} "
                      "times the learning rate, weightDecay {}); all ranks give the same. Nothing "
                      "has changed",
                      rank, self, id, group->learningRateFactor, group->weightDecay)};
    }
  }
  groups_[static_cast<size_t>(id)] = *group;
  model_.groups = groups_;
  return collectives_->checked("setting a group", optimizer_.followLayout());
}

}  // namespace peal::zero
