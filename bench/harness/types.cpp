#include "bench/harness/types.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <array>
#include <utility>

#include "tools/common/error.h"

namespace peal::bench {
namespace {

// In the order of nccl-tests, which "all" follows.
constexpr std::array<TypeInfo, pealNumTypes> kTypes{{
    {pealInt8, "int8", 1, TypeClass::Signed, 0, 0},
    {pealUint8, "uint8", 1, TypeClass::Unsigned, 0, 0},
    {pealInt32, "int32", 4, TypeClass::Signed, 0, 0},
    {pealUint32, "uint32", 4, TypeClass::Unsigned, 0, 0},
    {pealInt64, "int64", 8, TypeClass::Signed, 0, 0},
    {pealUint64, "uint64", 8, TypeClass::Unsigned, 0, 0},
    {pealFloat16, "half", 2, TypeClass::Float, 5, 10},
    {pealFloat32, "float", 4, TypeClass::Float, 8, 23},
    {pealFloat64, "double", 8, TypeClass::Float, 11, 52},
    {pealBfloat16, "bfloat16", 2, TypeClass::Float, 8, 7},
    {pealFloat8e4m3, "f8e4m3", 1, TypeClass::Float, 4, 3},
    {pealFloat8e5m2, "f8e5m2", 1, TypeClass::Float, 5, 2},
}};

constexpr std::array<std::pair<const char*, pealDataType_t>, 11> kAliases{{
    {"char", pealInt8},
    {"int", pealInt32},
    {"float16", pealFloat16},
    {"fp16", pealFloat16},
    {"float32", pealFloat32},
    {"fp32", pealFloat32},
    {"float64", pealFloat64},
    {"fp64", pealFloat64},
    {"bf16", pealBfloat16},
    {"fp8e4m3", pealFloat8e4m3},
    {"fp8e5m2", pealFloat8e5m2},
}};

constexpr std::array<std::pair<const char*, Combine>, 6> kCombines{{
    {"sum", Combine::Sum},
    {"prod", Combine::Prod},
    {"max", Combine::Max},
    {"min", Combine::Min},
    {"avg", Combine::Avg},
    {"mulsum", Combine::MulSum},
}};

}  // namespace

const TypeInfo& typeInfo(pealDataType_t type) {
  for (const TypeInfo& info : kTypes) {
    if (info.type == type) {
      return info;
    }
  }
  throw tools::UsageError(fmt::format("{} is not a data type.", static_cast<int>(type)));
}

std::vector<pealDataType_t> parseTypes(const std::string& text) {
  std::vector<pealDataType_t> all;
  std::vector<std::string> names;
  for (const TypeInfo& info : kTypes) {
    if (text == info.name) {
      return {info.type};
    }
    all.push_back(info.type);
    names.emplace_back(info.name);
  }
  for (const auto& [alias, type] : kAliases) {
    if (text == alias) {
      return {type};
    }
  }
  if (text != "all") {
    throw tools::UsageError(
        fmt::format("data type \"{}\" is unknown. One of: {}, all.", text, fmt::join(names, ", ")));
  }
  return all;
}

const char* combineName(Combine combine) {
  for (const auto& [name, value] : kCombines) {
    if (value == combine) {
      return name;
    }
  }
  return "none";
}

std::vector<Combine> parseCombines(const std::string& text) {
  std::vector<Combine> all;
  std::vector<std::string> names;
  for (const auto& [name, combine] : kCombines) {
    if (text == name) {
      return {combine};
    }
    all.push_back(combine);
    names.emplace_back(name);
  }
  if (text != "all") {
    throw tools::UsageError(
        fmt::format("reduction \"{}\" is unknown. One of: {}, all.", text, fmt::join(names, ", ")));
  }
  return all;
}

}  // namespace peal::bench
