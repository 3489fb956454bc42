// Registration: groups, parameters, first values. Everything here is local and comes before seal().
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <string>

#include "lib/reduce/reduce.h"
#include "lib/zero/engine.h"

namespace peal::zero {
namespace {

constexpr uint64_t kMostRegistered = 1'000'000'000'000'000;
constexpr int kEnginesType = -1;

std::string nameInBrackets(int dtype) {
  return dtype >= 0 && dtype < pealNumTypes
             ? fmt::format(" ({})", typeName(static_cast<pealDataType_t>(dtype)))
             : std::string();
}

// The product of the extents, or more than kMostRegistered if it is more.
uint64_t elementsOf(const pealZeroParameter_t& described) {
  const std::vector<uint64_t> extents(described.extents, described.extents + described.dims);
  if (std::find(extents.begin(), extents.end(), uint64_t{0}) != extents.end()) {
    return 0;
  }
  uint64_t elements = 1;
  for (const uint64_t extent : extents) {
    if (extent > kMostRegistered / elements) {
      return kMostRegistered + 1;
    }
    elements *= extent;
  }
  return elements;
}

Result<void> checkGroup(const pealZeroGroup_t& group) {
  if (group.size != sizeof group || group.magic != PEAL_ZERO_MAGIC) {
    return Error{pealInvalidArgument,
                 fmt::format("the group has size {} and magic {:#x}, not {} and {:#x}; start from "
                             "PEAL_ZERO_GROUP_INITIALIZER of this version's header",
                             group.size, group.magic, sizeof group, PEAL_ZERO_MAGIC)};
  }
  struct GroupRange {
    const char* name;
    double value, most;
    bool inherits;
    double least = 0;
  };
  const double below1 = std::nextafter(1.0, 0.0);
  const std::array<GroupRange, 5> ranges{{{"learningRateFactor", group.learningRateFactor, 1e6, false},
                                          {"beta1", group.beta1, below1, true},
                                          {"beta2", group.beta2, below1, true},
                                          {"epsilon", group.epsilon, 1, true, kLeastEpsilon},
                                          {"weightDecay", group.weightDecay, 1e6, true}}};
  for (const GroupRange& range : ranges) {
    const bool inherited = range.inherits && range.value == -1;
    if (!inherited && !(range.value >= range.least && range.value <= range.most)) {
      return Error{pealInvalidArgument, fmt::format("the group's {} is {}; it must be from {} to {}{}",
                                                    range.name, range.value, range.least, range.most,
                                                    range.inherits ? ", or -1: that of the options" : "")};
    }
  }
  return {};
}

}  // namespace

Result<int> Engine::addGroup(const pealZeroGroup_t& group) {
  PEAL_TRY(checkUsable());
  const Result<Group> read = readGroup(group);
  if (!read) {
    return read.error();
  }
  if (sealed_) {
    return Error{pealInvalidUsage, "a group comes too late: the engine is sealed"};
  }
  groups_.push_back(*read);
  return static_cast<int>(groups_.size()) - 1;
}

Result<Group> Engine::readGroup(const pealZeroGroup_t& numbers) const {
  PEAL_TRY(checkGroup(numbers));
  const auto orElse = [](double value, double inherited) { return value == -1 ? inherited : value; };
  return Group{numbers.learningRateFactor, orElse(numbers.beta1, options_.beta1),
               orElse(numbers.beta2, options_.beta2), orElse(numbers.epsilon, options_.epsilon),
               orElse(numbers.weightDecay, options_.weightDecay)};
}

Result<int> Engine::addParameter(const pealZeroParameter_t& described) {
  PEAL_TRY(checkUsable());
  if (described.size != sizeof described || described.magic != PEAL_ZERO_MAGIC) {
    return Error{pealInvalidArgument,
                 fmt::format("the parameter has size {} and magic {:#x}, not {} and {:#x}; start from "
                             "PEAL_ZERO_PARAMETER_INITIALIZER of this version's header",
                             described.size, described.magic, sizeof described, PEAL_ZERO_MAGIC)};
  }
  if (described.name == nullptr) {
    return Error{pealInvalidArgument, "the parameter's name is NULL"};
  }
  const auto refuse = [&](pealResult_t code, const std::string& why) {
    return Error{code, fmt::format("parameter {} (\"{}\", unit {}) is refused: {}", registered_.size(),
                                   described.name, described.unit, why)};
  };
  if (sealed_) {
    return refuse(pealInvalidUsage, "the engine is sealed");
  }
  Result<Parameter> parameter = readDescriptor(described);
  if (!parameter) {
    return refuse(parameter.error().code, parameter.error().message);
  }
  if (parameter->role != Role::Alias && static_cast<size_t>(described.unit) == kept_.size()) {
    kept_.push_back(false);
  }
  registered_.push_back(std::move(*parameter));
  initial_.emplace_back();
  return static_cast<int>(registered_.size()) - 1;
}

// Errors say only why.
Result<Parameter> Engine::readDescriptor(const pealZeroParameter_t& described) const {
  if (*described.name == '\0') {
    return Error{pealInvalidArgument, "its name is empty"};
  }
  const auto named = [&](const char* name) {
    return std::find_if(registered_.begin(), registered_.end(),
                        [name](const Parameter& other) { return other.name == name; });
  };
  if (named(described.name) != registered_.end()) {
    return Error{pealInvalidArgument, "another has this name; a tied weight's second name has tiedTo"};
  }
  if (described.dims < 0 || described.dims > PEAL_ZERO_MAX_DIMS) {
    return Error{pealInvalidArgument, fmt::format("its shape has {} dimensions; it must have from 0 to {}",
                                                  described.dims, PEAL_ZERO_MAX_DIMS)};
  }
  Parameter parameter;
  parameter.name = described.name;
  parameter.extents.assign(described.extents, described.extents + described.dims);
  parameter.elements = elementsOf(described);
  parameter.unit = described.unit;
  if (described.tiedTo != nullptr) {
    const auto other = named(described.tiedTo);
    if (other == registered_.end()) {
      return Error{pealInvalidArgument,
                   fmt::format("it is tied to \"{}\", which is not registered yet", described.tiedTo)};
    }
    if (other->extents != parameter.extents || other->unit != parameter.unit) {
      return Error{pealInvalidArgument,
                   fmt::format("it is tied to \"{}\" with shape [{}] and unit {}, but has shape [{}]; both "
                               "must be the same",
                               other->name, fmt::join(other->extents, ", "), other->unit,
                               fmt::join(parameter.extents, ", "))};
    }
    const auto index = static_cast<size_t>(other - registered_.begin());
    parameter.role = Role::Alias;
    parameter.tiedTo = other->role == Role::Alias ? other->tiedTo : index;
    parameter.group = other->group;
    parameter.decay = other->decay;
    parameter.precision = other->precision;
    return parameter;
  }
  PEAL_TRY(checkPlace(described, parameter.elements));
  parameter.role = described.frozen != 0 ? Role::Frozen : Role::Trained;
  parameter.group = described.group;
  parameter.decay = described.decay;
  const bool isWide = described.dtype == kEnginesType ? options_.master == pealZeroMasterIsWeight
                                                      : described.dtype == pealFloat32;
  parameter.precision = isWide ? Precision::Fp32 : Precision::Bf16;
  return parameter;
}

Result<void> Engine::checkPlace(const pealZeroParameter_t& described, uint64_t elements) const {
  uint64_t total = elements;
  for (const Parameter& parameter : registered_) {
    total += parameter.elements;
  }
  if (elements > kMostRegistered || total > kMostRegistered) {
    return Error{pealInvalidArgument, "that is more than 10^15 elements in all"};
  }
  const int units = static_cast<int>(kept_.size());
  if (described.unit != units && (described.unit != units - 1 || units == 0)) {
    return Error{pealInvalidArgument,
                 units == 0 ? std::string("the first parameter's unit is 0")
                            : fmt::format("after a parameter of unit {} comes one of {} or {}; a unit's "
                                          "parameters are registered together",
                                          units - 1, units - 1, units)};
  }
  if (described.group < 0 || static_cast<size_t>(described.group) >= groups_.size()) {
    return Error{pealInvalidArgument,
                 fmt::format("there is no group {}: {} were added with pealZeroAddGroup, from 1",
                             described.group, groups_.size() - 1)};
  }
  if (described.decay != pealZeroDecay && described.decay != pealZeroNoDecay) {
    return Error{pealInvalidArgument,
                 fmt::format("decay is {}, neither 0 nor 1", static_cast<int>(described.decay))};
  }
  if (described.dtype != kEnginesType && described.dtype != pealBfloat16 && described.dtype != pealFloat32) {
    return Error{
        pealInvalidArgument,
        fmt::format("its dtype is {}{}; weights are pealBfloat16 ({}) or pealFloat32 ({}), and -1 is "
                    "the engine's type",
                    described.dtype, nameInBrackets(described.dtype), static_cast<int>(pealBfloat16),
                    static_cast<int>(pealFloat32))};
  }
  if (described.frozen != 0 && described.frozen != 1) {
    return Error{pealInvalidArgument, fmt::format("frozen is {}, neither 0 nor 1", described.frozen)};
  }
  return {};
}

Result<void> Engine::keepUnit(int unit) {
  PEAL_TRY(checkUsable());
  const Result<size_t> index = unitIndex(unit);
  if (!index) {
    return index.error();
  }
  if (sealed_) {
    return Error{pealInvalidUsage, fmt::format("unit {} cannot be kept: the engine is sealed", unit)};
  }
  kept_[*index] = true;
  return {};
}

Result<void> Engine::setInitial(int id, const InitialValues& values) {
  PEAL_TRY(checkUsable());
  const Result<size_t> index = parameterIndex(id);
  if (!index) {
    return index.error();
  }
  if (sealed_) {
    return Error{pealInvalidUsage,
                 fmt::format("the first values of parameter {} come too late: the engine is sealed", id)};
  }
  const Parameter& parameter = registered_[*index];
  if (parameter.role == Role::Alias) {
    return Error{pealInvalidUsage,
                 fmt::format("parameter {} (\"{}\") is another name for parameter {} (\"{}\"): the first "
                             "values are that one's",
                             id, parameter.name, parameter.tiedTo, registered_[parameter.tiedTo].name)};
  }
  if (options_.initialValues == 0) {
    return Error{pealInvalidUsage,
                 fmt::format("parameter {} (\"{}\") takes no first values: the engine's initialValues is 0",
                             id, parameter.name)};
  }
  initial_[*index] = values;
  return {};
}

Result<pealZeroParameter_t> Engine::describe(int id) const {
  const Result<size_t> index = parameterIndex(id);
  if (!index) {
    return index.error();
  }
  const Parameter& parameter = parameters()[*index];
  pealZeroParameter_t described = PEAL_ZERO_PARAMETER_INITIALIZER;
  described.name = parameter.name.c_str();
  described.dims = static_cast<int>(parameter.extents.size());
  std::copy(parameter.extents.begin(), parameter.extents.end(), described.extents);
  described.unit = parameter.unit;
  described.group = parameter.group;
  described.decay = parameter.decay;
  described.dtype = typeOf(parameter.precision);
  const bool tied = parameter.role == Role::Alias;
  const Parameter& named = tied ? parameters()[parameter.tiedTo] : parameter;
  described.frozen = named.role == Role::Frozen ? 1 : 0;
  described.tiedTo = tied ? named.name.c_str() : nullptr;
  return described;
}

}  // namespace peal::zero
